"""Cells on a storage in use: a neighbour's bytes are stated, and make no cell void."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.model.counters import Counters, FioCounts, Transferred
from harness.results import Measurement
from harness.results.byte_counts import check_bytes
from harness.results.validity import others_notes
from tests.build import A_SLICE

MIB = 1 << 20


def on_storage(
    arm: str, fio: Transferred, storage: Transferred | None, volume: Transferred | None = None
) -> Measurement:
    counters = Counters(fio=FioCounts(read=fio.read, written=fio.written), disk=volume, storage=storage)
    return replace(A_SLICE, arm=arm, counters=counters)


def test_bytes_of_a_neighbour_do_not_make_a_cell_void() -> None:
    fio = Transferred(read=100 * MIB)
    (check,) = check_bytes([on_storage("twin:raw", fio, Transferred(900 * MIB, 50 * MIB))], 0)
    assert check.ok
    assert check.detail == (
        "fio and the disks below the storage agree within 0.1%; those disks may have moved more, for others"
    )


def test_reads_that_did_not_reach_the_disks_make_a_cell_void_beside_a_neighbour_who_writes() -> None:
    fio = Transferred(read=100 * MIB)
    (check,) = check_bytes([on_storage("twin:raw", fio, Transferred(MIB, 900 * MIB))], 0)
    assert not check.ok
    assert "the disks below the storage 1 MiB (1.0%): the rest did not come from the disk" in check.detail


@pytest.mark.parametrize(("counted", "ok"), [(100, True), (80, False), (120, False)])
def test_the_counters_of_a_volume_of_our_own_are_exact_whatever_the_neighbours_do(counted: int, ok: bool) -> None:
    fio = Transferred(written=100 * MIB)
    one = on_storage("guest:lvm", fio, Transferred(10 * MIB, 500 * MIB), volume=Transferred(written=counted * MIB))
    (check,) = check_bytes([one], 0)
    assert check.ok is ok


def test_the_share_of_others_is_stated() -> None:
    slices = [
        on_storage("host", Transferred(90 * MIB), Transferred(100 * MIB, 10 * MIB)),
        on_storage("host", Transferred(90 * MIB), Transferred(100 * MIB, 30 * MIB)),
        # This arm's reads came from a cache, which makes the others' bytes no fewer.
        on_storage("guest:raw", Transferred(500 * MIB), Transferred(0, 0)),
    ]
    (note,) = others_notes(slices)
    assert note.startswith("while this cell was measured, 25.0% of the bytes on the storage's disks were not its own")
    assert "20 MiB read and 40 MiB written by others" in note


def test_a_volume_is_counted_by_its_own_counters() -> None:
    own = Transferred(written=75 * MIB)
    (note,) = others_notes([on_storage("host", Transferred(written=75 * MIB), Transferred(0, 100 * MIB), own)])
    assert "25.0%" in note


@pytest.mark.parametrize("storage", [None, Transferred()])
def test_nothing_is_stated_where_nothing_was_counted(storage: Transferred | None) -> None:
    assert others_notes([on_storage("host", Transferred(MIB), storage)]) == ()
