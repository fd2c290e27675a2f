"""The recorded calls as requests, in their order, with what was done between them.

The recordings keep a call's name, its caller and its outcome. What was asked is told here, after the names, the task
logs and the configurations that the next calls answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NODE = "nodes/pve"
QEMU = f"{NODE}/qemu"
DISK = "/dev/disk/by-id/scsi-PVETEST_disk1"
KEY = "ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIGJb3Vt2nN1b0n8p2m0mYk0k7m5p4Q1oU1tV5f2l3abc%20user%40host%2Bx"
PLAIN = {"kvm": 0, "memory": 128}


@dataclass(frozen=True, slots=True)
class Step:
    """One call. `name` is the recording's, empty for what was done between recorded calls.

    `path` may hold {NAME}: the pid that the last call of that name answered. With `guest` a guest's agent is waited for
    first; `fault` happens to this call.
    """

    name: str
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    who: str = "root@pam"
    guest: int = 0
    upload: tuple[str, int] | None = None
    fault: Mapping[str, Any] | None = None


def steps() -> list[Step]:
    """All calls, 261 of them recorded."""
    found = [*_passthrough(), *_everything(), *_accounts()]
    for who in ("root@pam!t1", "tester@pve"):
        found += _as_other(who)
    found += [*_parameters(), *_locks(), *_drive_changes(), *_snapshots_and_pools(), *_files(), *_templates()]
    found += [*_guest_agent(), *_hotplug(), *_passthrough()]
    return found


def _get(name: str, path: str, /, **params: Any) -> Step:
    return Step(name, "get", path, params)


def _put(name: str, vmid: int, /, **params: Any) -> Step:
    return Step(name, "put", f"{QEMU}/{vmid}/config", params)


def _post(name: str, path: str, /, **params: Any) -> Step:
    return Step(name, "post", path, params)


def _power(name: str, vmid: int, verb: str, /, **params: Any) -> Step:
    return _post(name, f"{QEMU}/{vmid}/status/{verb}", **params)


def _create(name: str, vmid: int, /, **params: Any) -> Step:
    return _post(name, QEMU, vmid=vmid, **params)


def _remove(name: str, vmid: int, /, **params: Any) -> Step:
    return Step(name, "delete", f"{QEMU}/{vmid}", params or {"purge": 1})


def _ask(name: str, vmid: int, what: str, method: str = "get", /, **params: Any) -> Step:
    return Step(name, method, f"{QEMU}/{vmid}/agent/{what}", params, guest=vmid)


def _exec(name: str, vmid: int, /, *command: str, **params: Any) -> Step:
    return _ask(name, vmid, "exec", "post", command=list(command), **params)


def _ran(name: str, vmid: int, of: str, /) -> Step:
    return _ask(name, vmid, "exec-status", pid=f"{{{of}}}")


def _imported(vmid: int = 140) -> Step:
    return _create(
        "create import",
        vmid,
        name="g1",
        memory=256,
        cores=1,
        ostype="l26",
        agent="1",
        serial0="socket",
        scsihw="virtio-scsi-single",
        net0="virtio,bridge=vmbr0",
        virtio0="local-lvm:0,import-from=local:import/mini-guest.qcow2",
        boot="order=virtio0",
    )


def _passthrough() -> Iterator[Step]:
    """Two VMs start on one passed-through disk."""
    yield _imported()
    yield _create("create passthru", 141, agent="1", net0="virtio,bridge=vmbr0", scsi0=f"{DISK},serial=PT1", **PLAIN)
    yield _power("start", 140, "start")
    yield _power("start", 141, "start")
    for vmid in (140, 141):
        yield _ask("ifs", vmid, "network-get-interfaces")
        yield _exec("lsblk", vmid, "lsblk")
    yield _create("same-disk in use by 2", 142, scsi0=DISK, **PLAIN)
    yield _power("start 142 same disk", 142, "start")
    for vmid in (140, 141, 142):
        yield _power("shutdown", vmid, "shutdown", forceStop=1, timeout=10)
    yield _get("list", QEMU)
    for vmid in (140, 141, 142):
        yield _remove("rm", vmid, purge=1, **{"destroy-unreferenced-disks": 1})


def _everything() -> Iterator[Step]:
    """A VM with all kinds of devices."""
    yield _create(
        "create full", 101, name="vm-101", memory=256, cores=2, sockets=1, cpu="qemu64", kvm=0, ostype="l26",
        scsihw="virtio-scsi-single", agent="enabled=1,fstrim_cloned_disks=1", net0="virtio,bridge=vmbr0,firewall=1",
        ipconfig0="ip=dhcp", nameserver="1.1.1.1", searchdomain="example.org", ciuser="debian", cipassword="secret",
        sshkeys=KEY, tags="pytest;x", serial0="socket", vga="serial0", ide2="local:cloudinit,format=qcow2",
        args="-kernel /lab/vmlinuz -initrd /lab/initrd.gz -append console=ttyS0",
        scsi0=f"{DISK},backup=0,aio=native", sata0="local-lvm:1,cache=writeback",
        virtio0="local-lvm:2,iothread=1,cache=none,aio=io_uring,discard=on",
    )  # fmt: skip
    yield _get("cfg101", f"{QEMU}/101/config")
    yield _power("start101", 101, "start")
    yield _get("cloudinit dump user", f"{QEMU}/101/cloudinit/dump", type="user")
    yield _ask("agent ping", 101, "ping", "post")
    yield _ask("agent info", 101, "info")
    yield _ask("net-ifs", 101, "network-get-interfaces")
    yield _exec("exec", 101, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
    yield _ran("exec-status", 101, "exec")
    yield _exec("exec stdin", 101, "cat", **{"input-data": "hello stdin"})
    yield _ran("exec-status2", 101, "exec stdin")
    yield _ask("file-write", 101, "file-write", "post", file="/tmp/x", content="abc\n")
    yield _ask("file-read", 101, "file-read", file="/tmp/x")
    for name, command in (("osinfo", "get-osinfo"), ("hostname", "get-host-name"), ("fsinfo", "get-fsinfo")):
        yield _ask(name, 101, command)
    yield _ask("exec-status bad pid", 101, "exec-status", pid=99999)
    yield _exec("exec missing prog", 101, "/nonexistent")
    yield _get("status", f"{QEMU}/101/status/current")
    yield _post("monitor info block", f"{QEMU}/101/monitor", command="info block")
    yield Step("unlink scsi0", "put", f"{QEMU}/101/unlink", {"idlist": "scsi0"})
    yield _post("hotplug scsi1", f"{QEMU}/101/config", scsi1="local-lvm:1,iothread=1,serial=ABC123")
    yield _get("cfg", f"{QEMU}/101/config")
    yield _get("pending", f"{QEMU}/101/pending")
    yield _power("shutdown", 101, "shutdown", timeout=60)
    for verb in ("suspend", "resume", "reset", "reboot"):
        yield _power(verb, 101, verb)
    yield _power("stop", 101, "stop")
    yield _get("content", f"{NODE}/storage/local-lvm/content", vmid=101)
    yield _get("content iso", f"{NODE}/storage/local/content", content="iso")
    yield _get("content import", f"{NODE}/storage/local/content", content="import")
    yield _post("move", f"{QEMU}/101/move_disk", disk="sata0", storage="local", format="qcow2", delete=1)
    yield _get("template?", f"{QEMU}/101/config")
    yield _remove("destroy", 101, purge=1, **{"destroy-unreferenced-disks": 1})
    yield _get("content after", f"{NODE}/storage/local-lvm/content", vmid=101)


def _accounts() -> Iterator[Step]:
    yield _post("user add", "access/users", userid="tester@pve", password="a tester's own")
    yield Step("acl", "put", "access/acl", {"path": "/", "users": "tester@pve", "roles": "Administrator"})
    yield _post("token root privsep=0", "access/users/root@pam/token/t1", privsep=0)
    yield _post("token tester privsep=0", "access/users/tester@pve/token/t1", privsep=0)


def _as_other(who: str) -> list[Step]:
    """What a token, or a user other than root@pam, may do."""
    device = f"{DISK},backup=0"
    script = "local:snippets/x.pl"
    found = [
        _get("version", "version"),
        _create(
            "create plain", 110, scsi0="local-lvm:1,iothread=1,aio=native", scsihw="virtio-scsi-single", memory=128
        ),
        _put("passthrough put", 110, scsi1=device),
        _post("passthrough post", f"{QEMU}/110/config", scsi1=device),
        _create("passthrough create", 111, scsi0=device, memory=128),
        _put("cdrom device", 110, ide2="cdrom,media=cdrom"),
        _put("args", 110, args="-snapshot"),
        _put("kvm=0", 110, kvm=0),
        _put("hookscript", 110, hookscript=script),
        _put("hostpci0 raw", 110, hostpci0="0000:00:02.0"),
        _put("usb0 raw", 110, usb0="host=1234:5678"),
        _put("serial0 dev", 110, serial0="/dev/ttyS0"),
        _put("serial0 socket", 110, serial0="socket"),
        _post("import-from import", f"{QEMU}/110/config", scsi2="local-lvm:0,import-from=local:import/mini.qcow2"),
        _post("import-from abs", f"{QEMU}/110/config", scsi3="local-lvm:0,import-from=/lab/mini.qcow2"),
        _power("skiplock start", 110, "start", skiplock=1),
        _put("skiplock put", 110, skiplock=1, description="x"),
        _post("monitor", f"{QEMU}/110/monitor", command="info block"),
        _power("start", 110, "start"),
        _power("stop", 110, "stop"),
        _get("cfg", f"{QEMU}/110/config"),
        _get("nodes/disks list", f"{NODE}/disks/list"),
        _get("storage status", f"{NODE}/storage/local-lvm/status"),
        _post(
            "upload dl-url",
            f"{NODE}/storage/local/download-url",
            content="iso",
            filename="x.iso",
            url="http://127.0.0.1:1/x.iso",
        ),
        _remove("destroy", 110, purge=1, **{"destroy-unreferenced-disks": 1}),
        _get("tasks", f"{NODE}/tasks", limit=2),
    ]
    return [Step(each.name, each.method, each.path, each.params, who) for each in found]


def _parameters() -> Iterator[Step]:
    """What the schema, the drives' parser and the storages refuse."""
    yield _create("create", 112, scsi0=f"{DISK},backup=0", scsihw="virtio-scsi-pci", **PLAIN)
    yield _create("same disk twice", 113, scsi0=DISK, scsi1=DISK, **PLAIN)
    values: list[tuple[str, str, Any]] = [
        ("missing dev", "scsi1", "/dev/disk/by-id/nope"),
        ("relative", "scsi1", "foo.raw"),
        ("file path", "scsi1", "/var/lib/vz/import/mini.qcow2"),
        ("iothread on virtio-scsi-pci", "scsi2", "local-lvm:1,iothread=1"),
        ("iothread on sata", "sata0", "local-lvm:1,iothread=1"),
        ("ssd on virtio", "virtio0", "local-lvm:1,ssd=1"),
        ("cache bad", "virtio0", "local-lvm:1,cache=foo"),
        ("native+writeback", "virtio0", "local-lvm:1,aio=native,cache=writeback"),
        ("unknown storage", "scsi3", "nostore:1"),
        ("unknown volume", "scsi3", "local-lvm:vm-999-disk-0"),
        ("size fraction", "virtio1", "local-lvm:0.5"),
        ("size 1G", "virtio2", "local-lvm:1G"),
        ("format qcow2 on lvm", "virtio2", "local-lvm:1,format=qcow2"),
        ("too big", "virtio2", "local-lvm:99999999"),
        ("virtio16", "virtio16", "local-lvm:1"),
        ("scsi31", "scsi31", "local-lvm:1"),
        ("unknown key", "foo", "bar"),
    ]
    for name, option, value in values:
        yield _put(name, 112, **{option: value})
    yield _create("bad vmid 99", 99)
    yield _post("bad vmid str", QEMU, vmid="abc")
    more: list[tuple[str, str, Any]] = [
        ("mem 0", "memory", 0),
        ("mem 8", "memory", 8),
        ("bool str", "onboot", "True"),
        ("bool py", "onboot", True),
        ("sshkeys raw", "sshkeys", "ssh-ed25519 AAAA x@y"),
        ("ipconfig bad", "ipconfig0", "ip=999.1.1.1/24"),
        ("net bad bridge", "net0", "virtio,bridge=vmbr77"),
    ]
    for name, option, value in more:
        yield _put(name, 112, **{option: value})
    yield _get("cfg", f"{QEMU}/112/config")
    yield _power("start", 112, "start")
    yield _power("stop", 112, "stop")


