"""Cached cells on the page cache of this machine: a RAW file on a loop device, fio as the twin, and a guest's disk.

The guest is a second loop device over the file, which goes through the page cache as QEMU does with cache=writeback.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

import pytest

from harness.analysis import Verdict
from harness.events import Events
from harness.features.cached import is_partial
from harness.lab.facts import HostFacts
from harness.lab.inventory import DiskByFile
from harness.layout.build import Layouts
from harness.measure.prepare import condition
from harness.measure.session import Guests, Session
from harness.model.attach import Attach
from harness.model.counters import Transferred
from harness.model.layout import RawFile
from harness.model.mode import Arm, Cell, Mode, Place
from harness.results import CellRecord, Measurement, RunStore
from harness.results.assemble import CellContext, assemble
from tests.build import RUN_ID
from tests.unit import test_layouts_local
from tests.unit.loop_disks import RUNNER, detach, run
from tests.unit.test_measure_blocks import READ, LocalGuest, Ran, session, undisturbed

CACHED = Mode("raw-cached", RawFile(), Attach(cache="writeback", aio="threads"), cached=True)
UNDECLARED = replace(CACHED, cached=False)
MIB = 1024**2
build = test_layouts_local.build
disk = test_layouts_local.disk
facts = test_layouts_local.facts


@dataclass
class CachingGuest(LocalGuest):
    """Its disk goes through the page cache. Nothing counts as QEMU does."""

    def device(self, _disk: str) -> str:
        return self.path

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred]:
        """No QEMU counts them."""
        return dict.fromkeys(disks)  # type: ignore[return-value]


@contextmanager
def guest_disk(file: str) -> Iterator[str]:
    device = run("losetup", "--find", "--show", "--direct-io=off", file).strip()
    try:
        yield device
    finally:
        detach(device)


def forget(file: str) -> None:
    """Empty the page cache of the file."""
    run("dd", f"if={file}", "of=/dev/null", "iflag=nocache", "count=0", "status=none")


def measured(layouts: Layouts, mode: Mode, guest: str, directory: Path) -> Sequence[Measurement]:
    """Six blocks of all arms of a cell of this mode, after one pass over its file."""
    at: Session = replace(
        session(guest, layouts.disk, counted=False, version=run("fio", "--version").strip()),
        layouts=layouts,
        guests=Guests("here", {"": lambda: nullcontext(CachingGuest(guest))}, {"": [mode.name]}),
        cached=mode.cached,
    )

    def once() -> Sequence[Measurement]:
        ran = Ran(at, RunStore.create(Path(mkdtemp(dir=directory)), RUN_ID), directory)
        forget(layouts.guest(mode).path)
        at.warm([Arm(Place.GUEST, replace(mode, cached=True))])
        arms = [*dict.fromkeys(Cell("s", "disk", mode, READ).arms)]
        return ran.measure(ran.table((READ,), arms, blocks=6))

    return undisturbed(once, lambda slices: slices)


def cell_of(mode: Mode, slices: Sequence[Measurement], span: int) -> CellRecord:
    cell = Cell("s", "disk", mode, READ)
    (record,) = assemble([cell], slices, {cell.id: CellContext("here", "g", span)})
    return record


def test_a_file_that_fits_into_memory_is_served_from_it_within_two_percent_of_the_disks_counters(
    disk: DiskByFile,
    facts: HostFacts,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    tmp_path = tmp_path_factory.mktemp("cached")
    monkeypatch.setattr("harness.measure.platform.LEASE_DIRECTORY", str(tmp_path / "pacing"))
    with build(disk, facts, CACHED) as layouts:
        condition(RUNNER, layouts, "fill", [READ], seed=1, events=Events())
        with guest_disk(layouts.guest(CACHED).path) as guest:
            slices = measured(layouts, CACHED, guest, tmp_path)
            undeclared = measured(layouts, UNDECLARED, guest, tmp_path)
        cell = cell_of(CACHED, slices, layouts.span)
        assert cell.verdict is Verdict.UNJUDGED, cell.remarks
        assert cell.cached is not None
        assert set(cell.cached.reads) == {Place.HOST, Place.GUEST}
        for arm in (Place.HOST, Place.GUEST):
            share = cell.cached.reads[arm]
            assert share.fio > MIB
            assert share.share == pytest.approx(1.0, abs=0.02)
        assert cell.cached.working_set_bytes == layouts.span
        assert cell.cached.memory_bytes is not None
        assert not is_partial(cell.cached)
        (direct,) = [check for check in cell.validity if check.check == "bytes host"]
        assert direct.ok, direct.detail
        void = cell_of(UNDECLARED, undeclared, layouts.span)
        assert void.verdict is Verdict.VOID
        assert any("declare it with cached = true" in remark for remark in void.remarks)


def test_a_cache_that_is_not_warmed_serves_less(disk: DiskByFile, facts: HostFacts) -> None:
    with build(disk, facts, CACHED) as layouts:
        condition(RUNNER, layouts, "fill", [READ], seed=1, events=Events())
        file = layouts.guest(CACHED).path
        at = replace(session(file, layouts.disk, counted=False, version=""), layouts=layouts)

        def read_from_disk() -> int:
            before = int(Path(f"/sys/class/block/{layouts.disk}/stat").read_text().split()[2])
            run("dd", f"if={file}", "of=/dev/null", "bs=1M", "status=none")
            return (int(Path(f"/sys/class/block/{layouts.disk}/stat").read_text().split()[2]) - before) * 512

        forget(file)
        assert read_from_disk() == pytest.approx(layouts.span, rel=0.02)
        forget(file)
        at.warm([Arm(Place.TWIN, CACHED)])
        assert read_from_disk() == 0
