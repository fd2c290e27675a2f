"""Buffered jobs on this machine, with real fio and its page cache: from the disk, and from memory if that is declared.

The guest is a loop device over the file of the twin, which bypasses the page cache of the file, as QEMU does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest

from harness.analysis import Verdict
from harness.events import Events
from harness.features.filesystem import read_session
from harness.lab.facts import HostFacts
from harness.lab.inventory import DiskByFile
from harness.layout.build import Layouts
from harness.measure.prepare import condition
from harness.measure.session import Guests
from harness.model.attach import Attach
from harness.model.job import parse_workload
from harness.model.layout import InnerFilesystem, RawFile
from harness.model.mode import Cell, Mode, Place
from harness.results import CellRecord, Measurement, RunStore
from harness.results.assemble import CellContext, assemble
from tests.build import RUN_ID
from tests.features.cached.test_cached_here import CachingGuest
from tests.unit import test_layouts_local
from tests.unit.loop_disks import RUNNER, detach, run
from tests.unit.test_measure_blocks import Ran, session, undisturbed

MODE = Mode("raw", RawFile(), Attach())
READ = parse_workload("seqread-64k-buffered").job(1, ramp=0, seconds=0.4)
build = test_layouts_local.build
disk = test_layouts_local.disk
facts = test_layouts_local.facts


@contextmanager
def guest_disk(file: str) -> Iterator[str]:
    device = run("losetup", "--find", "--show", "--direct-io=on", file).strip()
    try:
        yield device
    finally:
        detach(device)


def measured(layouts: Layouts, mode: Mode, guest: str, directory: Path) -> CellRecord:
    """A cell of the buffered job on this mode, of four blocks."""
    at = replace(
        session(guest, layouts.disk, counted=False, version=run("fio", "--version").strip()),
        layouts=layouts,
        guests=Guests("here", {"": lambda: nullcontext(CachingGuest(guest))}, {"": [mode.name]}),
        cached=mode.cached,
    )
    read = read_session(at, [mode], [READ])[mode.name]
    cell = Cell("s", "disk", mode, READ)

    def once() -> Sequence[Measurement]:
        ran = Ran(at, RunStore.create(Path(mkdtemp(dir=directory)), RUN_ID), directory)
        return ran.measure(ran.table((READ,), [*dict.fromkeys(cell.arms)], blocks=4))

    slices = undisturbed(once, lambda slices: slices)
    (record,) = assemble([cell], slices, {cell.id: CellContext("here", "g", layouts.span, effective=read)})
    return record


def test_reads_come_from_the_disk_unless_the_mode_is_declared_as_served_from_memory(
    disk: DiskByFile,
    facts: HostFacts,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    tmp_path = tmp_path_factory.mktemp("buffered")
    monkeypatch.setattr("harness.measure.platform.LEASE_DIRECTORY", str(tmp_path / "pacing"))
    with build(disk, facts, MODE) as layouts:
        condition(RUNNER, layouts, "fill", [READ], seed=1, events=Events())
        with guest_disk(layouts.guest(MODE).path) as guest:
            from_disk = measured(layouts, MODE, guest, tmp_path)
        # The file of a guest's file system stays in its memory. That of a device is forgotten when it is closed.
        in_file = replace(MODE, cached=True, filesystem=InnerFilesystem("ext4"))
        from_memory = measured(layouts, in_file, layouts.guest(MODE).path, tmp_path)
    assert from_disk.verdict is Verdict.UNJUDGED, from_disk.remarks
    assert {check.check for check in from_disk.validity} >= {"bytes host", "bytes twin:raw", "bytes guest:raw"}
    assert from_memory.verdict is Verdict.UNJUDGED, from_memory.remarks
    assert from_memory.cached is not None
    for arm in (Place.HOST, Place.GUEST):
        assert from_memory.cached.reads[arm].share == pytest.approx(1.0, abs=0.02)
