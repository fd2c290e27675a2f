"""Layouts and guests at the double: what is made there, what is refused before that, and that nothing is left."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from harness.config.names import RunId
from harness.errors import GuestError, HarnessError, HostError, SafetyError, Unsupported
from harness.events import Events
from harness.features.own_image.booting import create_key
from harness.features.proxmox import GuestRules
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import PveVolume, create_vm
from harness.features.proxmox.guest import ProxmoxGuest, parse_size
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import build_shell_parameters, format_drive
from harness.guest.booting import Booted
from harness.guest.protocol import GuestDisk
from harness.image.manifest import sha256_of
from harness.lab.created import forget
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import DiskById, DiskByStorage, HostSpec
from harness.lab.transport.ssh import SshRunner
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.model.attach import Attach
from harness.model.base import Device, Md
from harness.model.guest import GuestOptions
from harness.model.layout import Lvm, LvmThin, Qcow2, RawFile, Zvol
from harness.model.mode import Mode
from harness.model.option import Effective
from harness.results.validity import configuration_check
from pve_double import nodeshell
from pve_double.faults import Fault
from pve_double.server import Serving, serve
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import DISK, LINK, NodeShell
from tests.unit.guest_options import GUEST_OPTIONS
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "node", "serving", "shell"]

MIB = 1024**2
RUN = RunId("20261121-101500-ab12")
SPAN = 64 * MIB
STORED = DiskByStorage("vmstore", {"lvm-thin": "local-lvm", "qcow2": "local"})
HOST = Mode("host", Device(), attach=None)
PASSTHROUGH = Mode("passthrough", Device(), Attach())
LVM = Mode("lvm", Lvm(), Attach())
RAW = Mode("raw", RawFile(), Attach())
QCOW2 = Mode("qcow2", Qcow2(), Attach())
THIN = Mode("thin", LvmThin(), Attach())
ZVOL = Mode("zvol", Zvol(), Attach())
RULES = GuestRules(vmids=(9000, 9001), kvm=False, cpu="max")


@pytest.fixture
def token(serving: Serving) -> Iterator[Client]:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    with connected(serving, token="t1", secret=Secret("a-value")) as found:
        yield found


@pytest.fixture
def iso(tmp_path: Path) -> Path:
    file = tmp_path / "guest.iso"
    file.write_bytes(b"\0" * 64 * 1024)
    return file


def hypervisor(
    client: Client,
    iso: Path,
    played: NodeShell,
    rules: GuestRules = RULES,
    events: Events | None = None,
    *,
    facts: Mapping[str, str] | None = None,
) -> ProxmoxHypervisor:
    host = Host(
        spec=HostSpec("node1", "proxmox", ssh=None, disks=(DISK,)),
        runner=played,
        ssh=None,
        target=None,
        facts=HostFacts({"cpus": "4", **(facts or {})}),
        guest_files=GuestFiles("", "", iso.parent / "key", "", iso, sha256_of(iso), "0123456789abcdef0123"),
        acceleration=Acceleration("tcg", "kvm = false"),
    )
    return ProxmoxHypervisor(host, client, rules, events or Events())


def left(client: Client) -> list[str]:
    """What is on the node of ours, but for the ISO, which is kept for the next run."""
    vms = [f"VM {each['vmid']}" for each in client.get("nodes/pve/qemu")]
    storages = [each["storage"] for each in client.get("storage") if each["storage"].startswith("voh-")]
    volumes = [
        each["volid"]
        for storage in ("local", "local-lvm")
        for each in client.get(f"nodes/pve/storage/{storage}/content")
        if each["content"] == "images"
    ]
    return [*vms, *storages, *volumes]


def reaped(ours: ProxmoxHypervisor, shell: NodeShell) -> dict[str, list[str]]:
    """How the removal of each thing of a killed run ended, by its kind; as `harness.measure.reap` does it."""
    shell.lose_connection()
    ended: dict[str, list[str]] = {}
    for entry in reversed(shell.logged):
        if entry.kind.startswith("pve-"):
            removal = ours.remove(entry)
            assert removal is not None
            ended.setdefault(entry.kind, []).append(removal.outcome)
            if removal.outcome == "foreign":
                continue
        forget(shell, entry)
    return ended


def boot_twice(client: Client, layouts: Layouts, mode: Mode) -> None:
    """The volume of the mode in its VM, which Proxmox VE starts and stops twice."""
    volume = layouts.guest(mode)
    assert isinstance(volume, PveVolume)
    machine = VirtualMachine(client, volume.vmid)
    machine.set({"scsi0": format_drive(volume.volid, Attach(aio="threads"), "own"), "kvm": 0, "cpu": "max"})
    for _ in range(2):
        machine.start()
        machine.stop()


def test_layouts_are_storages_of_pve_on_regions_of_the_disk(client: Client, iso: Path, shell: NodeShell) -> None:
    modes = [HOST, PASSTHROUGH, LVM, RAW]
    with hypervisor(client, iso, shell).layouts(shell.log(RUN), [DISK], modes, span=SPAN) as layouts:
        assert layouts.disk == "sdb"
        assert layouts.by_mode["passthrough"] == layouts.device == BlockSource(LINK, "block", MIB, SPAN)
        lvm, raw = layouts.by_mode["lvm"], layouts.by_mode["raw"]
        assert isinstance(lvm, PveVolume)
        assert isinstance(raw, PveVolume)
        assert (lvm.volid, lvm.path) == (f"voh-{RUN}-lvm:vm-9000-voh-0", f"/dev/voh-{RUN}-lvm/vm-9000-voh-0")
        assert (raw.volid, raw.path) == (
            f"voh-{RUN}-ext4:9000/vm-9000-voh-0.raw",
            f"/mnt/pve/voh-{RUN}-ext4/images/9000/vm-9000-voh-0.raw",
        )
        assert (lvm.vmid, lvm.kind, raw.kind, lvm.size, raw.size) == (9000, "block", "file", SPAN, SPAN)
        kinds = {each["storage"]: each["type"] for each in client.get("storage")}
        assert (kinds[f"voh-{RUN}-lvm"], kinds[f"voh-{RUN}-ext4"]) == ("lvm", "dir")
    assert left(client) == []


def test_on_existing_storages_only_volumes_are_written(client: Client, iso: Path, shell: NodeShell) -> None:
    played = shell
    with hypervisor(client, iso, played).layouts(shell.log(RUN), [STORED], [HOST, THIN, QCOW2], span=SPAN) as layouts:
        assert layouts.disk == "sda"
        assert layouts.device.path == "/dev/pve/vm-9000-voh-0"
        thin, image = layouts.by_mode["thin"], layouts.by_mode["qcow2"]
        assert isinstance(thin, PveVolume)
        assert thin.volid == "local-lvm:vm-9000-voh-1"
        assert image.format == "qcow2"
        assert layouts.twin(QCOW2).format == "raw"
    assert left(client) == []
    assert not any(word in said for said in played.asked for word in ("sfdisk", "wipefs", "blkdiscard"))


@pytest.mark.parametrize("fails", ["sfdisk", "lvchange"])
def test_nothing_is_left_if_a_command_on_the_node_fails(
    client: Client, iso: Path, fails: str, shell: NodeShell
) -> None:
    played = shell
    played.fails = fails
    with (
        pytest.raises(HostError, match=fails),
        hypervisor(client, iso, played).layouts(shell.log(RUN), [DISK], [HOST, LVM, RAW], span=SPAN),
    ):
        pass
    assert left(client) == []


@pytest.mark.parametrize("call", ["POST .*/disks/lvm", "POST .*/disks/directory", "POST .*/content", "POST .*/upload"])
def test_nothing_is_left_if_a_task_of_pve_fails(
    *, node: Node, client: Client, iso: Path, call: str, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    monkeypatch.setattr("harness.features.proxmox.client.SETTLE_SECONDS", 0.0)
    node.faults.add(Fault("cut-before" if "content" in call else "task-fails", call))
    with (
        pytest.raises(HarnessError) as error,
        hypervisor(client, iso, shell).layouts(shell.log(RUN), [DISK], [HOST, LVM, RAW], span=SPAN),
    ):
        pass
    assert "left behind" not in error.value.message
    assert left(client) == []


def test_the_iso_is_uploaded_once_per_image(client: Client, iso: Path, shell: NodeShell) -> None:
    for _ in range(2):
        with hypervisor(client, iso, shell).layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN):
            pass
    isos = [each["volid"] for each in client.get("nodes/pve/storage/local/content", {"content": "iso"})]
    assert "local:iso/voh-0123456789abcdef.iso" in isos
    uploads = [each for each in client.get("nodes/pve/tasks", {"source": "all"}) if each["type"] == "imgcopy"]
    assert len(uploads) == 1


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        ({"scsi1": f"{LINK},aio=native"}, "VM 100 has it as scsi1"),
        ({"args": "-drive file=/dev/sdb,if=none"}, "VM 100 has it as args"),
    ],
    ids=["by its link", "in its arguments"],
)
def test_a_disk_that_a_vm_of_the_node_names_is_never_written_to(
    client: Client, iso: Path, owner: dict[str, str], said: str, shell: NodeShell
) -> None:
    client.task("post", "nodes/pve/qemu", {"vmid": 100, **owner}, is_done=lambda: False, deadline=30)
    played = shell
    with (
        pytest.raises(SafetyError, match=said),
        hypervisor(client, iso, played).layouts(shell.log(RUN), [DISK], [HOST, PASSTHROUGH], span=SPAN),
    ):
        pass
    assert not any(word in each for each in played.asked for word in ("sfdisk", "wipefs --all", "blkdiscard"))


def test_two_guests_never_share_a_disk(client: Client, iso: Path, shell: NodeShell) -> None:
    client.task("post", "nodes/pve/qemu", {"vmid": 100, "virtio0": LINK}, is_done=lambda: False, deadline=30)
    disk = GuestDisk("passthrough", BlockSource(LINK, "block", MIB, SPAN), Attach())
    with (
        pytest.raises(SafetyError, match="VM 100 has it as virtio0"),
        hypervisor(client, iso, shell).guest(shell.log(RUN), [disk]),
    ):
        pass
    assert left(client) == ["VM 100"]


def test_on_a_node_without_zfs_a_zvol_is_skipped_with_the_reason_and_the_other_modes_are_built(
    iso: Path, tmp_path: Path
) -> None:
    with serve(memory_node(cpus=4, zfs=False)) as serving, connected(serving) as client:
        shell = NodeShell(serving, tmp_path)
        ours = hypervisor(client, iso, shell)
        why = ours.unsupported_by_host(ZVOL, DISK)
        assert why == "ZFS is not installed there: apt-get install zfsutils-linux"
        others = [mode for mode in (HOST, LVM, RAW, ZVOL) if ours.unsupported_by_host(mode, DISK) is None]
        with ours.layouts(shell.log(RUN), [DISK], others, span=SPAN) as layouts:
            assert set(layouts.by_mode) == {"host", "lvm", "raw"}
        with pytest.raises(Unsupported, match="apt-get install zfsutils-linux"):
            ours.layouts(shell.log(RUN), [DISK], [HOST, ZVOL], span=SPAN).__enter__()
        assert left(client) == []


def test_on_a_node_with_zfs_a_zvol_is_built(client: Client, iso: Path, shell: NodeShell) -> None:
    ours = hypervisor(client, iso, shell, facts={"tool_zpool": "1", "tool_zfs": "1", "module_zfs": "1"})
    assert ours.unsupported_by_host(ZVOL, DISK) is None
    with ours.layouts(shell.log(RUN), [DISK], [HOST, ZVOL], span=SPAN) as layouts:
        assert layouts.by_mode["zvol"].path == f"/dev/zvol/voh-{RUN}-zfs/vm-9000-voh-0"
    assert left(client) == []


def test_passthrough_with_a_token_is_refused_before_anything_is_made(
    token: Client, iso: Path, shell: NodeShell
) -> None:
    ours = hypervisor(token, iso, shell)
    why = ours.unsupported_by_host(PASSTHROUGH, DISK)
    assert why is not None
    assert "only from root@pam with a password, not from root@pam!t1" in why
    assert ours.unsupported_by_host(HOST, DISK) is None
    assert ours.unsupported_by_host(LVM, DISK) is None
    with (
        pytest.raises(Unsupported, match="root@pam"),
        ours.layouts(shell.log(RUN), [DISK], [PASSTHROUGH], span=SPAN),
    ):
        pass
    disk = GuestDisk("passthrough", BlockSource(LINK, "block", MIB, SPAN), Attach())
    with pytest.raises(Unsupported, match="root@pam"), ours.guest(shell.log(RUN), [disk]):
        pass
    assert token.get("nodes/pve/tasks", {"source": "all"}) == []
    assert left(token) == []


def test_a_token_may_create_volumes(token: Client, iso: Path, shell: NodeShell) -> None:
    with hypervisor(token, iso, shell).layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts:
        assert isinstance(layouts.by_mode["thin"], PveVolume)
    assert left(token) == []


@pytest.mark.parametrize(
    ("mode", "disk", "said"),
    [
        (Mode("m", Md(level=0, disks=2), Attach()), DISK, "Proxmox VE does not support md arrays"),
        (Mode("m", Device(), Attach(bus="nvme")), DISK, "has no bus nvme"),
        (Mode("m", Qcow2(cluster_size=2 * MIB), Attach()), DISK, "clusters of 64 KiB"),
        (Mode("m", Device(), Attach(queues=5)), DISK, "needs as many vCPUs, but the host has 4 CPUs"),
        (PASSTHROUGH, STORED, "storage local-lvm, local is not a device; allowed: lvm-thin, qcow2"),
        (LVM, STORED, "no storage for lvm: add one to storages of disk vmstore in the lab file"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_unsupported_mode_is_skipped_with_the_reason(
    *, client: Client, iso: Path, mode: Mode, disk: DiskById | DiskByStorage, said: str, shell: NodeShell
) -> None:
    assert said in (hypervisor(client, iso, shell).unsupported_by_host(mode, disk) or "")


def test_a_storage_of_another_type_is_refused_by_name(client: Client, iso: Path, shell: NodeShell) -> None:
    disk = DiskByStorage("vmstore", {"lvm": "local-lvm"})
    with (
        pytest.raises(
            Unsupported, match="storage local-lvm is of type lvmthin, whose volumes do not have the layout lvm"
        ),
        hypervisor(client, iso, shell).layouts(shell.log(RUN), [disk], [HOST, LVM], span=SPAN),
    ):
        pass
    assert left(client) == []


def test_a_guest_that_does_not_answer_is_reported_and_removed(
    client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    monkeypatch.setattr("harness.features.proxmox.machine.BOOT_SECONDS", {"tcg": 2.0})
    (iso.parent / "key").write_text("no key")
    ours = hypervisor(client, iso, shell)
    with (
        pytest.raises(GuestError, match="VM 9000 did not answer over SSH"),
        ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts,
        ours.guest(shell.log(RUN), [GuestDisk("thin", layouts.guest(THIN), Attach())]),
    ):
        pass
    assert left(client) == []


def test_a_guest_has_its_disks_as_requested(
    client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    seen: dict[str, str] = {}

    def look(*_: object) -> None:
        seen.update(client.get("nodes/pve/qemu/9000/config"))
        raise GuestError("that is enough")

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", look)
    ours = hypervisor(client, iso, shell)
    attach = Attach(cache="directsync", aio="io_uring", queues=3)
    passed = GuestDisk("passthrough", BlockSource(LINK, "block", MIB, SPAN), attach)
    with (
        pytest.raises(GuestError, match="that is enough"),
        ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts,
        ours.guest(shell.log(RUN), [passed, GuestDisk("thin", layouts.guest(THIN), Attach(bus="virtio-blk"))]),
    ):
        pass
    assert seen["scsi0"].startswith(f"{LINK},aio=io_uring,backup=0,cache=directsync,detect_zeroes=0")
    assert seen["virtio0"].startswith("local-lvm:vm-9000-voh-1,aio=native,backup=0,cache=none")
    assert {"machine": "q35", "cpu": "max", "scsihw": "virtio-scsi-single", "kvm": 0}.items() <= seen.items()
    # The guest's kernel uses no more queues than it has CPUs.
    assert {"cores": 3}.items() <= seen.items()
    assert left(client) == []


@pytest.mark.parametrize("name", ["study-1", "topology-of-pve", "machine", "cpu-max", "one-place", "numa", "hugepages"])
def test_a_vm_has_the_requested_size_and_qemus_arguments_show_it(
    name: str, client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    own = {"topology-of-pve": GuestOptions(sockets=2, cores=1), "machine": GuestOptions(machine="pc-q35-10.0")}
    size = own.get(name) or GUEST_OPTIONS[name]
    shell.prints["/sys/devices/system/cpu/online"] = "cpus 0-3\nnodes 0\n"
    mode = replace(THIN, guest=size)
    found: list[Effective] = []

    def look(*_: object) -> None:
        command = nodeshell.run(shell.node, ["qm", "showcmd", "9000"]).text.strip()
        assert ("--cpu-list --all-tasks 2-3 /usr/bin/kvm" in command) == (name == "one-place")
        assert ("mem-path=/run/hugepages/kvm/2048kB" in command) == (name == "hugepages")
        config = client.get("nodes/pve/qemu/9000/config")
        found.append(parse_size(shlex.split(command)).merged(Effective(machine=config["machine"])))
        raise GuestError("that is enough")

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", look)
    ours = hypervisor(client, iso, shell)
    assert ours.unsupported_by_host(mode, STORED) is None
    with (
        pytest.raises(GuestError, match="that is enough"),
        ours.layouts(shell.log(RUN), [STORED], [HOST, mode], span=SPAN) as layouts,
        ours.guest(shell.log(RUN), [GuestDisk("thin", layouts.guest(mode), Attach())], size),
    ):
        pass
    expected = dict(size.expected(iothreads=1).settings())
    read_back = dict(found[-1].settings())
    of_qemu = {key: value for key, value in expected.items() if key.startswith("qemu_") or key == "machine"}
    assert of_qemu.items() <= read_back.items()
    assert left(client) == []


def test_a_size_that_pve_does_not_offer_is_skipped_with_the_remedy(
    client: Client, token: Client, iso: Path, shell: NodeShell
) -> None:
    ours, theirs = hypervisor(client, iso, shell), hypervisor(token, iso, shell)
    shell.prints["/sys/devices/system/cpu/online"] = "cpus 0-3\nnodes 0\n"
    pinned = replace(THIN, guest=GUEST_OPTIONS["one-place"])
    assert ours.unsupported_by_host(pinned, STORED) is None
    assert "pin_vcpus: Proxmox VE accepts this only from root@pam" in (theirs.unsupported_by_host(pinned, STORED) or "")
    large = replace(THIN, guest=GuestOptions(vcpus=5))
    assert "needs 5 vCPUs, but the host has 4 CPUs" in (ours.unsupported_by_host(large, STORED) or "")


NO_FEATURES = ""
"""The device's sysfs shows no features of virtio."""