def _locks() -> Iterator[Step]:
    yield _create(
        "import two",
        114,
        scsi0="local-lvm:0,import-from=local:import/mini.qcow2,discard=on",
        ide2="local:iso/mini.iso,media=cdrom",
        **PLAIN,
    )
    yield _get("cfg114", f"{QEMU}/114/config")
    yield _put("lock set", 114, lock="backup")
    yield _power("start locked", 114, "start")
    yield _remove("destroy locked", 114)
    yield _remove("destroy locked skiplock", 114, skiplock=1)
    yield _put("digest mismatch", 112, digest="0" * 40, description="x")
    yield _remove("", 112)
    yield _remove("", 113)


def _drive_changes() -> Iterator[Step]:
    yield _create(
        "create kvm default",
        120,
        memory=256,
        agent="1",
        scsihw="virtio-scsi-single",
        scsi0="local-lvm:1,iothread=1",
        start=1,
    )
    yield _get("status kvm", f"{QEMU}/120/status/current")
    yield _power("stop", 120, "stop")
    yield _create("native+writeback create", 121, scsi0="local-lvm:1,aio=native,cache=writeback", **PLAIN)
    yield _power("native+writeback start", 121, "start")
    direct = "local-lvm:vm-121-disk-0,aio=native,cache=directsync,iothread=1,ssd=1"
    yield _put("directsync", 121, scsi0=direct, scsihw="virtio-scsi-single")
    yield _power("start", 121, "start")
    yield _put("change running cache", 121, scsi0="local-lvm:vm-121-disk-0,aio=io_uring,cache=writeback")
    yield _get("pending", f"{QEMU}/121/pending")
    yield _put("iops hotchange", 121, scsi0=f"{direct},iops_rd=50")
    yield _put("import PUT", 121, scsi2="local-lvm:0,import-from=local:import/mini.qcow2")
    yield _put("import PUT2", 121, scsi3="local-lvm:1,import-from=local:import/mini.qcow2")
    yield _put("cloudinit lvm", 121, ide2="local-lvm:cloudinit", sshkeys=KEY.replace("%", "%25"))
    yield _get("cfg", f"{QEMU}/121/config")
    yield _get("cfg current=1", f"{QEMU}/121/config", current=1)
    yield _get("ci dump net", f"{QEMU}/121/cloudinit/dump", type="network")
    yield _get("ci pending", f"{QEMU}/121/cloudinit")
    yield Step("ci regenerate", "put", f"{QEMU}/121/cloudinit")


