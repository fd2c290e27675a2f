"""Arguments of QEMU on Proxmox VE: what drives lack is requested by them and read back, and only root may do so."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import cast

import pytest

from harness.errors import GuestError, Unsupported
from harness.features.proxmox.backend import _yield_drives
from harness.features.proxmox.beyond_drives import build_arguments, parse_iothreads
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import PveVolume, create_vm
from harness.features.proxmox.guest import ProxmoxGuest, Resolved, parse_resolved
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import build_shell_parameters, list_by_arguments
from harness.guest.booting import Booted
from harness.guest.protocol import GuestDisk
from harness.lab.transport.ssh import SshRunner
from harness.layout import BlockSource
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode
from harness.model.option import Bus, Effective
from harness.results.validity import configuration_check
from harness.scenario.setups import _fit_one_guest
from pve_double import nodeshell
from pve_double.server import Serving
from pve_double.state import Node
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import (
    HOST,
    RULES,
    RUN,
    SPAN,
    STORED,
    THIN,
    guest_with,
    hypervisor,
    iso,
    left,
)
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "iso", "node", "serving", "shell"]

MIB = 1024**2
OPTIONS = (
    {"queues": 2},
    {"queues": 1},
    {"queue_size": 64},
    {"packed": True},
    {"event_idx": False},
    {"logical_block_size": 4096, "physical_block_size": 4096},
    {"poll_max_ns": 0},
    {"poll_max_ns": 5000, "queues": 2, "iothread_vq_mapping": 2, "iothread": False},
    {"queues": 4, "iothread_vq_mapping": 2, "iothread": False, "read_only": True, "queue_size": 128},
    {"queues": 2, "iothread_vq_mapping": 1, "iothread": False, "iops": 1000, "cache": "directsync", "discard": "unmap"},
)
BUSES: tuple[Bus, ...] = ("virtio-blk", "virtio-scsi")


@pytest.fixture
def machine(client: Client, shell: NodeShell) -> Iterator[VirtualMachine]:
    """A VM with a volume of its own."""
    parameters = build_shell_parameters(RULES, "local:iso/mini.iso", 4)
    with create_vm(client, shell.log(RUN), RULES, parameters) as (found, _):
        found.set({"scsi9": "local-lvm:1"})
        yield found
        found.stop()
        drives = [key for key in found.config() if key in ("virtio0", "scsi0", "scsi9")]
        found.free(drives, "local-lvm:vm-9000-disk-0")


def booted(machine: VirtualMachine, node: Node, attach: Attach, options: GuestOptions) -> Effective:
    """What is read back of a disk that is attached in this way, after the start of the VM."""
    key = "virtio0" if attach.bus == "virtio-blk" else "scsi0"
    volume = PveVolume("/dev/pve/vm-9000-disk-0", "block", 0, SPAN, "raw", None, "local-lvm:vm-9000-disk-0", 9000)
    disk = GuestDisk("mode", volume, attach)
    machine.set(dict(_yield_drives({key: disk}, options)) | {"args": build_arguments({key: disk}, options)})
    machine.start()
    command = nodeshell.run(node, ["qm", "showcmd", str(machine.vmid)]).text.strip()
    played = PlayedShell({"qm showcmd": f"command\t{command}\n"})
    up = Booted(machine, cast("SshRunner", guest_with("mode")), 1.0)
    return ProxmoxGuest(up, threads=None, node=played, disks=[disk], keys={"mode": key}).effective("mode")


@pytest.mark.parametrize(("bus", "number"), list(product(BUSES, range(len(OPTIONS)))))
def test_what_drives_lack_is_read_back_as_requested(machine: VirtualMachine, node: Node, bus: Bus, number: int) -> None:
    attach = Attach(bus, **OPTIONS[number])
    effective = booted(machine, node, attach, ANY_GUEST)
    expected = dict(attach.expected.settings())
    # The guest is played, and has another disk.
    of_pve = {name: value for name, value in expected.items() if not name.startswith(("guest_", "host_"))}
    found = dict(effective.settings())
    assert {name: found.get(name) for name in of_pve} == of_pve
    assert found["qemu_iothread"] is bool(attach.threads)
    if list_by_arguments(attach):
        assert found["qemu_iothreads"] == attach.threads


@pytest.mark.parametrize("bus", BUSES)
def test_iothreads_poll_as_the_guest_or_the_disk_requests(machine: VirtualMachine, node: Node, bus: Bus) -> None:
    options = GuestOptions(poll_max_ns=20_000, poll_grow=2, poll_shrink=4)
    effective = booted(machine, node, Attach(bus), options)
    polling = (effective.qemu_poll_max_ns, effective.qemu_poll_grow, effective.qemu_poll_shrink)
    assert polling == (20_000, 2, 4)
    machine.stop()
    own = booted(machine, node, Attach(bus, poll_max_ns=0), options)
    assert (own.qemu_poll_max_ns, own.qemu_poll_grow) == (0, 2)


def test_another_value_than_the_requested_one_is_found(
    machine: VirtualMachine, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = Attach("virtio-blk", queue_size=64)
    monkeypatch.setattr(node.executor, "monitor", lambda _vmid, _text: "256\r\n")
    check = configuration_check(attach, booted(machine, node, replace(attach, iothread=False), ANY_GUEST))
    assert check is not None
    assert "requested qemu_queue_size = 64, it is 256" in check.detail


def test_a_token_is_refused_before_anything_is_created(serving: Serving, iso: Path, shell: NodeShell) -> None:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    with connected(serving, token="t1", secret=Secret("a-value")) as token:
        ours = hypervisor(token, iso, shell)
        mode = Mode("thin", THIN.layout, Attach("virtio-blk", queues=2))
        why = ours.unsupported_by_host(mode, STORED) or ""
        assert "attach.queues: Proxmox VE accepts this only from root@pam with a password, not from root@pam!t1" in why
        assert "log in as root@pam without a token, or leave it out" in why
        polling = replace(THIN, guest=GuestOptions(poll_max_ns=0))
        assert "poll_max_ns: Proxmox VE accepts" in (ours.unsupported_by_host(polling, STORED) or "")
        with (
            pytest.raises(Unsupported, match=r"attach\.queues"),
            ours.layouts(shell.log(RUN), [STORED], [HOST, mode], span=SPAN),
        ):
            pass
        disk = GuestDisk("thin", THIN_VOLUME, mode.attach or Attach())
        with pytest.raises(Unsupported, match="queues needs arguments"), ours.guest(shell.log(RUN), [disk]):
            pass
        assert token.get("nodes/pve/tasks", {"source": "all"}) == []
        # Queues of SCSI are an option of drives, which a token may set.
        assert ours.unsupported_by_host(Mode("thin", THIN.layout, Attach(queues=2)), STORED) is None
        assert left(token) == []


THIN_VOLUME = PveVolume("/dev/pve/vm-9000-voh-1", "block", 0, SPAN, "raw", None, "local-lvm:vm-9000-voh-1", 9000)


def test_the_next_guest_of_the_vm_has_nothing_of_the_one_before(
    client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    seen: list[dict[str, str]] = []

    def look(*_: object) -> None:
        seen.append(client.get("nodes/pve/qemu/9000/config"))
        raise GuestError("that is enough")

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", look)
    ours = hypervisor(client, iso, shell)
    shell.prints["/sys/devices/system/cpu/online"] = "cpus 0-3\nnodes 0\n"
    attachments = (Attach("virtio-blk", queues=2, poll_max_ns=0), Attach(), Attach("sata", iothread=False))
    options = (GuestOptions(memory=1 << 30, pin_vcpus=("2-3",), pin_iothreads="2-3", pin_emulator="2-3"), ANY_GUEST)
    with ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts:
        for attach, guest in zip(attachments, (*options, ANY_GUEST), strict=True):
            disk = GuestDisk("thin", layouts.guest(THIN), attach)
            with pytest.raises(GuestError, match="enough"), ours.guest(shell.log(RUN), [disk], guest):
                pass
    # Each boot is tried twice.
    first, _, second, _, third, _ = seen
    assert {"affinity", "args", "virtio0"} <= first.keys()
    assert (first["memory"], second["memory"]) == ("1024", str(RULES.memory // MIB))
    assert not {"affinity", "args", "virtio0"} & second.keys()
    assert "scsi0" in second
    assert "sata0" in third
    assert "scsi0" not in third
    assert left(client) == []


def test_a_disk_that_is_an_argument_as_a_whole_leaves_nothing(
    client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    seen: list[dict[str, str]] = []

    def look(*_: object) -> None:
        seen.append(client.get("nodes/pve/qemu/9000/config"))
        raise GuestError("that is enough")

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", look)
    ours = hypervisor(client, iso, shell)
    attach = Attach("virtio-blk", queues=2, iothread_vq_mapping=2, iothread=False)
    with (
        pytest.raises(GuestError, match="enough"),
        ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts,
        ours.guest(shell.log(RUN), [GuestDisk("thin", layouts.guest(THIN), attach)]),
    ):
        pass
    assert not any(key.startswith("virtio") for key in seen[0])
    assert '"filename": "/dev/pve/vm-9000-voh-1"' in seen[0]["args"]
    assert left(client) == []
    assert shell.logged == []


def test_disks_on_a_shared_controller_are_read_back_as_sharing_it(
    client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    seen: list[Resolved | None] = []

    def look(*_: object) -> None:
        command = nodeshell.run(shell.node, ["qm", "showcmd", "9000"]).text.strip()
        seen.extend(parse_resolved(shlex.split(command), key) for key in ("scsi0", "scsi1"))
        raise GuestError("that is enough")

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", look)
    ours = hypervisor(client, iso, shell)
    shared = Attach(controller="shared", iothread=False)
    modes = [Mode(name, THIN.layout, shared) for name in ("one", "two")]
    assert [ours.unsupported_by_host(mode, STORED) for mode in modes] == [None, None]
    with ours.layouts(shell.log(RUN), [STORED], [HOST, *modes], span=SPAN) as layouts:
        disks = [GuestDisk(mode.name, layouts.guest(mode), shared) for mode in modes]
        with pytest.raises(GuestError, match="enough"), ours.guest(shell.log(RUN), disks):
            pass
        assert [disk and (disk.device, disk.controller_disks, disk.iothread) for disk in seen[:2]] == [
            ("scsi-hd", 2, False)
        ] * 2
        both = [disks[0], replace(disks[1], attach=Attach())]
        with (
            pytest.raises(Unsupported, match="one kind of SCSI controller, not virtio-scsi-pci and virtio-scsi-single"),
            ours.guest(shell.log(RUN), both),
        ):
            pass
    assert left(client) == []


def test_modes_with_other_controllers_have_other_guests_on_proxmox_ve_only() -> None:
    modes = [Mode(name, Device(), attach) for name, attach in (("one", Attach()), ("two", SHARED))]
    assert _fit_one_guest(modes)
    assert not _fit_one_guest([mode.on(ANY_GUEST, one_guest=True) for mode in modes])


SHARED = Attach(controller="shared", iothread=False)


def test_a_real_qemu_takes_the_arguments_and_its_monitor_reports_them(tmp_path: Path) -> None:
    program = shutil.which("qemu-system-x86_64")
    if program is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    image = tmp_path / "disk.raw"
    image.write_bytes(b"\0" * MIB)
    attach = Attach("virtio-blk", queues=2, queue_size=64, packed=True, event_idx=False, poll_max_ns=0)
    disk = GuestDisk("mode", BlockSource(str(image), "file", 0, MIB), attach)
    words = [program, "-machine", "q35,accel=tcg", "-S", "-display", "none", "-nodefaults", "-smp", "2"]
    words += ["-blockdev", f"driver=raw,node-name=drive-virtio0,file.driver=file,file.filename={image}"]
    words += ["-device", "virtio-blk-pci,drive=drive-virtio0,id=virtio0", "-monitor", "stdio"]
    words += shlex.split(build_arguments({"virtio0": disk}, GuestOptions(poll_grow=2)))
    asked = [
        f"qom-get /machine/peripheral/virtio0 {name}" for name in ("num-queues", "queue-size", "packed", "iothread")
    ]
    done = subprocess.run(
        words,
        input="\n".join([*asked, "info iothreads", "quit", ""]),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = [line.rpartition("\r")[2].strip() for line in done.stdout.splitlines()]
    answers = [line for line in printed if line in ("2", "64", "true", '"/objects/voh-virtio0-1"')]
    assert answers == ["2", "64", "true", '"/objects/voh-virtio0-1"']
    threads = parse_iothreads(done.stdout)
    assert (threads["voh-virtio0-1"]["poll-max-ns"], threads["voh-virtio0-1"]["poll-grow"]) == (0, 2)


def test_each_option_that_only_arguments_have_is_one_that_libvirt_has_too() -> None:
    everything = Attach("virtio-blk", queues=2, queue_size=64, packed=True, event_idx=False, poll_max_ns=0)
    assert list_by_arguments(everything) == ["queues", "queue_size", "poll_max_ns", "packed", "event_idx"]
    assert list_by_arguments(Attach()) == []


def test_what_the_monitor_prints_of_iothreads_is_parsed() -> None:
    # As QEMU 10 prints it.
    printed = "voh-scsi0-1:\r\n  thread_id=1201\r\n  poll-max-ns=0\r\n  poll-grow=2\r\n  poll-shrink=0\r\n"
    assert parse_iothreads(printed + "  aio-max-batch=0\r\n") == {
        "voh-scsi0-1": {"poll-max-ns": 0, "poll-grow": 2, "poll-shrink": 0, "aio-max-batch": 0}
    }