def guest_with(serial: str, *, queues: int = 1, write_cache: str = "write back") -> PlayedShell:
    """A guest whose only disk has this serial number."""
    sizes = ["512", "512", "256", "0", "0", str(queues), "256"]
    attributes = ["none", "0", write_cache, *sizes, "sd", "virtio_scsi"]
    return PlayedShell({"/sys/block/*": "\t".join(["sda", serial, *attributes, NO_FEATURES])}, name="guest on node1")


def test_a_node_that_does_not_show_qemus_threads_is_noted_and_measured_without_them(
    client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    monkeypatch.setattr("harness.features.proxmox.backend.log_in", lambda *_: guest_with("thin"))
    notes: list[str] = []
    ours = hypervisor(client, iso, shell, events=Events(lambda event: notes.append(str(event))))
    with (
        ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts,
        ours.guest(shell.log(RUN), [GuestDisk("thin", layouts.guest(THIN), Attach())]) as guest,
    ):
        assert guest.device("thin") == "/dev/sda"
        assert guest.threads is None
    assert any("CPU time is not reported per QEMU thread: host node1: " in note for note in notes)
    assert left(client) == []


def login_key(iso: Path) -> None:
    """The private key of virt-overhead. Its public half is in no file."""
    private = iso.parent / "key"
    private.touch(mode=0o600)
    private.write_text(create_key()[0])


def test_a_guest_may_be_a_clone_of_a_template(client: Client, iso: Path, shell: NodeShell) -> None:
    template = {"vmid": 100, "name": "mine", "scsihw": "virtio-scsi-single", "scsi0": "local-lvm:1"}
    made = {**template, "ide2": "local:cloudinit", "boot": "order=scsi0"}
    client.task("post", "nodes/pve/qemu", made, is_done=lambda: False, deadline=30)
    client.task("post", "nodes/pve/qemu/100/template", {}, is_done=lambda: False, deadline=30)
    before = left(client)
    login_key(iso)
    rules = replace(RULES, template=100, network="cloud-init", address="192.0.2.5/24")
    with hypervisor(client, iso, shell, rules).layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts:
        config = client.get("nodes/pve/qemu/9000/config")
        assert (config["name"], config["ipconfig0"], config["ciuser"]) == (f"voh-{RUN}", "ip=192.0.2.5/24", "root")
        assert {"voh", f"voh-{RUN}"} == set(config["tags"].split(";"))
        assert config["sshkeys"].startswith("ssh-ed25519%20AAAA")
        thin = layouts.by_mode["thin"]
        assert isinstance(thin, PveVolume)
        assert thin.vmid == 9000
        logged = {str(entry.record.get("volid", entry.kind)): entry.record for entry in shell.logged}
        assert set(logged) == {
            "pve-vm",
            "local-lvm:vm-9000-disk-0",
            "local-lvm:vm-9000-voh-0",
            "local-lvm:vm-9000-voh-1",
        }
        assert logged["pve-vm"]["uuid"] in config["smbios1"]
    assert left(client) == before
    assert shell.logged == []


def test_a_clone_of_the_template_is_looked_at_once_before_anything_is_made_on_a_storage(
    client: Client, iso: Path, shell: NodeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"vmid": 100, "name": "mine", "scsi0": "local-lvm:1", "boot": "order=scsi0"}
    client.task("post", "nodes/pve/qemu", made, is_done=lambda: False, deadline=30)
    client.task("post", "nodes/pve/qemu/100/template", {}, is_done=lambda: False, deadline=30)
    login_key(iso)
    before = left(client)
    clone = PlayedShell({"modprobe": "user=0\nfio=\nos=debian\nvirtio_scsi=yes\n"}, name="guest on node1")
    logins: list[list[str]] = []

    def log_in(*_: object) -> PlayedShell:
        logins.append(sorted(client.get("nodes/pve/qemu/9000/config")))
        return clone

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", log_in)
    ours = hypervisor(client, iso, shell, replace(RULES, template=100))
    whys = {ours.unsupported_by_guest_os(shell.log(RUN), mode) for mode in (THIN, QCOW2)}
    assert whys == {"in a clone of the template 100, fio is not installed: apt-get install fio in the template"}
    assert len(logins) == 1
    assert [key for key in logins[0] if key.startswith("scsi") and key != "scsihw"] == ["scsi0"], "its own disk only"
    assert left(client) == before
    assert shell.logged == []
    assert hypervisor(client, iso, shell).unsupported_by_guest_os(shell.log(RUN), THIN) is None, (
        "our own image has everything"
    )


def test_a_linked_clone_of_a_template_on_a_directory_is_removed_and_the_template_stays(
    client: Client, iso: Path, shell: NodeShell
) -> None:
    # Its volume has its base in its name: local:100/base-100-disk-0.qcow2/9000/vm-9000-disk-0.qcow2.
    made = {"vmid": 100, "name": "mine", "scsi0": "local:1,format=qcow2", "boot": "order=scsi0"}
    client.task("post", "nodes/pve/qemu", made, is_done=lambda: False, deadline=30)
    client.task("post", "nodes/pve/qemu/100/template", {}, is_done=lambda: False, deadline=30)
    login_key(iso)
    before = left(client)
    ours = hypervisor(client, iso, shell, replace(RULES, template=100))
    with ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN):
        disk = client.get("nodes/pve/qemu/9000/config")["scsi0"].partition(",")[0]
        assert "/9000/vm-9000-disk-0.qcow2" in disk
        assert disk in {entry.record.get("volid") for entry in shell.logged}
    assert left(client) == before
    assert shell.logged == []


