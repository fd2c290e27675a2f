"""How much of a storage has to stay free, and what a run may not allocate therefore."""

from __future__ import annotations

import pytest

from harness.lab.storages import metadata_shortage, reserve_bytes, shortage

GIB = 1 << 30


@pytest.mark.parametrize(("total", "reserve"), [(4 * GIB, GIB), (20 * GIB, GIB), (100 * GIB, 5 * GIB)])
def test_one_gibibyte_stays_free_and_of_large_storages_five_percent(total: int, reserve: int) -> None:
    assert reserve_bytes(total) == reserve
    assert shortage(reserve + 7, total, 7) is None
    assert shortage(reserve + 7, total, 8) is not None


def test_the_refusal_says_what_is_needed_what_is_free_and_what_has_to_stay() -> None:
    assert shortage(10 * GIB, 100 * GIB, 6 * GIB) == (
        "the run needs 6 GiB, 10 GiB are free, and 5 GiB of them must stay free for others"
    )


def test_the_metadata_of_a_thin_pool_becomes_at_most_four_fifths_full() -> None:
    assert metadata_shortage(0.10, GIB, GIB // 64 * 7 // 10) is None
    why = metadata_shortage(0.10, GIB, GIB // 64 * 7 // 10 + 1000)
    assert why is not None
    assert why.startswith("its metadata of 1 GiB is 10% full, the run needs")
    assert metadata_shortage(0.81, GIB, 0) is not None
    assert metadata_shortage(0.0, 0, 1) is not None