def _snapshots_and_pools() -> Iterator[Step]:
    yield _post("snapshot raw lvmthin", f"{QEMU}/121/snapshot", snapname="s1")
    yield _get("snapshots", f"{QEMU}/121/snapshot")
    yield _put("put while lock held", 121, description="x")
    yield Step("stop while lock held", "post", f"{QEMU}/121/status/stop", fault={"kind": "lock-held", "vmid": 121})
    yield _power("stop", 121, "stop")
    yield _get("vm res", "cluster/resources", type="vm")
    yield _post("pool", "pools", poolid="pt")
    yield Step("pool add", "put", "pools/pt", {"vms": "121"})
    yield _get("pool get", "pools", poolid="pt")
    yield _get("pools/pt", "pools/pt")


def _files() -> Iterator[Step]:
    content = f"{NODE}/storage/local/content"
    for name, kind, file in (("upload", "iso", "up.iso"), ("upload import qcow2", "import", "upl.qcow2")):
        size = 300_000 if kind == "iso" else 196_616
        yield Step(name, "post", f"{NODE}/storage/local/upload", {"content": kind}, upload=(file, size))
    yield Step("upload bad ext", "post", f"{NODE}/storage/local/upload", {"content": "iso"}, upload=("up.txt", 10))
    yield _get("content", content)
    yield _get("vol get", f"{content}/local:iso/up.iso")
    yield Step("vol del", "delete", f"{content}/local:iso/up.iso")
    yield _post("vol alloc", f"{NODE}/storage/local-lvm/content", vmid=121, filename="vm-121-disk-9", size="1G")
    yield _get("rescan? cfg unused", f"{QEMU}/121/config")
    yield _remove("destroy no flags", 121)
    yield _get("content left", f"{NODE}/storage/local-lvm/content")
    yield _get("node status", f"{NODE}/status")
    yield _get("network", f"{NODE}/network")
    yield _get("network bridge", f"{NODE}/network", type="any_bridge")
    yield _get("storages enabled images", f"{NODE}/storage", content="images", enabled=1)