def test_a_killed_run_with_a_clone_is_reaped_and_the_template_stays(
    client: Client, iso: Path, shell: NodeShell
) -> None:
    made = {"vmid": 100, "name": "mine", "scsi0": "local-lvm:1", "boot": "order=scsi0"}
    client.task("post", "nodes/pve/qemu", made, is_done=lambda: False, deadline=30)
    client.task("post", "nodes/pve/qemu/100/template", {}, is_done=lambda: False, deadline=30)
    login_key(iso)
    before = left(client)
    ours = hypervisor(client, iso, shell, replace(RULES, template=100))
    held = ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN)
    held.__enter__()
    assert reaped(ours, shell) == {"pve-volume": ["removed"] * 3, "pve-vm": ["removed"]}
    assert left(client) == before
    with suppress(HarnessError):
        held.__exit__(None, None, None)


def test_thin_volumes_on_a_pool_of_somebody_else_leave_everything_there(
    node: Node, client: Client, iso: Path, shell: NodeShell
) -> None:
    node.store.storages["fast"] = Storage(
        "fast", "lvmthin", frozenset({"images"}), 1 << 40, vgname="vg1", thinpool="tp", options={"nodes": "pve"}
    )
    client.task("post", "nodes/pve/qemu", {"vmid": 100, "scsi0": "fast:4"}, is_done=lambda: False, deadline=30)
    before, entry = client.get("nodes/pve/storage/fast/content"), client.get("storage/fast")
    stored = DiskByStorage("fast", {"lvm-thin": "fast"})
    ours = hypervisor(client, iso, shell)
    node.faults.add(Fault("storage-locked", "^fast$"))
    with ours.layouts(shell.log(RUN), [stored], [HOST, THIN], span=SPAN) as layouts:
        assert layouts.by_mode["thin"].path == "/dev/vg1/vm-9000-voh-1"
        volids = {each["volid"] for each in client.get("nodes/pve/storage/fast/content")}
        assert volids == {"fast:vm-100-disk-0", "fast:vm-9000-voh-0", "fast:vm-9000-voh-1"}
        node.faults.add(Fault("storage-locked", "^fast$"))
    assert client.get("nodes/pve/storage/fast/content") == before
    assert client.get("storage/fast") == entry
    assert node.faults.listing() == []
    assert shell.logged == []


