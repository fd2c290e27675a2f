"""The executor that really runs guests, as far as its command lines and sockets show it."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from pve_double.__main__ import main
from pve_double.errors import PveError
from pve_double.executor import choose, guest, sockets
from pve_double.executor.arguments import runnable, tap_commands
from pve_double.executor.base import GuestFailed, GuestHungUp, GuestSilent, QemuFailed
from pve_double.executor.commands import Done, Shell
from pve_double.executor.node_storage import TRACELESS
from pve_double.executor.qemu import MARK, QemuExecutor
from pve_double.qemu import command, network
from pve_double.server import serve
from pve_double.state import Node, Settings, make_node, recorded_storages
from pve_double.storage.disks import Disk, Pool
from pve_double.tasks import TaskLog
from pve_double.testing import QEMU, Client, memory_node

LVM = f"--config {TRACELESS}"
SHELL = Path(__file__).parents[1] / "node"
GUEST = {
    "machine": "q35",
    "cpu": "host",
    "cores": "1",
    "memory": "512",
    "balloon": "0",
    "scsihw": "virtio-scsi-single",
    "agent": "enabled=1",
    "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
    "serial0": "socket",
    "vga": "serial0",
    "ide2": "local:iso/mini.iso,media=cdrom",
    "boot": "order=ide2",
    "scsi0": "/dev/disk/by-id/scsi-PVETEST_disk1,aio=native,cache=none,iothread=1,serial=optane",
}
LOCAL, LOCAL_LVM = recorded_storages()
DISK = Disk("/dev/nullb0", 1024**3, by_id="/dev/disk/by-id/lab-sim_optane")


@dataclass
class Recorder:
    """Commands that are kept, not run; `answers` by the first word of a command, `fails` those that end with 1."""

    answers: dict[str, str] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    ran: list[list[str]] = field(default_factory=list)
    path: Path = Path("/nowhere")

    def run(
        self, argv: Sequence[str], *, deadline: float = 0, stdin: IO[bytes] | None = None, check: bool = True
    ) -> Done:
        del deadline, stdin
        self.ran.append(list(argv))
        failed = self.fails.get(argv[0])
        if failed is not None and check:
            raise PveError(failed)
        return Done(0 if failed is None else 1, self.answers.get(argv[0], ""), failed or "")

    def socket(self, path: str) -> Path:
        del path
        return self.path

    def close(self) -> None: ...

    @property
    def lines(self) -> list[str]:
        return [" ".join(argv) for argv in self.ran]


def executor(commands: Recorder) -> QemuExecutor:
    return QemuExecutor(commands, bridges=("vmbr0",), kvm=True)


def built() -> list[str]:
    return command.build(memory_node(), 100, GUEST, TaskLog())


def after(words: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(words) if name == option]


def test_the_command_that_is_run_has_pves_drives_word_for_word() -> None:
    shown, run = built(), runnable(built(), kvm=True)
    assert [each.replace(',"locking":"off"', "") for each in after(run, "-blockdev")] == after(shown, "-blockdev")
    assert after(run, "-object") == after(shown, "-object")
    drives = [each for each in after(shown, "-device") if "drive" in each or "virtioscsi" in each]
    assert drives == [each for each in after(run, "-device") if "drive" in each or "virtioscsi" in each]
    assert "iothread,id=iothread-virtioscsi0" in after(run, "-object")


def test_a_disk_is_locked_against_nobody_as_with_pves_qemu() -> None:
    for text in after(runnable(built(), kvm=True), "-blockdev"):
        assert json.loads(text)["file"]["file"]["locking"] == "off"


def test_a_guest_that_does_not_see_kvm_gets_pves_flag() -> None:
    hidden = command.build(memory_node(), 100, GUEST | {"cpu": "host,hidden=1"}, TaskLog())
    assert after(hidden, "-cpu") == ["host,kvm=off,+kvm_pv_eoi,+kvm_pv_unhalt"]


def test_the_command_that_is_run_needs_nothing_of_pve_around_it() -> None:
    run = runnable(built(), kvm=True)
    assert run[0] == "qemu-system-x86_64"
    assert not {"-id", "-no-shutdown", "-readconfig"} & set(run)
    assert not [word for word in run if "qmeventd" in word or "pve-bridge" in word or "splash" in word]
    assert after(run, "-machine") == ["hpet=off,type=q35,accel=kvm"]
    assert after(run, "-cpu") == ["host,+kvm_pv_eoi,+kvm_pv_unhalt"]
    assert after(run, "-netdev") == ["tap,id=net0,ifname=tap100i0,script=no,downscript=no"]
    assert "pci-bridge,id=pci.0,bus=pcidmi,addr=0x1,chassis_nr=11" in after(run, "-device")
    assert after(run, "-pidfile") == ["/var/run/qemu-server/100.pid"]


def with_options(**options: str) -> list[str]:
    return command.build(memory_node(), 100, GUEST | options, TaskLog())


def test_an_affinity_comes_before_the_command_and_goes_to_the_node() -> None:
    shown = with_options(affinity="0-1")
    assert shown[:5] == ["/usr/bin/taskset", "--cpu-list", "--all-tasks", "0-1", "/usr/bin/kvm"]
    assert runnable(shown, kvm=True) == runnable(built(), kvm=True)


def test_the_memory_of_a_vm_is_on_the_nodes_that_it_names() -> None:
    shown = with_options(memory="512", numa="1", numa0="cpus=0,hostnodes=0,memory=512,policy=bind")
    assert "memory-backend-ram,id=ram-node0,size=512M,host-nodes=0,policy=bind" in after(shown, "-object")
    assert after(shown, "-numa") == ["node,nodeid=0,cpus=0,memdev=ram-node0"]
    by_socket = with_options(memory="512", numa="1", sockets="2", cores="1")
    assert after(by_socket, "-numa") == [
        "node,nodeid=0,cpus=0,memdev=ram-node0",
        "node,nodeid=1,cpus=1,memdev=ram-node1",
    ]
    assert "memory-backend-ram,id=ram-node1,size=256M" in after(by_socket, "-object")


def test_huge_pages_back_the_memory() -> None:
    numa0 = "cpus=0,hostnodes=0,memory=512,policy=bind"
    (backend,) = [
        each
        for each in after(with_options(memory="512", numa="1", numa0=numa0, hugepages="2"), "-object")
        if "ram-node0" in each
    ]
    assert backend == (
        "memory-backend-file,id=ram-node0,size=512M,mem-path=/run/hugepages/kvm/2048kB,share=on,prealloc=yes"
        ",host-nodes=0,policy=bind"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hugepages": "2"}, "numa needs to be enabled to use hugepages"),
        ({"numa": "1", "numa0": "cpus=0"}, "missing NUMA node0 memory value"),
        ({"numa": "1", "numa0": "cpus=0,memory=256"}, "total memory for NUMA nodes must be equal to vm static memory"),
        ({"numa": "1", "numa0": "cpus=0,memory=512,hostnodes=0"}, "you need to define a policy for hostnode 0"),
        ({"numa": "1", "numa0": "cpus=0,memory=512,hostnodes=1,policy=bind"}, "host NUMA node1 doesn't exist"),
        ({"numa": "1", "numa0": "cpus=0,memory=512", "hugepages": "2"}, "numa hostnodes need to be defined"),
        ({"numa": "1", "hugepages": "1024"}, "Memory size 512 is not a multiple of the requested hugepages size 1024"),
    ],
)
def test_memory_that_pve_refuses_does_not_start(options: dict[str, str], said: str) -> None:
    with pytest.raises(PveError, match=said):
        with_options(memory="512", **options)


def test_without_kvm_the_guest_is_emulated() -> None:
    run = runnable(built(), kvm=False)
    assert after(run, "-machine") == ["hpet=off,type=q35,accel=tcg"]
    assert after(run, "-cpu") == ["max"]


def test_a_card_is_made_and_put_on_its_bridge_before_the_start() -> None:
    assert tap_commands(100, network.cards(GUEST)) == [
        ["ip", "tuntap", "add", "dev", "tap100i0", "mode", "tap"],
        ["ip", "link", "set", "tap100i0", "master", "vmbr0"],
        ["ip", "link", "set", "tap100i0", "up"],
    ]


def test_a_guest_is_started_found_alive_and_ended() -> None:
    commands = Recorder({"cat": "4711\n"})
    runs = executor(commands)
    assert runs.start(100, GUEST, built()) == 4711
    assert commands.ran[3][-len(runnable(built(), kvm=True)) :] == runnable(built(), kvm=True)
    assert "taskset --cpu-list" in commands.lines[3]
    commands.answers["cat"] = "qemu-system-x86\n"
    assert runs.alive(100)
    commands.answers["cat"] = ""
    assert not runs.alive(100)
    assert not runs.alive(100)
    assert "tap" in commands.lines[-1]


def test_what_qemu_prints_when_it_does_not_start_is_told() -> None:
    commands = Recorder(fails={"sh": "Could not open '/dev/x': No such file or directory"})
    with pytest.raises(QemuFailed, match="Could not open"):
        executor(commands).start(100, GUEST, built())


@pytest.mark.parametrize(
    ("storage", "volname", "expected"),
    [
        (LOCAL_LVM, "vm-100-disk-0", f"lvcreate {LVM} --virtualsize 1048576b --name vm-100-disk-0 --thinpool pve/data"),
        (
            Pool("lvm", "voh-x", DISK).storage(),
            "vm-100-disk-0",
            f"lvcreate {LVM} --yes --wipesignatures y --size 1048576b --name vm-100-disk-0 voh-x",
        ),
        (
            LOCAL,
            "100/vm-100-disk-0.qcow2",
            "qemu-img create -q -o preallocation=metadata -f qcow2 /var/lib/vz/images/100/vm-100-disk-0.qcow2 1048576",
        ),
        (
            LOCAL,
            "100/vm-100-disk-0.raw",
            "qemu-img create -q -o preallocation=off -f raw /var/lib/vz/images/100/vm-100-disk-0.raw 1048576",
        ),
    ],
)
def test_a_volume_is_made_as_its_plugin_makes_it(storage: Any, volname: str, expected: str) -> None:
    commands = Recorder()
    executor(commands).create(storage, volname, 1024**2)
    assert commands.lines[-1] == expected


def test_a_stop_deactivates_thick_volumes_as_the_plugin_does() -> None:
    commands = Recorder()
    storage, runs = Pool("lvm", "voh-x", DISK).storage(), executor(commands)
    runs.activate(storage, "vm-100-disk-0")
    runs.deactivate(storage, "vm-100-disk-0")
    path = "/dev/voh-x/vm-100-disk-0"
    assert commands.lines == [
        f"lvchange {LVM} -aey {path}",
        f"lvchange {LVM} --refresh {path}",
        f"test -b {path}",
        f"lvchange {LVM} -aln {path}",
    ]


def test_a_volume_that_cannot_be_made_is_told_with_the_commands_words() -> None:
    commands = Recorder(fails={"lvcreate": "Insufficient free space"})
    with pytest.raises(PveError, match="lvcreate error: Insufficient free space"):
        executor(commands).create(LOCAL_LVM, "vm-100-disk-0", 1024**2)


def test_pools_are_made_of_a_disk_and_undone() -> None:
    commands = Recorder({"sh": "/dev/nullb0p1\n"})
    runs = executor(commands)
    runs.make("lvmthin", "voh-thin", DISK, filesystem="ext4")
    runs.make("directory", "voh-ext4", DISK, filesystem="ext4")
    runs.unmake("directory", "voh-ext4", DISK, wipe=True)
    assert commands.lines[:3] == [
        f"pvcreate {LVM} --metadatasize 250k --yes -ff /dev/nullb0",
        f"vgcreate {LVM} --setautoactivation n voh-thin /dev/nullb0",
        f"lvcreate {LVM} --type thin-pool --extents 95%FREE --name voh-thin voh-thin",
    ]
    assert "mkfs.ext4 -q -F /dev/nullb0p1" in commands.lines
    assert "mount /dev/nullb0p1 /mnt/pve/voh-ext4" in commands.lines
    assert "umount /mnt/pve/voh-ext4" in commands.lines
    assert "wipefs" in commands.lines[-1]


def test_a_partition_that_only_the_host_knows_can_be_used() -> None:
    commands = Recorder({"sh": "/dev/nullb0p2\n536870912\n"})
    node: Node = make_node("root@pam", "x" * 8, executor(commands), Settings(), disks=[DISK], files={})
    assert node.disks.find("/dev/disk/by-partlabel/voh").size_bytes == 536870912
    commands.answers["sh"] = ""
    assert not node.disks.exists("/dev/disk/by-partlabel/none")


def test_a_host_with_a_pve_of_its_own_is_not_touched() -> None:
    commands = Recorder()
    executor(commands).prepare(local_lvm_gib=1)
    first, script = (argv[2] for argv in commands.ran)
    assert first.splitlines()[2] == '[ -e "$mark" ] || exit 0'
    assert script.index("/etc/pve") < script.index("exit 1") < script.index("mkdir /var/lib/vz")
    assert [argv[-1] for argv in commands.ran] == [MARK, MARK]
    executor(commands).undo()
    assert commands.ran[-1] == commands.ran[0]


def test_guests_do_not_run_on_this_machine_by_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever becomes of the check, this test must not be what tries it out.
    monkeypatch.setattr(choose, "QemuExecutor", None)
    with pytest.raises(SystemExit, match="--executor qemu needs --ssh"):
        main(["--password", "x", "--executor", "qemu"])
    with pytest.raises(ValueError, match="leads to the guests' host"):
        Shell([])


@contextlib.contextmanager
def listening(path: Path, answer: Callable[[dict[str, Any]], dict[str, Any]], greeting: Any = None) -> Iterator[None]:
    """Something that answers JSON lines on a UNIX socket, one connection after the other."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, connection.makefile("rw") as lines:
                    if greeting is not None:
                        print(json.dumps(greeting), file=lines, flush=True)
                    for line in lines:
                        print(json.dumps(answer(json.loads(line))), file=lines, flush=True)

    thread = threading.Thread(target=serve_all, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def agents_answer(asked: dict[str, Any]) -> dict[str, Any]:
    arguments = asked.get("arguments", {})
    answers: dict[str, Any] = {
        "guest-sync": arguments.get("id"),
        "guest-exec": {"pid": 300},
        "guest-exec-status": {
            "exited": True,
            "exitcode": 0,
            "out-data": base64.b64encode(b"hello\n").decode(),
        },
        "guest-ping": {},
        "guest-file-open": 7,
        "guest-file-seek": {"position": 2, "eof": False},
        "guest-file-read": {"count": 3, "buf-b64": base64.b64encode(b"\xff\n1").decode(), "eof": False},
        "guest-file-close": {},
    }
    if arguments.get("path") == "/nonexistent":
        return {"error": {"class": "GenericError", "desc": "Failed to execute child process \u201c/nonexistent\u201d"}}
    if asked["execute"] not in answers:
        return {"error": {"class": "CommandNotFound", "desc": "The command has not been found"}}
    return {"return": answers[asked["execute"]]}


def test_the_agents_protocol_becomes_the_apis_answers(tmp_path: Path) -> None:
    path = tmp_path / "100.qga"
    with listening(path, agents_answer):
        assert guest.ask(path, "guest-ping", {}) == {}
        assert guest.ask(path, "guest-exec", {"path": "sh", "input-data": "x"}) == {"pid": 300}
        ended = guest.ask(path, "guest-exec-status", {"pid": 300})
        assert ended == {"exited": 1, "exitcode": 0, "out-data": "hello\n", "out-truncated": 0}
        part = guest.ask(path, "guest-file-read", {"file": "/x", "offset": 2, "count": 3})
        assert part == {"content": "\xff\n1", "bytes-read": 3, "truncated": 1}
        with pytest.raises(GuestHungUp):
            guest.ask(path, "guest-exec", {"path": "/nonexistent"})
        with pytest.raises(GuestFailed, match="not been found"):
            guest.ask(path, "guest-bogus", {})
    with pytest.raises(GuestSilent):
        guest.ask(path, "guest-ping", {})


def monitors_answer(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["execute"] == "query-blockstats":
        return {"return": [{"node-name": "drive-scsi0", "stats": {"rd_bytes": 4096}}, {"node-name": "x", "stats": {}}]}
    if asked["execute"] == "human-monitor-command":
        return {"return": "VM status: running\r\n"}
    return {"return": {}} if asked["execute"] == "qmp_capabilities" else {"error": {"desc": "no such command"}}


def test_the_monitor_is_asked_for_counters_and_for_its_own_words(tmp_path: Path) -> None:
    path = tmp_path / "100.qmp"
    runs = executor(Recorder(path=path))
    with listening(path, monitors_answer, greeting={"QMP": {}}):
        assert runs.block_statistics(100) == {"scsi0": {"rd_bytes": 4096}}
        assert runs.monitor(100, "info status") == "VM status: running\r\n"
        with pytest.raises(sockets.Refused):
            sockets.qmp(path, ("bogus", {}))
        with pytest.raises(PveError, match="VM 100 qmp command 'system_reset' failed - no such command"):
            runs.reset(100)


def test_commands_are_quoted_once_behind_their_prefix() -> None:
    shell = Shell(["sh", "-c"])
    assert shell.run(["printf", "%s", "a b; c"]).stdout == "a b; c"
    with pytest.raises(PveError, match="command 'false' failed: exit code 1"):
        shell.run(["false"])
    assert shell.run(["false"], check=False).status == 1
    shell.close()


def node_command(serving_port: int, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PVE_DOUBLE_NODE": f"http://127.0.0.1:{serving_port}"}
    return subprocess.run(
        [str(SHELL / argv[0]), *argv[1:]], capture_output=True, text=True, env=environment, check=False, timeout=600
    )


def test_the_nodes_own_commands_ask_the_double() -> None:
    with serve(memory_node()) as serving:
        root = Client(serving)
        root.post(QEMU, vmid=100, memory=128, scsihw="virtio-scsi-single", scsi0="local-lvm:1,aio=native,iothread=1")
        shown = node_command(serving.node_port, "qm", "showcmd", "100", "--pretty")
        assert shown.returncode == 0
        assert shown.stdout.splitlines()[0] == "/usr/bin/kvm \\"
        assert '"aio":"native"' in shown.stdout
        assert "  -object iothread,id=iothread-virtioscsi0 \\" in shown.stdout.splitlines()
        path = node_command(serving.node_port, "pvesm", "path", "local-lvm:vm-100-disk-0")
        assert path.stdout == "/dev/pve/vm-100-disk-0\n"
        assert node_command(serving.node_port, "pveversion").stdout.startswith("pve-manager/9.2.11/")
        missing = node_command(serving.node_port, "qm", "showcmd", "101")
        assert (missing.returncode, missing.stderr) == (
            255,
            "Configuration file 'nodes/pve/qemu-server/101.conf' does not exist\n",
        )
