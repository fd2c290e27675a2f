"""A pool of a running Ceph cluster, whose OSDs are on the lab host, with images of others: measured, killed, reaped.

After each of these nothing of ours is left. The image that a guest of somebody else uses, one with known content and
its snapshot are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import LabUnavailable
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner
from tests.e2e.attaching import Lab, opened
from tests.e2e.machines import command, lab_file, latest, measure, on_lab_host, started, traces, wait_for_measurements
from tests.patience import patience
from tests.soak.bystander import Bystander, bystander
from tests.soak.ceph_on_host import POOL, ceph_installed, script
from tests.soak.own_disks import own_disks

MIB = 1024**2
# The cluster of the lab writes 5 MiB/s: 32 I/Os of 1 MiB would need seconds to end after each slice.
SELECTED = ("-k", "ceph_rbd and (randread-4k or randwrite-4k)", "--profile=smoke", "--rounds=1")
_OSDS = tuple(NullBlkDisk(f"osd{number}", 4 << 30, completion_ns=10_000, queue_depth=64) for number in (1, 2))
_BYSTANDER_BYTES = 128 * MIB
_SECONDS = 600.0
# Prints the device of the bystander's image.
_MAKE_OTHERS = f"""
set -e
head -c {4 * MIB} /dev/urandom >/run/foreign
rbd import --no-progress /run/foreign {POOL}/foreign
rbd snap create --no-progress {POOL}/foreign@kept
sha256sum </run/foreign >/run/foreign.sum
rm /run/foreign
rbd create --size {_BYSTANDER_BYTES // MIB}M --image-feature layering {POOL}/bystander
rbd map {POOL}/bystander
"""
_LIST = f"""
set -e
rbd ls --long --format json {POOL}
rbd device list
for image in foreign foreign@kept; do
    rbd export --no-progress "{POOL}/$image" - | sha256sum | diff - /run/foreign.sum
done
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster on the lab host, with the guest that uses an image of it."""

    host: Runner
    bystander: Bystander

    def list(self) -> str:
        """All images with their snapshots, and the mapped ones. Raises HostError if foreign data have changed."""
        return _run(self.host, _LIST)

    def lab(self, directory: Path) -> str:
        """The option with a lab file that has only the pool."""
        path = lab_file(directory)
        host = path.read_text().partition("[host.kvm1.disk")[0]
        path.write_text(f'{host}[host.kvm1.storage.ceph]\nrbd = "{POOL}"\n')
        return f"--lab={path}"


def _run(host: Runner, text: str, *words: str) -> str:
    return host.run(["sh", "-s", "--", *words], stdin=text, deadline=patience(_SECONDS)).stdout


@pytest.fixture(scope="module")
def host() -> Iterator[SshRunner]:
    with on_lab_host() as runner:
        yield runner


@pytest.fixture(scope="module")
def lab_host(host: SshRunner) -> Iterator[Lab]:  # noqa: ARG001 - the lab has to be up
    with opened() as lab:
        yield lab


@pytest.fixture(scope="module")
def cluster(host: SshRunner, lab_host: Lab) -> Iterator[Cluster]:
    with ExitStack() as stack:
        try:
            stack.enter_context(ceph_installed(host))
        except LabUnavailable as error:
            pytest.skip(f"the lab host cannot have Ceph: {error}")
        stack.enter_context(own_disks(host, *_OSDS))
        stack.callback(_run, host, script("stop"))
        _run(host, script("start"), *(f"/dev/{disk.device}" for disk in _OSDS))
        device = _run(host, _MAKE_OTHERS).split()[-1]
        stack.callback(_run, host, f"rbd unmap {device}")
        # The cluster does not do many more than 30 writes per second.
        at = (lab_host.hypervisor, lab_host.host.runner, device, _BYSTANDER_BYTES)
        other = stack.enter_context(bystander(*at, iops=3))
        yield Cluster(host, other)


def test_both_clients_are_measured_and_nothing_of_others_is_touched(tmp_path: Path, cluster: Cluster) -> None:
    before, on_host = cluster.list(), traces(cluster.host)
    done = measure(tmp_path, cluster.lab(tmp_path), *SELECTED)
    cluster.bystander.check()
    assert "Traceback" not in done.stdout + done.stderr
    found = latest(tmp_path)
    assert found.run.status == "complete", done.stdout
    measured = [cell for cell in found.cells if cell.skipped is None]
    assert {cell.mode for cell in measured} == {"host", "krbd", "librbd", "librbd-writeback"}, done.stdout
    assert [cell.id for cell in measured if cell.verdict == "void"] == [], done.stdout
    assert cluster.list() == before
    assert traces(cluster.host) == on_host


def test_after_a_kill_reap_leaves_only_what_others_have(tmp_path: Path, cluster: Cluster) -> None:
    before, on_host = cluster.list(), traces(cluster.host)
    lab = cluster.lab(tmp_path)
    with started(tmp_path, lab, *SELECTED) as run:
        wait_for_measurements(tmp_path, run)
        run.kill()
        run.communicate(timeout=patience(60))
    assert cluster.list() != before
    done = command("reap", lab, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed after a killed run: the image vms/voh-" in done.stdout
    assert cluster.list() == before
    assert traces(cluster.host) == on_host
    cluster.bystander.check()