def test_how_a_disk_is_attached_is_read_from_pve_qemu_and_guest(node: Node, client: Client, shell: NodeShell) -> None:
    rules = replace(RULES, kvm=True)
    with create_vm(client, shell.log(RUN), rules, build_shell_parameters(rules, "local:iso/mini.iso", 2)) as (
        machine,
        _,
    ):
        _read_back(node, machine)
        machine.stop()
        machine.free(["scsi0"], "local-lvm:vm-9000-disk-0")
    assert left(client) == []


def test_a_drive_that_the_vm_no_longer_has_is_named_with_the_vm_and_its_host(client: Client, shell: NodeShell) -> None:
    disk = GuestDisk("thin", BlockSource("/dev/pve/vm-9000-disk-0", "block", 0, SPAN), Attach())
    with create_vm(client, shell.log(RUN), RULES, build_shell_parameters(RULES, "local:iso/mini.iso", 2)) as (
        machine,
        _,
    ):
        up = Booted(machine, cast("SshRunner", guest_with("thin", queues=1, write_cache="write through")), 1.0)
        guest = ProxmoxGuest(up, threads=None, node=PlayedShell({}), disks=[disk], keys={"thin": "scsi0"})
        with pytest.raises(GuestError, match=r"^host node1: VM 9000 no longer has the drive scsi0\n"):
            guest.effective("thin")


