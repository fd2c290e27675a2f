"""A stored run of the embedded lab: it can be read, shown and counted with the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.model.attach import Attach, Vfio
from harness.model.counters import Transferred
from harness.report.html import write_report
from harness.results import RunStore

RUN = Path(__file__).parent / "data" / "stored_run"


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    shutil.copytree(RUN, tmp_path / "run")
    return RunStore.open(tmp_path / "run")


def test_its_modes_and_what_was_read_back_have_types(store: RunStore) -> None:
    cells = {cell.mode: cell for cell in store.read_results().cells}
    assert cells["lvm"].mode_detail.attach == Attach()
    assert cells["vfio"].mode_detail.attach == Vfio()
    assert cells["lvm"].effective.qemu_aio == "native"
    assert cells["host"].job.id == "randread-4k-qd32"


def test_its_counters_are_sorted_by_who_counted(store: RunStore) -> None:
    measurements = store.read_journal().measurements
    guest = next(each for each in measurements if each.arm == "guest:lvm" and each.job == "randread-4k-qd32")
    assert guest.repeat == 1
    assert guest.counters.fio.read == guest.io_bytes > 0
    assert guest.counters.disk == Transferred(read=guest.io_bytes)
    assert guest.counters.host_cpu_busy is not None
    assert guest.counters.fio.ios == 22092
    assert [type(each) for each in (guest.counters.fio.ios, guest.counters.fio.switches)] == [int, int]


def test_its_report_can_be_written_again(store: RunStore) -> None:
    page = write_report(store).read_text(encoding="utf-8")
    assert "optane-lvm-randread-4k-qd32" in page