def _templates() -> Iterator[Step]:
    yield _post("template", f"{QEMU}/120/template")
    yield _post("clone full", f"{QEMU}/120/clone", newid=122, full=1)
    yield _get("nextid taken", "cluster/nextid", vmid=120)
    yield _get("access perms", "access/permissions", path="/vms/120")
    yield _get("task list filtered", f"{NODE}/tasks", vmid=121, typefilter="qmstop", errors=1)
    yield _get("task bad upid", f"{NODE}/tasks/foo/status")
    yield _get("task missing", f"{NODE}/tasks/UPID:pve:00000001:00000001:00000001:qmstart:1:root@pam:/status")
    yield _put("", 120, protection=1)
    yield _remove("destroy protected", 120)
    yield _put("", 120, protection=0)
    yield _remove("unprotect", 120)


def _guest_agent() -> Iterator[Step]:
    """What a guest's agent answers early, and what becomes of a connection whose worker ended."""
    yield _imported()
    yield _power("start", 140, "start")
    yield _post("agent early", f"{QEMU}/140/agent/ping")
    for _ in range(3):
        yield _exec("exec missing prog", 140, "/nonexistent")
        yield _ask("bad pid", 140, "exec-status", pid=99999)
        yield _get("cfg", f"{QEMU}/140/config")
        yield _ask("bad pid", 140, "exec-status", pid=99999)
        yield _put("post desc", 140, description="x")
    yield _ask("exec str cmd", 140, "exec", "post", command="true")