def _read_back(node: Node, machine: VirtualMachine) -> None:
    attach = Attach(bus="virtio-scsi", cache="directsync", aio="io_uring", discard="unmap", queues=2)
    machine.set({"scsi0": format_drive("local-lvm:1", attach, "thin")})
    machine.start()
    command = nodeshell.run(node, ["qm", "showcmd", str(machine.vmid)]).text.strip()
    disk = GuestDisk("thin", BlockSource("/dev/pve/vm-9000-disk-0", "block", 0, SPAN), attach)
    played = PlayedShell({"qm showcmd": f"command\t{command}\n"})
    up = Booted(machine, cast("SshRunner", guest_with("thin", queues=2, write_cache="write through")), 1.0)
    guest = ProxmoxGuest(up, threads=None, node=played, disks=[disk], keys={"thin": "scsi0"})
    effective = guest.effective("thin")
    check = configuration_check(attach, effective)
    assert check is not None
    assert check.ok, check.detail
    assert effective.pve_drive == (
        "scsi0: local-lvm:vm-9000-disk-0,aio=io_uring,backup=0,cache=directsync,detect_zeroes=0,discard=on,"
        "iothread=1,queues=2,serial=thin,size=1G"
    )
    assert effective.qemu_discard == "unmap"
    assert guest.device("thin") == "/dev/sda"
    assert guest.transferred(["thin"])["thin"] is not None
    played.prints["qm showcmd"] = command.replace('"aio":"io_uring"', '"aio":"threads"').join(["command\t", "\n"])
    check = configuration_check(attach, guest.effective("thin"))
    assert check is not None
    assert "requested qemu_aio = io_uring, it is threads" in check.detail
    played.prints["qm showcmd"] = command.replace('"aio":"io_uring"', '"aio":9').join(["command\t", "\n"])
    with pytest.raises(GuestError, match="how QEMU serves the drive scsi0 cannot be read: qemu_aio = 9: Input should"):
        guest.effective("thin")


def test_what_a_dead_client_left_is_removed_by_the_log_and_nothing_else(
    client: Client, iso: Path, shell: NodeShell
) -> None:
    ours = hypervisor(client, iso, shell)
    # The client dies between making the VM and starting it: nothing of its cleaning up is ever called.
    held = ours.layouts(shell.log(RUN), [DISK], [HOST, LVM, RAW], span=SPAN)
    held.__enter__()
    client.task("post", "nodes/pve/qemu", {"vmid": 100, "name": "voh-mine"}, is_done=lambda: False, deadline=30)
    assert left(client) != ["VM 100"]
    removed = reaped(ours, shell)
    assert removed == {
        "pve-volume": ["removed", "removed"],
        "pve-store": ["removed", "removed"],
        "pve-vm": ["removed"],
    }
    assert left(client) == ["VM 100"]
    assert shell.logged == []
