"""Pairs of real slices of fio on this machine, in which snapshots come and go by what stands for LVM's programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import HostError, Unsupported
from harness.features.snapshots.measuring import measure_pairs
from harness.features.snapshots.request import PlannedSnapshots, Snapshots
from harness.lab.created import CreationLog, read_log
from harness.lab.transport.local import LocalRunner
from harness.measure.series import OpenSession
from harness.model.job import Job
from harness.model.layout import LvmThin, Qcow2
from harness.model.mode import Cell, Mode
from tests.build import RUN_ID
from tests.unit.loop_disks import loop, require, sparse
from tests.unit.test_measure_blocks import LVM, READ, SPAN, WRITE, Ran, programs_in, ran_in, script

THIN = replace(LVM, layout=LvmThin())
# The snapshot is a file with its name. $STATE: the directory with it.
PROGRAMS = {
    "lvs": """
case "$*" in
*pool_lv*) echo "  use|vol|pool" ;;
*) echo "  use|vol|"; for name in $(ls "$STATE"); do echo "  use|$name|vol"; done ;;
esac""",
    "lvcreate": 'for last; do [ "$before" != --name ] || name=$last; before=$last; done; echo "$*" >"$STATE/$name"',
    "lvremove": 'for last; do :; done; rm "$STATE/${last#*/}" && echo "$last" >>"$STATE.removed"',
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the snapshots are. Beside it, a file lists those that were removed."""
    require("fio")
    programs = programs_in(tmp_path, monkeypatch)
    for name, text in PROGRAMS.items():
        script(programs, name, text)
    directory = tmp_path / "state"
    directory.mkdir()
    monkeypatch.setenv("STATE", str(directory))
    return directory


@contextmanager
def on_loop(tmp_path: Path) -> Iterator[Ran]:
    version = LocalRunner().run(["fio", "--version"], deadline=10).stdout.strip()
    with loop(sparse(tmp_path / "disk", 2 * SPAN)) as device:
        yield ran_in(tmp_path, device, Path(device).name, version=version)


def request(mode: Mode, job: Job, pairs: int = 3) -> PlannedSnapshots:
    snapshots = Snapshots(pairs=pairs, seconds=1.0)
    return PlannedSnapshots(group="g", name="pause", cells=(Cell("s", "disk", mode, job),), snapshots=snapshots)


def opened(ran: Ran, tmp_path: Path) -> OpenSession:
    log = CreationLog(LocalRunner(), RUN_ID, str(tmp_path / "created"))
    return OpenSession(lambda _turn: ran.at, ran.at, ran.store, log, 1)


def test_a_snapshot_is_taken_and_removed_in_one_slice_of_each_pair(tmp_path: Path, state: Path) -> None:
    with on_loop(tmp_path) as ran:
        record = measure_pairs(request(THIN, READ), "here", 0.5, opened(ran, tmp_path))
    removed = (state.parent / "state.removed").read_text().splitlines()
    assert len(removed) == 3
    assert len(set(removed)) == 1
    assert list(state.iterdir()) == []
    assert record.kind == "snapshot of a thin volume of LVM"
    # A machine with much else to do may be late in a slice, whose pair does not count then.
    assert record.problem is None or "pairs do not count" in record.problem
    assert len(record.alone) == len(record.beside) == len(record.taking) == len(record.slowest_beside)
    assert all(value > 0 for value in (*record.alone, *record.beside, *record.slowest_alone, *record.taking))
    assert read_log(LocalRunner(), str(tmp_path / "created")) == []


def test_a_snapshot_that_cannot_be_taken_ends_the_pairs_and_leaves_nothing(tmp_path: Path, state: Path) -> None:
    script(tmp_path / "programs", "lvcreate", 'echo "the pool is read-only" >&2; exit 5')
    with on_loop(tmp_path) as ran, pytest.raises(HostError, match="the pool is read-only"):
        measure_pairs(request(THIN, READ), "here", 0.5, opened(ran, tmp_path))
    assert list(state.iterdir()) == []
    assert read_log(LocalRunner(), str(tmp_path / "created")) == []


def test_a_pool_without_room_for_what_is_overwritten_is_refused(tmp_path: Path, state: Path) -> None:
    # Size, used share, chunk, size and used share of the metadata.
    full = "  1073741824 99.00 65536 16777216 10.00"
    script(tmp_path / "programs", "lvs", f'case "$*" in *pool_lv*) echo "  use|vol|pool" ;; *) echo "{full}" ;; esac')
    with on_loop(tmp_path) as ran, pytest.raises(Unsupported, match="what is overwritten under a snapshot") as refused:
        measure_pairs(request(THIN, WRITE), "here", 0.5, opened(ran, tmp_path))
    assert "name a pool of LVM" in (refused.value.hint or "")
    assert list(state.iterdir()) == []


def test_a_layout_that_only_proxmox_ve_takes_snapshots_of_is_refused(tmp_path: Path, state: Path) -> None:
    with on_loop(tmp_path) as ran, pytest.raises(Unsupported, match="snapshots of qcow2 are not taken"):
        measure_pairs(request(replace(LVM, layout=Qcow2()), READ), "here", 0.5, opened(ran, tmp_path))
    assert list(state.iterdir()) == []
