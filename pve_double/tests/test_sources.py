"""Calls that nobody recorded, with what Proxmox VE's sources answer: the module and function is named with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pve_double.server import serve
from pve_double.testing import NODE, QEMU, Client, Outcome, memory_node
from pve_double.tests.recorded_calls import DISK

STOPPED, RUNNING, TEMPLATE, SNAPSHOT, PASSED, PAUSED = 300, 301, 302, 303, 304, 305
MISSING = 399


@dataclass(frozen=True, slots=True)
class Case:
    """One call as root, and its outcome. `text` is the message or one of the errors; a `task` ends with it."""

    name: str
    method: str
    path: str
    params: dict[str, Any]
    status: int
    text: str
    task: bool = field(default=False)


def vm(name: str, vmid: int, call: str, status: int, text: str, /, **params: Any) -> Case:
    """A call below a VM: `METHOD path`."""
    method, _, below = call.partition(" ")
    return Case(name, method.lower(), f"{QEMU}/{vmid}/{below}".rstrip("/"), params, status, text)


def ends(name: str, vmid: int, call: str, text: str, /, **params: Any) -> Case:
    """A call below a VM that is accepted, and whose task then ends with `text`."""
    method, _, below = call.partition(" ")
    return Case(name, method.lower(), f"{QEMU}/{vmid}/{below}".rstrip("/"), params, 200, text, task=True)


def put(name: str, text: str, /, status: int = 400, **params: Any) -> Case:
    return vm(name, STOPPED, "PUT config", status, text, **params)


def node(name: str, call: str, status: int, text: str, /, **params: Any) -> Case:
    """A call anywhere else: `METHOD path`."""
    method, _, path = call.partition(" ")
    return Case(name, method.lower(), path, params, status, text)


CONFIGURATION = [
    # QemuServer/CPUConfig.pm, validate_vm_cpu_conf
    put("a CPU without a type", "CPU is missing cputype", cpu="hidden=1"),
    put("a custom CPU that nobody made", "Custom cputype 'mine' not found", cpu="custom-mine"),
    put("a flag for custom models alone", "VM-specific CPU flags must be a subset of: aes,", cpu="host,flags=+avx"),
    put("another model's name", "'reported-model' not allowed", cpu="host,reported-model=EPYC"),
    put("too few address bits", "value must be an integer between 8 and 64 or 'host'", cpu="host,phys-bits=4"),
    # QemuServer.pm, pve_verify_cpuset, verify_bootdev, verify_bootdisk; JSONSchema.pm, pve_parse_startup_order
    put("cores that are no list", "unable to parse cpuset option", affinity="a-b"),
    put("a card beyond the last", "invalid boot device 'net32'", boot="order=net32"),
    put("a disk beyond the last", "invalid boot disk 'scsi31'", bootdisk="scsi31"),
    put("a firmware disk to boot from", "invalid boot device 'efidisk0'", boot="order=efidisk0"),
    put("an order that is none", "unable to parse startup options", startup="order=x"),
    put("an empty order", "unable to parse startup options", startup=""),
    # QemuServer/Drive.pm, parse_drive
    put("a burst without a rate", "unable to parse drive options", scsi1="local-lvm:1,mbps_max=10"),
    put("a burst's length without a burst", "unable to parse drive options", scsi1="local-lvm:1,iops_max_length=2"),
    put("an image format of a CD", "unable to parse drive options", ide0="none,media=cdrom,format=raw"),
    put("one queue", "value must have a minimum value of 2", scsi1="local-lvm:1,queues=1"),
    put("a key that is no word", "missing key in comma-separated list", scsi1="local-lvm:1,=on"),
    put("two files", "duplicate key in comma-separated list property: file", scsi1="local-lvm:1,local-lvm:2"),
    # API2/Qemu.pm, update_vm_api
    put("revert of no option", "unknown option 'bogus'", revert="bogus"),
    put("set and revert", "you can't use '-name' and -revert name' at the same time", name="x", revert="name"),
    put("delete and revert", "'-delete name' and -revert name' at the same time", delete="name", revert="name"),
    put("an odd thing to delete", "invalid configuration ID 'x'", delete="x"),
    put("too long a digest", "value may only be 40 characters long", digest="0" * 41, name="x"),
    put("a display without VNC's clipboard", "vga type none is not compatible", 500, vga="none,clipboard=vnc"),
    put("a snippet for cloud-init that is none", "needs to be 'snippets'", 500, cicustom="user=local:iso/mini.iso"),
    # QemuServer/Machine.pm, assert_valid_machine_property
    put("Intel's IOMMU without q35", "please set the machine type to q35", 500, machine="pc,viommu=intel"),
    put("an IOMMU's width without one", "cannot set aw-bits", 500, machine="q35,aw-bits=39"),
    # QemuServer.pm, cleanup_drive_path: a path in an ISO directory is a volume, be there a file or not
    put("a path of no ISO", "volume 'local:iso/no.iso' does not exist", 500, ide0="/var/lib/vz/template/iso/no.iso"),
    put("a path of a disk", "unable to associate path", scsi1="/var/lib/vz/images/9/vm-9-disk-0.raw"),
]

MACHINES = [
    # API2/Qemu.pm, create_vm
    node("a size without a storage", f"POST {QEMU}", 400, "unable to parse volume ID '1'", vmid=310, scsi0="1"),
    node("a pool that is not there", f"POST {QEMU}", 500, "pool 'none' does not exist", vmid=310, pool="none"),
    node("nothing to restore", f"POST {QEMU}", 500, "can't find file '/no.vma'", vmid=310, archive="/no.vma"),
    node("force without archive", f"POST {QEMU}", 400, "'force' requires this property", vmid=310, force=1),
    node("restore and disks", f"POST {QEMU}", 400, "conflicts with option 'archive'", vmid=310, archive="/a",
         scsi0="local-lvm:1"),
    node("restore of a disk", f"POST {QEMU}", 500, "content type needs to be 'backup'", vmid=310,
         archive="local-lvm:vm-300-disk-0"),
    node("no VMID", f"POST {QEMU}", 400, "property is missing and it is not optional", memory=128),
    # API2/Qemu.pm, move_vm_disk
    vm("moved to both", STOPPED, "POST move_disk", 400, "but not both", disk="scsi0", storage="local",
       **{"target-vmid": PASSED}),
    vm("moved with an old digest", STOPPED, "POST move_disk", 500, "detected modified configuration", disk="scsi0",
       storage="local", digest="0" * 40),
    vm("a disk of no bus", STOPPED, "POST move_disk", 400, "enumeration", disk="floppy0", storage="local"),
    vm("a CD is not moved", STOPPED, "POST move_disk", 500, "you can't move a cdrom", disk="ide2", storage="local"),
    vm("a device is not moved", PASSED, "POST move_disk", 500, f"unable to parse volume ID '{DISK}'", disk="scsi0",
       storage="local"),
    vm("to itself", STOPPED, "POST move_disk", 400, "must be different", disk="scsi0", **{"target-vmid": STOPPED}),
    vm("to nobody", STOPPED, "POST move_disk", 500, f"could not find target VM {MISSING}", disk="scsi0",
       **{"target-vmid": MISSING}),
    vm("to a template", STOPPED, "POST move_disk", 500, "from or to template VMs", disk="scsi0",
       **{"target-vmid": TEMPLATE}),
    vm("of a snapshot", SNAPSHOT, "POST move_disk", 500, "used by a snapshot", disk="scsi0",
       **{"target-vmid": PASSED, "target-disk": "scsi5"}),
    # API2/Qemu.pm, clone_vm
    vm("a clone of nothing", MISSING, "POST clone", 500, "unable to find configuration file for VM 399", newid=311),
    vm("a linked clone of a VM", STOPPED, "POST clone", 500,
       "Linked clone feature is not supported for 'local-lvm:vm-300-disk-0' (scsi0)", newid=311, full=0),
    vm("a storage for a linked clone", TEMPLATE, "POST clone", 500, "parameter 'storage' not allowed", newid=311,
       storage="local"),
    vm("a clone of a device", PASSED, "POST clone", 500, f"unable to parse volume ID '{DISK}'", newid=311),
    vm("a clone to an unknown storage", STOPPED, "POST clone", 500, "storage 'none' does not exist", newid=311,
       storage="none"),
    vm("a clone of no snapshot", STOPPED, "POST clone", 500, "snapshot 'none' does not exist", newid=311,
       snapname="none"),
    vm("a clone elsewhere", STOPPED, "POST clone", 500, "no such cluster node 'pve2'", newid=311, target="pve2"),
    vm("a clone onto a VM", STOPPED, "POST clone", 500, "unable to create VM 301: config file already exists",
       newid=RUNNING),
    # API2/Qemu.pm, template
    vm("a template of a running VM", RUNNING, "POST template", 500, "can't convert a VM to template if VM is running"),
    vm("a template of snapshots", SNAPSHOT, "POST template", 500, "because VM contains snapshots"),
    vm("a template twice", TEMPLATE, "POST template", 500, "you can't convert a template to a template"),
    ends("a template of a device", PASSED, "POST template", f"volume '{DISK}' does not support template/clone"),
    # API2/Qemu.pm, vm_feature
    vm("a feature of nothing", MISSING, "GET feature", 500, "unable to find configuration file", feature="clone"),
    vm("a feature of no snapshot", STOPPED, "GET feature", 500, "snapshot 'x1' does not exist", feature="clone",
       snapname="x1"),
    # AbstractConfig.pm, snapshot_create, snapshot_delete, snapshot_rollback
    vm("a reserved name", STOPPED, "POST snapshot", 500, "snapshot name 'pending' (reserved name)", snapname="Pending"),
    vm("a name with a blank", STOPPED, "POST snapshot", 400, "invalid configuration ID 'a b'", snapname="a b"),
    ends("a template's snapshot", TEMPLATE, "POST snapshot", "you can't take a snapshot if it's a template",
         snapname="one"),
    ends("no snapshot to delete", STOPPED, "DELETE snapshot/none", "snapshot 'none' does not exist"),
    ends("no snapshot to go back to", STOPPED, "POST snapshot/none/rollback", "snapshot 'none' does not exist"),
    ends("a template's rollback", TEMPLATE, "POST snapshot/none/rollback", "you can't rollback if vm is a template"),
    vm("no snapshot to describe", STOPPED, "PUT snapshot/none/config", 500, "snapshot 'none' does not exist",
       description="x"),
    # API2/Qemu.pm, vm_shutdown, vm_reboot; QemuServer.pm, vm_start
    vm("a paused VM's reboot", PAUSED, "POST status/reboot", 500, "VM is paused - cannot shutdown"),
    ends("start of a template", TEMPLATE, "POST status/start", "you can't start a vm if it's a template"),
    ends("stop of nothing", MISSING, "POST status/stop",
         "unable to find configuration file for VM 399 on node 'pve'"),
    vm("a negative time", RUNNING, "POST status/stop", 400, "value must have a minimum value of 0", timeout=-1),
    # API2/Qemu.pm, monitor, vm_sendkey, migrate_vm
    vm("nothing for the monitor", RUNNING, "POST monitor", 500, "no command specified", command=""),
    vm("a key for nobody", STOPPED, "PUT sendkey", 500, "VM 300 not running", key="ret"),
    vm("migration to itself", STOPPED, "POST migrate", 400, "target is local node.", target="pve"),
    vm("migration to nowhere", STOPPED, "POST migrate", 500, "no such cluster node 'pve2'", target="pve2"),
    # QemuServer/Agent.pm, assert_agent_available: an agent that is switched off is one that is configured
    vm("an agent that is off", RUNNING, "POST agent/ping", 500, "QEMU guest agent is not running"),
    vm("a program of no agent", STOPPED, "POST agent/exec", 500, "No QEMU guest agent configured", command=["true"]),
    vm("no such command", RUNNING, "POST agent", 400, "enumeration", command="dance"),
]  # fmt: skip

_STORE = f"{NODE}/storage"

STORAGES = [
    # API2/Storage/Status.pm
    node("a storage to look at", f"GET {_STORE}", 400, "No such storage.", storage="none"),
    node("content of no type", f"GET {_STORE}/local/content", 400, "invalid content type 'floppy'", content="floppy"),
    node("a download for LVM", f"POST {_STORE}/local-lvm/download-url", 500, "not a file based storage!",
         content="iso", filename="x.iso", url="http://127.0.0.1:1/x.iso"),
    node("a download of no scheme", f"POST {_STORE}/local/download-url", 400, "regex pattern", content="iso",
         filename="x.iso", url="ftp://x/x.iso"),
    node("a sum without its kind", f"POST {_STORE}/local/download-url", 400, "'checksum' requires this property",
         content="iso", filename="x.iso", url="http://127.0.0.1:1/x.iso", checksum="00"),
    node("a download of a disk", f"POST {_STORE}/local/download-url", 400, "enumeration 'iso, vztmpl, import'",
         content="images", filename="x.iso", url="http://127.0.0.1:1/x.iso"),
    # API2/Storage/Content.pm
    node("two formats", f"POST {_STORE}/local/content", 400, "different storage formats (raw != qcow2)", vmid=300,
         filename="vm-300-x.qcow2", size="1G", format="raw"),
    node("a file without a format", f"POST {_STORE}/local/content", 500, "unable to parse volume filename 'x'",
         vmid=300, filename="x", size="1G"),
    node("a size in T", f"POST {_STORE}/local-lvm/content", 400, "value does not match the regex pattern", vmid=300,
         filename="vm-300-x", size="1T"),
    node("a volume of another storage", f"GET {_STORE}/local/content/local-lvm:vm-300-disk-0", 400,
         "storage ID mismatch (local-lvm != local)"),
    node("an ISO that is not there", f"GET {_STORE}/local/content/local:iso/no.iso", 500, "failed - no format"),
    node("a logical volume that is not there", f"GET {_STORE}/local-lvm/content/vm-9-disk-9", 500,
         "can't get size of '/dev/pve/vm-9-disk-9'"),
    node("notes of a disk", f"PUT {_STORE}/local-lvm/content/vm-300-disk-0", 500,
         "attribute 'notes' is not supported for storage type 'lvmthin'", notes="x"),
    node("notes of an ISO", f"PUT {_STORE}/local/content/local:iso/mini.iso", 500, "only backups support", notes="x"),
    # API2/Storage/Config.pm, SectionConfig.pm (check_config)
    node("a directory without a path", "POST storage", 500, "missing value for required option 'path'", storage="d1",
         type="dir"),
    node("a volume group of a directory", "POST storage", 500, "unexpected property 'vgname'", storage="d1",
         type="dir", path="/d1", vgname="pve"),
    node("a relative path", "POST storage", 400, "absolute path", storage="d1", type="dir", path="d1"),
    node("a name that is taken", "POST storage", 500, "storage ID 'local' already defined", storage="local",
         type="dir", path="/d1"),
    node("only what LVM cannot hold", "POST storage", 500, "storage needs at least one content type", storage="d1",
         type="lvm", vgname="pve", content="iso"),
    node("a mount point that is none", "POST storage", 500, "expected to be a mount point", storage="d1", type="dir",
         path="/mnt/d1", is_mountpoint="yes"),
    node("no such storage to change", "PUT storage/none", 500,
         "update storage failed: storage 'none' does not exist", disable=1),
    node("its path stays", "PUT storage/local", 500, "unable to delete required option 'path'", delete="path"),
    node("no such storage to forget", "DELETE storage/none", 500,
         "delete storage failed: storage 'none' does not exist"),
    # API2/Disks/*.pm, Diskmanage.pm
    node("a storage's name for a group", f"POST {NODE}/disks/lvm", 500, "Storage ID 'local' already exists on node",
         name="local", device=DISK, add_storage=1),
    Case("the system's group", "post", f"{NODE}/disks/lvm", {"name": "pve", "device": DISK}, 200,
         "volume group with name 'pve' already exists on node 'pve'", task=True),
    node("a mirror of one disk", f"POST {NODE}/disks/zfs", 500, "mirror needs at least 2 disks", name="tank",
         raidlevel="mirror", devices=DISK),
    Case("no such pool", "delete", f"{NODE}/disks/lvmthin/none", {"volume-group": "vg"}, 200,
         "no such thin pool vg/none", task=True),
    node("a group of another node's pool", f"DELETE {NODE}/disks/lvmthin/none", 400, "property is missing"),
    Case("a directory that is not there", "delete", f"{NODE}/disks/directory/no-dir", {}, 200,
         r"command 'systemctl stop mnt-pve-no\x2ddir.mount' failed: exit code 5", task=True),
    Case("a directory that is not there, to wipe", "delete", f"{NODE}/disks/directory/no-dir", {"cleanup-disks": 1},
         200, r"can't open '/etc/systemd/system/mnt-pve-no\x2ddir.mount' - No such file or directory", task=True),
    Case("a pool that is not there, to wipe", "delete", f"{NODE}/disks/zfs/none", {"cleanup-disks": 1}, 200,
         "command 'zpool list -vHPL none' failed: exit code 1", task=True),
    # Storage/*Plugin.pm, alloc_image
    node("a thin volume without a size", f"POST {_STORE}/local-lvm/content", 500,
         f"lvcreate 'pve/vm-{STOPPED}-z' error:   Run `lvcreate --help' for more information.", vmid=STOPPED,
         filename=f"vm-{STOPPED}-z", size=0),
    node("a thin volume twice", f"POST {_STORE}/local-lvm/content", 500,
         f'Logical Volume "vm-{STOPPED}-disk-0" already exists in volume group "pve"', vmid=STOPPED,
         filename=f"vm-{STOPPED}-disk-0", size=4096),
    node("a block size that is no power of two", "PUT storage/local", 400,
         "value '15k' is not a valid ZFS blocksize. Must be a power of 2", blocksize="15k"),
    node("a block size of a directory", "PUT storage/local", 500, "unexpected property 'blocksize'", blocksize="16k"),
    node("a path with a dash", f"PUT {NODE}/disks/wipedisk", 400, "value does not match the regex pattern", disk=DISK),
]  # fmt: skip

ACCESS = [
    # API2/User.pm, API2/Role.pm, API2/ACL.pm, AccessControl.pm
    node("a user without a realm", "POST access/users", 400, "does not look like a valid user name", userid="somebody"),
    node("a realm that is not there", "POST access/users", 500, "auth domain 'ldap' does not exist", userid="a@ldap",
         password="long enough"),
    node("too short a password", "POST access/users", 400, "at least 8 characters", userid="a@pve", password="short"),
    node("a user twice", "POST access/users", 500, "user 'root@pam' already exists", userid="root@pam"),
    node("nobody's token", "POST access/users/nobody@pve/token/t", 400, "value does not match the regex pattern"),
    node("a token of nobody", "POST access/users/nobody@pve/token/t1", 500, "no such user ('nobody@pve')"),
    node("a token twice", "POST access/users/root@pam/token/here", 400, "Token already exists."),
    node("no such token", "DELETE access/users/root@pam/token/none", 500,
         "no such token 'none' for user 'root@pam'"),
    node("a privilege of old", "POST access/roles", 400, "invalid privilege 'VM.Monitor'", roleid="r",
         privs="VM.Monitor"),
    node("a role of PVE's", "POST access/roles", 400, "'PVE' namespace", roleid="pveMine"),
    node("a role that is fixed", "DELETE access/roles/PVEAdmin", 500,
         "auto-generated role 'PVEAdmin' cannot be deleted"),
    node("no such role", "PUT access/acl", 500, "ACL update failed: role 'none' does not exist", path="/",
         users="root@pam", roles="none"),
    node("rights for nobody", "PUT access/acl", 400, "either 'users', 'groups' or 'tokens' is required.", path="/",
         roles="PVEAdmin"),
    node("rights for a stranger", "PUT access/acl", 500, "user 'x@pve' does not exist", path="/", roles="PVEAdmin",
         users="x@pve"),
    node("rights nowhere", "PUT access/acl", 400, "invalid ACL path '/nowhere'", path="/nowhere", roles="PVEAdmin",
         users="root@pam"),
    # API2/Pool.pm
    node("a pool twice", "POST pools", 500, "create pool failed: pool 'here' already exists", poolid="here"),
    node("a pool below none", "POST pools", 500, "parent pool 'none' does not exist", poolid="none/below"),
    node("a member twice", "PUT pools/here", 500, f"VM {STOPPED} is already a pool member", vms=STOPPED),
    node("somebody else's member", "PUT pools/other", 500, f"VM {STOPPED} belongs already to pool 'here'",
         vms=STOPPED),
    node("no member", "PUT pools/here", 500, f"VM {PASSED} is not a pool member", vms=PASSED, delete=1),
    node("a pool with members", "DELETE pools/here", 500, f"is not empty (contains VM {STOPPED})"),
    node("no such pool", "GET pools/none", 500, "pool 'none' does not exist"),
    # HTTPServer.pm, rest_handler: the node is looked for before the parameters, and where a method runs on it
    node("another node", "GET nodes/elsewhere/qemu/300/config", 500, "hostname lookup 'elsewhere' failed", bogus=1),
    node("two VMIDs", f"PUT {QEMU}/300/config", 400, "with conflicting values!", vmid=301),
    node("a VMID that is no number", f"GET {QEMU}/abc/config", 400, "type check ('integer') failed - got 'abc'"),
    node("a VMID that is too small", f"GET {QEMU}/99/config", 400, "value does not look like a valid VM ID"),
    node("a method that is not there", f"DELETE {QEMU}/300/config", 501, "not implemented"),
]  # fmt: skip

CASES = [*CONFIGURATION, *MACHINES, *STORAGES, *ACCESS]


@pytest.fixture(scope="module")
def root() -> Iterator[Client]:
    """A node with a VM in each of the states that the cases ask for."""
    with serve(memory_node()) as serving:
        client = Client(serving)
        for vmid, settings in MACHINES_BEFORE.items():
            assert client.post(QEMU, vmid=vmid, memory=128, **settings).exitstatus == "OK"
        for vmid in (RUNNING, PAUSED):
            assert client.post(f"{QEMU}/{vmid}/status/start").exitstatus == "OK"
        assert client.post(f"{QEMU}/{PAUSED}/status/suspend").exitstatus == "OK"
        assert client.post(f"{QEMU}/{TEMPLATE}/template").exitstatus == "OK"
        assert client.post(f"{QEMU}/{SNAPSHOT}/snapshot", snapname="first").exitstatus == "OK"
        client.post("access/users/root@pam/token/here")
        client.post("pools", poolid="here")
        client.post("pools", poolid="other")
        assert client.put("pools/here", vms=STOPPED).status == 200
        yield client


MACHINES_BEFORE: dict[int, dict[str, Any]] = {
    STOPPED: {"scsi0": "local-lvm:1", "ide2": "none,media=cdrom", "name": "stopped"},
    RUNNING: {"agent": 0},
    TEMPLATE: {"scsi0": "local-lvm:1"},
    SNAPSHOT: {"scsi0": "local-lvm:1"},
    PASSED: {"scsi0": DISK},
    PAUSED: {},
}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_the_sources_refuse_the_double_refuses_in_the_same_words(root: Client, case: Case) -> None:
    outcome = root.call(case.method, case.path, case.params)
    assert outcome.status == case.status, outcome
    assert case.text in (said(outcome) if not case.task else str(outcome.exitstatus))


def said(outcome: Outcome) -> str:
    return f"{outcome.text} {' '.join(outcome.errors.values())}"
