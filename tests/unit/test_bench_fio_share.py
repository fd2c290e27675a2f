"""The report of where the seconds of measuring went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.results import Measurement
from tests.bench.fio_share import find_timetables
from tests.build import build_measurement


def slice_of(name: str, started: float, overlap: str | None = None) -> Measurement:
    one = build_measurement(started=started, seconds=0.26)
    return replace(one, wall=0.25, raw=f"raw/{name}", overlap=overlap)


def test_slices_of_host_and_guest_are_in_one_timetable_and_what_fio_does_not_run_is_pause_or_waiting() -> None:
    slices = [
        slice_of("optane-round1-host.json", 10.0),
        slice_of("optane-round1-guest.json", 10.3, overlap="host"),
        slice_of("optane-round1-host.json", 10.6),
        slice_of("optane-round1-2-host.json", 12.86),
    ]
    first, second = find_timetables(reversed(slices))
    assert (first.name, len(first.slices), first.waited) == ("optane-round1", 3, 0.0)
    assert first.fio_seconds / first.seconds == pytest.approx(0.75 / 0.86)
    assert first.pauses == pytest.approx([0.05, 0.05])
    assert second.waited == pytest.approx(2.0)
    assert "1 overlapped" in str(first)
    assert "share 0.872" in str(first)