def _hotplug() -> Iterator[Step]:
    yield _exec("exec long sleep", 140, "sleep", "30")
    yield _ran("running exec", 140, "exec long sleep")
    yield _ran("done exec", 140, "exec str cmd")
    yield _ran("reaped?", 140, "exec str cmd")
    yield _exec("exec killed", 140, "/bin/sh", "-c", "kill -9 $$")
    yield _ran("sig", 140, "exec killed")
    yield _exec("exec big", 140, "head", "-c", "100000", "/dev/urandom")
    yield _ran("bin", 140, "exec big")
    yield _exec("exec huge", 140, "sleep", "20")
    yield _ran("huge", 140, "exec huge")
    yield _put("unplug virtio (not present)", 140, delete="virtio1")
    yield _put("hotplug virtio1", 140, virtio1="local-lvm:1")
    yield _put("hotplug scsi2", 140, scsi2="local-lvm:1,iothread=1")
    yield _put("hotplug passthru", 140, scsi3=DISK)
    yield _exec("exec", 140, "/bin/sh", "-c", "ls /sys/block; cat /proc/uptime")
    yield _ran("blk", 140, "exec")
    for option in ("scsi2", "virtio1", "scsi3"):
        yield _put(f"hotunplug {option}", 140, delete=option)
    yield _get("cfg", f"{QEMU}/140/config")
    yield _get("pend", f"{QEMU}/140/pending")
    yield _put("delete unused0 PUT", 140, delete="unused0,unused1")
    yield _get("content", f"{NODE}/storage/local-lvm/content", vmid=140)
    yield _ask("guest poweroff via agent", 140, "shutdown", "post")
    yield _get("st", f"{QEMU}/140/status/current")
    yield _remove("rm", 140)
