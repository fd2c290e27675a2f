"""Storages that a guest of somebody else uses, checking its own data all the time: each is measured, killed, filled.

After each of these nothing of ours is left, and the other guest's data is intact.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import LabUnavailable
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.storages import reserve_bytes
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner
from harness.signals import wait_until
from tests.e2e.attaching import Lab, opened
from tests.e2e.machines import (
    RUN_SECONDS,
    command,
    lab_file,
    latest,
    measure,
    on_lab_host,
    started,
    traces,
    wait_for_measurements,
)
from tests.patience import patience
from tests.soak.bystander import Bystander, bystander
from tests.soak.own_disks import own_disks
from tests.soak.storages_in_use import BYSTANDER_BYTES, STORAGES, StorageInUse

SELECTED = ("-k", "storage and not blk and not uring and (seqwrite or randread)", "--profile=smoke", "--rounds=1")
DISK_BYTES = 2 << 30
"""Nominal: the disks are in the lab host's memory, which has only what was written to them."""
MODES = {
    "volume_group": {"lvm"},
    "thin_pool": {"lvm-thin"},
    "directory": {"raw", "qcow2"},
    "dataset": {"zvol", "zfs"},
}
SCRIPT_SECONDS = 180.0
_LOOK_SECONDS = 2.0
_GO_ON = 'for guest in $(virsh list --name --state-paused); do virsh --quiet resume "$guest"; done'
"""What owners do when there is space again: QEMU pauses a guest whose disk has none."""
FULL = "must stay free for others|No space left|[Ii]nsufficient free space|is full"


@dataclass(frozen=True, slots=True)
class Used:
    """A storage on the lab host, with its bystander."""

    storage: StorageInUse
    bystander: Bystander
    host: Runner

    def run(self, script: str, *words: str) -> str:
        argv = ["sh", "-c", self.storage.script(script), "sh", *words]
        return self.host.run(argv, deadline=patience(SCRIPT_SECONDS)).stdout

    def left(self) -> str:
        """All that is on the storage, and what a run could leave elsewhere."""
        return self.run(self.storage.listing) + "\n".join(elsewhere(self.host))

    def lab(self, directory: Path) -> str:
        """The option with a lab file that has only this storage."""
        path = lab_file(directory)
        host = path.read_text().partition("[host.kvm1.disk")[0]
        path.write_text(f'{host}[host.kvm1.storage.storage]\n{self.storage.key} = "{self.storage.at}"\n')
        return f"--lab={path}"


@pytest.fixture(scope="module")
def host() -> Iterator[SshRunner]:
    with on_lab_host() as runner:
        yield runner


@pytest.fixture(scope="module")
def lab_host(host: SshRunner) -> Iterator[Lab]:  # noqa: ARG001 - the lab has to be up
    with opened() as lab:
        yield lab


@pytest.fixture(scope="module", params=STORAGES, ids=lambda each: each.name)
def used(request: pytest.FixtureRequest, host: SshRunner, lab_host: Lab) -> Iterator[Used]:
    storage: StorageInUse = request.param
    if host.run(["sh", "-c", storage.script(storage.needs)], deadline=patience(60), check=False).status != 0:
        pytest.skip(f"the lab host cannot have {storage.name}: this fails there: {storage.needs}")
    disks = [
        NullBlkDisk(f"use{number}", DISK_BYTES, completion_ns=100_000, queue_depth=64)
        for number in range(1, storage.disks + 1)
    ]
    before = elsewhere(host)
    with ExitStack() as stack:
        try:
            stack.enter_context(storage.installed(host))
        except LabUnavailable as error:
            pytest.skip(f"the lab host cannot have {storage.name}: {error}")
        stack.enter_context(own_disks(host, *disks))
        remove = ["sh", "-c", storage.script(storage.remove)]
        stack.callback(host.run, remove, deadline=patience(SCRIPT_SECONDS), check=False)
        paths = [f"/dev/{disk.device}" for disk in disks]
        host.run(["sh", "-c", storage.script(storage.make), "sh", *paths], deadline=patience(SCRIPT_SECONDS))
        other = stack.enter_context(
            bystander(lab_host.hypervisor, lab_host.host.runner, storage.bystander, BYSTANDER_BYTES)
        )
        yield Used(storage, other, host)
    assert elsewhere(host) == before


def elsewhere(host: Runner) -> list[str]:
    """What a run could leave outside of the storage.

    LVM stores copies of its metadata, its daemon stays, and the volumes of the group `use` are listed on their own: how
    full its thin pool is, in percent, may change.
    """
    lines = traces(host).splitlines()
    return [
        line
        for line in lines
        if not line.startswith("/etc/lvm/") and "dmeventd" not in line and line.split()[1:2] != ["use"]
    ]


@dataclass(frozen=True, slots=True)
class Space:
    free: int
    total: int


@contextmanager
def watched(used: Used) -> Iterator[list[Space]]:
    """The space on the storage, looked at all the time in the block."""
    found: list[Space] = []
    ended = threading.Event()

    def look() -> None:
        with on_lab_host() as own:
            while not ended.wait(_LOOK_SECONDS):
                argv = ["sh", "-c", used.storage.script(used.storage.space)]
                free, total = map(int, own.run(argv, deadline=patience(60)).stdout.split())
                found.append(Space(free, total))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield found
        finally:
            ended.set()
            looking.result()


def test_it_is_measured_and_its_reserve_stays_free(tmp_path: Path, used: Used) -> None:
    before = used.left()
    with watched(used) as space:
        done = measure(tmp_path, used.lab(tmp_path), *SELECTED)
        used.bystander.check()
    assert "Traceback" not in done.stdout + done.stderr
    found = latest(tmp_path)
    assert found.run.status == "complete", done.stdout
    measured = [cell for cell in found.cells if cell.skipped is None]
    assert {cell.mode for cell in measured} - {"host"} == MODES[used.storage.key], done.stdout
    for cell in measured:
        assert cell.metrics["iops"].host
        if cell.mode != "host":
            assert cell.metrics["iops"].guest, cell.id
    assert [cell.id for cell in measured if cell.verdict == "void"] == [], done.stdout
    assert all(any(used.storage.counted in note for note in cell.notes) for cell in measured)
    assert used.left() == before

    # The look has seen the run's volumes, and at no time less than the reserve.
    assert min(each.free for each in space) < max(each.free for each in space)
    assert all(each.free >= reserve_bytes(each.total) for each in space), space


def test_after_a_kill_reap_leaves_only_what_others_have(tmp_path: Path, used: Used) -> None:
    before = used.left()
    lab = used.lab(tmp_path)
    with started(tmp_path, lab, *SELECTED) as run:
        wait_for_measurements(tmp_path, run)
        run.kill()
        run.communicate(timeout=patience(60))
    assert used.left() != before
    used.bystander.check()
    done = command("reap", lab, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed after a killed run: " in done.stdout
    assert used.left() == before
    used.bystander.check()


@pytest.mark.parametrize("moment", ["while-filled", "while-measured"])
def test_a_run_ends_without_traces_on_a_storage_that_becomes_full(tmp_path: Path, used: Used, moment: str) -> None:
    before, listed = used.left(), used.run(used.storage.listing)
    with ExitStack() as stack:
        run = stack.enter_context(started(tmp_path, used.lab(tmp_path), *SELECTED))
        if moment == "while-filled":
            # The first volume of the run is there.
            assert wait_until(lambda: used.run(used.storage.listing) != listed, deadline=patience(180), every=0.5)
        else:
            wait_for_measurements(tmp_path, run)
        stack.callback(used.run, used.storage.free)
        used.run(used.storage.fill)
        if not used.storage.copies_on_write:
            used.bystander.check()
        output, _ = run.communicate(timeout=patience(RUN_SECONDS))
        if not used.storage.copies_on_write:
            used.bystander.check()
    used.run(_GO_ON)
    assert "Traceback" not in output
    if moment == "while-filled":
        assert run.returncode == 1, output
        # The guard refuses the next part. A part that is being written meanwhile finds the storage full.
        assert re.search(FULL, output), output
    assert used.left() == before
    used.bystander.check()
