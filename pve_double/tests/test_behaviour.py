"""What the double does beyond the recordings, as qemu-server's and pve-storage's sources have it."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pve_double.server import Serving, serve
from pve_double.storage.disks import Disk
from pve_double.testing import NODE, QEMU, Client, Outcome, memory_node
from pve_double.tests.recorded_calls import DISK, KEY

VMIDS = itertools.count(200)
GIB = 1024**3


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with serve(memory_node()) as found:
        yield found


@pytest.fixture(scope="module")
def root(serving: Serving) -> Client:
    return Client(serving)


def made(root: Client, **settings: Any) -> int:
    """A new VM with these settings."""
    vmid = next(VMIDS)
    outcome = root.post(QEMU, vmid=vmid, memory=128, scsihw="virtio-scsi-single", **settings)
    assert outcome.exitstatus == "OK", outcome
    return vmid


def config(root: Client, vmid: int) -> dict[str, Any]:
    found: dict[str, Any] = root.get(f"{QEMU}/{vmid}/config").result
    return found


def started(root: Client, **settings: Any) -> int:
    vmid = made(root, **settings)
    assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == "OK"
    return vmid


def set_(root: Client, vmid: int, **settings: Any) -> Outcome:
    return root.put(f"{QEMU}/{vmid}/config", **settings)


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("delete of no option", {"delete": "bogus"}, 400, "unknown option 'bogus'"),
    ("nothing to change", {}, 500, "no options specified"),
    ("a key twice", {"scsi1": "local-lvm:1,cache=none,cache=none"}, 400, "duplicate key"),
    ("no such bus option", {"ide0": "local-lvm:1,iothread=1"}, 400, "not defined in schema"),
    ("virtio with wwn", {"virtio0": "local-lvm:1,wwn=0x5000c500a0b1c2d3"}, 400, "not defined in schema"),
    ("no such engine", {"scsi1": "local-lvm:1,aio=posix"}, 400, "enumeration 'native, threads, io_uring'"),
    ("a CD on virtio", {"virtio0": "none,media=cdrom"}, 400, "unable to parse drive options"),
    ("total and read limit", {"scsi1": "local-lvm:1,iops=5,iops_rd=5"}, 400, "unable to parse drive options"),
    ("an ISO as a disk", {"scsi1": "local:iso/mini.iso"}, 400, "explicit 'media=cdrom' is required"),
    ("no such ISO", {"ide2": "local:iso/nope.iso,media=cdrom"}, 500, "volume 'local:iso/nope.iso' does not exist"),
    ("no such file volume", {"scsi1": "local:999/vm-999-disk-0.raw"}, 500, "does not exist"),
    ("an odd volume name", {"scsi1": "local:nonsense"}, 500, "unable to parse directory volume name 'nonsense'"),
    ("a path outside of storages", {"scsi1": "/tmp/x.raw"}, 400, "unable to associate path '/tmp/x.raw'"),
    ("import of nothing", {"scsi1": "local-lvm:0,import-from=local:import/no.qcow2"}, 500, "failed to stat"),
    (
        "import from nowhere",
        {"scsi1": "local-lvm:0,import-from=nostore:import/x.qcow2"},
        500,
        "'nostore' does not exist",
    ),
    ("import of an ISO", {"scsi1": "local-lvm:0,import-from=local:iso/mini.iso"}, 400, "has wrong type 'iso'"),
    ("a controller of no kind", {"scsihw": "bogus"}, 400, "enumeration 'lsi, lsi53c810"),
    ("a CPU of no kind", {"cpu": "bogus"}, 400, "Built-in cputype 'bogus' is not defined"),
    ("a machine of no kind", {"machine": "bogus"}, 400, "does not match the regex pattern"),
    ("no CPU", {"cores": 0}, 400, "minimum value of 1"),
    ("an underscore in the name", {"name": "a_b"}, 400, "valid DNS name"),
    ("a card of no kind", {"net0": "bogus,bridge=vmbr0"}, 400, "enumeration"),
    ("a boot device that is not there", {"boot": "order=scsi9"}, 500, "device 'scsi9' does not exist"),
    ("a boot device of no kind", {"boot": "order=floppy0"}, 400, "invalid boot device 'floppy0'"),
    ("balloon above memory", {"balloon": 4096}, 500, "balloon value too large"),
    ("keys quoted twice", {"sshkeys": KEY.replace("%", "%25")}, 500, "SSH public key validation error"),
    ("keys that are none", {"sshkeys": "ssh-ed25519%20AAAA"}, 500, "SSH public key validation error"),
    ("keys quoted with plus", {"sshkeys": "ssh-ed25519+AAAA"}, 400, "invalid urlencoded string"),
    ("force without delete", {"force": 1}, 400, "'force' requires this property"),
    ("set and delete", {"name": "x", "delete": "name"}, 400, "at the same time"),
]


@pytest.mark.parametrize(
    ("settings", "status", "text"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_a_setting_is_refused_with_pves_words(root: Client, settings: dict[str, Any], status: int, text: str) -> None:
    vmid = made(root)
    outcome = set_(root, vmid, **settings)
    assert outcome.status == status
    assert text in f"{outcome.text} {dict(outcome.errors)}"


def test_a_detached_volume_becomes_unused_and_is_freed_with_that(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    volume = f"local-lvm:vm-{vmid}-disk-0"
    assert set_(root, vmid, delete="scsi0").status == 200
    assert config(root, vmid)["unused0"] == volume
    assert set_(root, vmid, scsi3=volume).status == 200
    assert "unused0" not in config(root, vmid)
    set_(root, vmid, delete="scsi3")
    set_(root, vmid, delete="unused0")
    assert root.get(f"{NODE}/storage/local-lvm/content", vmid=vmid).result == []


def test_unlinking_by_force_frees_the_volume_at_once(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    assert root.put(f"{QEMU}/{vmid}/unlink", idlist="scsi0", force=1).status == 200
    assert "unused0" not in config(root, vmid)
    assert root.get(f"{NODE}/storage/local-lvm/content", vmid=vmid).result == []


def test_destroying_a_vm_frees_its_volumes_and_leaves_a_passed_through_disk(root: Client, serving: Serving) -> None:
    vmid = made(root, scsi0="local-lvm:1", scsi1=DISK, sata0="local:1,format=qcow2")
    assert config(root, vmid)["sata0"] == f"local:{vmid}/vm-{vmid}-disk-0.qcow2,size=1G"
    assert root.delete(f"{QEMU}/{vmid}").exitstatus == "OK"
    assert not [volume for volume in serving.node.store.volumes.values() if volume.vmid == vmid]
    assert serving.node.disks.exists(DISK)
    missing = root.get(f"{QEMU}/{vmid}/config")
    assert (missing.status, missing.text) == (
        500,
        f"Configuration file 'nodes/pve/qemu-server/{vmid}.conf' does not exist",
    )


def test_starting_twice_fails_and_stopping_twice_does_not(root: Client) -> None:
    vmid = started(root)
    assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == f"VM {vmid} already running"
    assert root.post(f"{QEMU}/{vmid}/status/stop").exitstatus == "OK"
    assert root.post(f"{QEMU}/{vmid}/status/stop").exitstatus == "OK"


def test_an_iothread_that_is_ignored_ends_the_start_with_a_warning(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1,iothread=1")
    set_(root, vmid, scsihw="lsi")
    outcome = root.post(f"{QEMU}/{vmid}/status/start")
    assert outcome.exitstatus == "WARNINGS: 1"
    assert outcome.log[0].startswith("WARN: iothread is only valid with")


def test_creating_with_start_ends_well_though_the_start_fails(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1,aio=native,cache=writeback", start=1)
    assert root.get(f"{QEMU}/{vmid}/status/current").result["status"] == "stopped"


def test_more_cpus_than_the_node_has_do_not_start(root: Client) -> None:
    vmid = made(root, cores=64)
    assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == "MAX 2 vcpus allowed per VM on this node"


def test_a_volume_that_is_gone_does_not_start(root: Client, serving: Serving) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    del serving.node.store.volumes[f"local-lvm:vm-{vmid}-disk-0"]
    assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == f"no such logical volume pve/vm-{vmid}-disk-0"


def test_a_locked_vm_is_left_alone_unless_root_skips_the_lock(root: Client) -> None:
    vmid = made(root)
    set_(root, vmid, lock="backup")
    assert set_(root, vmid, name="x").text == "VM is locked (backup)"
    assert root.post(f"{QEMU}/{vmid}/status/start", skiplock=1).exitstatus == "OK"
    assert root.post(f"{QEMU}/{vmid}/status/stop").exitstatus == "VM is locked (backup)"
    assert set_(root, vmid, delete="lock", skiplock=1).status == 200
    assert root.post(f"{QEMU}/{vmid}/status/stop").exitstatus == "OK"


def test_a_guest_without_an_agent_does_not_shut_down_in_time(root: Client) -> None:
    vmid = started(root)
    outcome = root.post(f"{QEMU}/{vmid}/status/shutdown", timeout=2)
    assert outcome.exitstatus == "VM quit/powerdown failed - got timeout"
    assert root.post(f"{QEMU}/{vmid}/status/shutdown", timeout=2, forceStop=1).exitstatus == "OK"


def test_a_change_that_a_running_vm_cannot_take_waits_for_its_next_start(root: Client) -> None:
    vmid = started(root, cores=1)
    assert set_(root, vmid, cores=2, name="later").status == 200
    pending = {each["key"]: each for each in root.get(f"{QEMU}/{vmid}/pending").result}
    assert (pending["cores"]["value"], pending["cores"]["pending"]) == (1, 2)
    assert "pending" not in pending["name"]
    assert root.get(f"{QEMU}/{vmid}/config", current=1).result["cores"] == 1
    assert set_(root, vmid, revert="cores").status == 200
    assert config(root, vmid)["cores"] == 1


def test_a_native_cached_drive_cannot_be_plugged_and_stays_pending(root: Client) -> None:
    vmid = started(root)
    outcome = set_(root, vmid, scsi1="local-lvm:1,aio=native,cache=writeback")
    assert outcome.status == 400
    assert "requires cache.direct=on" in outcome.errors["scsi1"]
    assert "scsi1" not in root.get(f"{QEMU}/{vmid}/config", current=1).result


def test_a_sata_disk_of_a_running_vm_waits_for_its_next_start(root: Client) -> None:
    vmid = started(root)
    assert set_(root, vmid, sata0="local-lvm:1").status == 200
    pending = [each for each in root.get(f"{QEMU}/{vmid}/pending").result if each["key"] == "sata0"]
    assert pending == [{"key": "sata0", "pending": f"local-lvm:vm-{vmid}-disk-0,size=1G"}]


@pytest.mark.parametrize(
    ("size", "expected"),
    [("+1G", "OK"), ("2G", "OK"), ("1G", "OK"), ("512M", "shrinking disks is not supported")],
)
def test_a_disk_is_resized_upwards_alone(root: Client, size: str, expected: str) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    assert root.put(f"{QEMU}/{vmid}/resize", disk="scsi0", size=size).exitstatus == expected


def test_what_cannot_be_resized_or_moved_is_told(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1", scsi1=DISK)
    resize, move = f"{QEMU}/{vmid}/resize", f"{QEMU}/{vmid}/move_disk"
    assert root.put(resize, disk="scsi9", size="1G").exitstatus == "disk 'scsi9' does not exist"
    assert root.put(resize, disk="scsi1", size="4G").exitstatus == f"unable to parse volume ID '{DISK}'"
    assert root.put(resize, disk="scsi0", size="x").errors == {"size": "value does not match the regex pattern"}
    same = root.post(move, disk="scsi0", storage="local-lvm")
    assert same.text == "you can't move to the same storage with same format"
    assert root.post(move, disk="scsi0", storage="nostore").text == "storage 'nostore' does not exist"
    assert root.post(move, disk="scsi0").status == 400


def test_a_moved_disk_leaves_its_source_as_unused_unless_that_is_deleted(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    assert root.post(f"{QEMU}/{vmid}/move_disk", disk="scsi0", storage="local").exitstatus == "OK"
    found = config(root, vmid)
    assert found["scsi0"] == f"local:{vmid}/vm-{vmid}-disk-0.raw,size=1G"
    assert found["unused0"] == f"local-lvm:vm-{vmid}-disk-0"


def test_a_disk_is_given_to_another_vm_under_its_name(root: Client) -> None:
    vmid, other = made(root, scsi0="local-lvm:1,serial=x"), made(root)
    move = f"{QEMU}/{vmid}/move_disk"
    assert root.post(move, disk="scsi0", **{"target-vmid": other, "target-disk": "virtio1"}).exitstatus == "OK"
    assert "scsi0" not in config(root, vmid)
    assert config(root, other)["virtio1"] == f"local-lvm:vm-{other}-disk-0,serial=x,size=1G"
    again = root.post(move, disk="scsi0", **{"target-vmid": other})
    assert again.text == f"Disk 'scsi0' for VM '{vmid}' does not exist"


def test_a_running_guest_is_paused_but_not_kept_on_a_disk(root: Client) -> None:
    vmid = started(root)
    power = f"{QEMU}/{vmid}/status"
    assert "savevm-start has not been found" in str(root.post(f"{power}/suspend", todisk=1).exitstatus)
    assert root.post(f"{power}/suspend").exitstatus == "OK"
    assert root.get(f"{power}/current").result["qmpstatus"] == "paused"
    assert root.post(f"{power}/shutdown").text == "VM is paused - cannot shutdown"
    assert root.post(f"{power}/resume").exitstatus == "OK"
    assert root.get(f"{power}/current").result["qmpstatus"] == "running"


def test_a_second_cloudinit_drive_is_refused(root: Client) -> None:
    vmid = made(root, ide2="local-lvm:cloudinit")
    outcome = set_(root, vmid, ide0="local-lvm:cloudinit")
    assert outcome.text == "ide0 - cloud-init drive is already attached at 'ide2'"


def test_a_taken_vmid_is_refused(root: Client) -> None:
    vmid = made(root)
    outcome = root.post(QEMU, vmid=vmid)
    assert outcome.text == f"unable to create VM {vmid} - VM {vmid} already exists on node 'pve'"
    assert root.get("cluster/nextid", vmid=vmid).errors == {"vmid": f"VM {vmid} already exists"}


def test_what_is_missing_answers_500_and_what_nobody_knows_501(root: Client) -> None:
    assert root.get("nodes/elsewhere/status").status == 500
    assert root.get(f"{QEMU}/999999/status/current").status == 500
    assert root.post(f"{QEMU}/999999/status/start").exitstatus is not None
    unknown = root.get("nodes/pve/bogus")
    assert (unknown.status, unknown.text) == (501, "Method 'GET /nodes/pve/bogus' not implemented")


def test_an_agent_answers_only_where_it_is_configured_and_the_guest_is_up(root: Client) -> None:
    without, vmid = started(root), made(root, agent=1)
    ping = f"{QEMU}/{vmid}/agent/ping"
    assert root.post(f"{QEMU}/{without}/agent/ping").text == "No QEMU guest agent configured"
    assert root.post(ping).text == f"VM {vmid} is not running"
    root.post(f"{QEMU}/{vmid}/status/start")
    root.wait_for_agent(vmid)
    assert root.post(ping).result == {"result": {}}
    started_program = root.post(f"{QEMU}/{vmid}/agent/exec", command=["true"]).result
    ended = root.get(f"{QEMU}/{vmid}/agent/exec-status", **started_program)
    assert ended.result == {"exited": 1, "exitcode": 0}
    assert (
        root.get(f"{QEMU}/{vmid}/agent/exec-status", **started_program).text == "Agent error: Invalid parameter 'pid'"
    )


def test_volumes_are_allocated_and_deleted_by_name(root: Client) -> None:
    content = f"{NODE}/storage/local-lvm/content"
    assert root.post(content, vmid=900, filename="vm-900-disk-7", size="1G").result == "local-lvm:vm-900-disk-7"
    twice = root.post(content, vmid=900, filename="vm-900-disk-7", size="1G")
    assert twice.status == 500
    assert (
        root.post(content, vmid=900, filename="other", size="1G").text == "illegal name 'other' - should be 'vm-900-*'"
    )
    file = root.post(f"{NODE}/storage/local/content", vmid=900, filename="vm-900-x.qcow2", size="1024")
    assert file.result == "local:900/vm-900-x.qcow2"
    assert root.get(f"{NODE}/storage/local/content/local:900/vm-900-x.qcow2").result["size"] == 1024**2
    assert root.delete(f"{content}/local-lvm:vm-900-disk-7").exitstatus == "OK"
    assert root.delete(f"{content}/local-lvm:vm-900-disk-7").exitstatus == "OK"
    assert root.delete(f"{NODE}/storage/local/content/local:900/vm-900-x.qcow2", delay=5).result is None
    assert root.get(f"{NODE}/storage/nostore/content").text == "storage 'nostore' does not exist"
    assert root.get(f"{NODE}/storage/nostore/status").errors == {"storage": "No such storage."}


@pytest.mark.parametrize("maker", ["lvm", "lvmthin", "directory", "zfs"])
def test_a_disk_becomes_a_storage_and_a_disk_again(root: Client, serving: Serving, maker: str) -> None:
    where = {"devices": DISK, "raidlevel": "single"} if maker == "zfs" else {"device": DISK}
    path, name = f"{NODE}/disks/{maker}", f"voh-{maker}"
    assert root.post(path, name=name, add_storage=1, **where).exitstatus == "OK"
    assert name in [each["storage"] for each in root.get("storage").result]
    assert root.post(path, name="second", **where).text == "device '/dev/sdb' is already in use"
    vmid = made(root, scsi0=f"{name}:0.25")
    assert config(root, vmid)["scsi0"].startswith(f"{name}:")
    assert root.delete(f"{QEMU}/{vmid}").exitstatus == "OK"
    group = {"volume-group": name} if maker == "lvmthin" else {}
    gone = root.delete(f"{path}/{name}", **{"cleanup-config": 1, "cleanup-disks": 1}, **group)
    assert gone.exitstatus == "OK"
    assert name not in serving.node.store.storages
    assert not serving.node.disks.find(DISK).used


def test_disks_are_listed_with_their_stable_names(root: Client) -> None:
    listed = {each["devpath"]: each for each in root.get(f"{NODE}/disks/list").result}
    assert listed["/dev/sdb"]["by_id_link"] == DISK
    assert listed["/dev/vda"]["used"] == "mounted"
    assert [each["devpath"] for each in root.get(f"{NODE}/disks/list", type="unused").result] == ["/dev/sdb"]
    assert root.put(f"{NODE}/disks/wipedisk", disk="/dev/vda").text == "disk/partition '/dev/vda' is mounted"
    assert root.post(f"{NODE}/disks/lvm", name="x1", device="/dev/nope").text == "not a valid block device"


def test_an_upload_with_a_wrong_checksum_fails(root: Client, tmp_path: Path) -> None:
    file = tmp_path / "other.iso"
    file.write_bytes(b"content")
    before = set(Path(tempfile.gettempdir()).glob("pveupload-*"))
    upload, checked = f"{NODE}/storage/local/upload", {"checksum": "00", "checksum-algorithm": "sha256"}
    with file.open("rb") as content:
        outcome = root.post(upload, content="iso", filename=content, **checked)
    assert "checksum mismatch" in str(outcome.exitstatus)
    with file.open("rb") as content:
        lvm = root.post(f"{NODE}/storage/local-lvm/upload", content="iso", filename=content)
    assert lvm.text == "can't upload to storage type 'lvmthin'"
    assert set(Path(tempfile.gettempdir()).glob("pveupload-*")) <= before


def test_a_template_starts_no_more_and_gives_clones(root: Client) -> None:
    vmid, new = made(root, scsi0="local-lvm:1", net0="virtio,bridge=vmbr0"), next(VMIDS)
    assert root.post(f"{QEMU}/{vmid}/template").exitstatus == "OK"
    assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == "you can't start a vm if it's a template"
    assert root.post(f"{QEMU}/{vmid}/clone", newid=new, name="copy").exitstatus == "OK"
    assert config(root, new)["scsi0"] == f"local-lvm:vm-{new}-disk-0,size=1G"
    assert config(root, new)["net0"] != config(root, vmid)["net0"]
    again = root.post(f"{QEMU}/{vmid}/clone", newid=new)
    assert again.text == f"unable to create VM {new}: config file already exists"


def test_a_stopped_vm_takes_snapshots_of_volumes_but_not_of_devices(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    assert root.post(f"{QEMU}/{vmid}/snapshot", snapname="one").exitstatus == "OK"
    assert root.post(f"{QEMU}/{vmid}/snapshot", snapname="one").exitstatus == "snapshot name 'one' already used"
    assert root.delete(f"{QEMU}/{vmid}/snapshot/one").exitstatus == "OK"
    set_(root, vmid, scsi1=DISK)
    assert root.post(f"{QEMU}/{vmid}/snapshot", snapname="two").exitstatus == "snapshot feature is not available"


def test_a_node_lists_itself(root: Client) -> None:
    (listed,) = root.get("nodes").result
    assert (listed["node"], listed["status"], listed["type"]) == ("pve", "online", "node")


def test_a_zfs_storage_has_the_mount_point_that_pve_adds_and_its_volumes_have_whole_mib(root: Client) -> None:
    # ZFSPoolPlugin.pm: on_add_hook, zfs_create_zvol, list_images.
    made = root.post(f"{NODE}/disks/zfs", name="tank", devices=DISK, raidlevel="single", add_storage=1)
    assert made.exitstatus == "OK"
    assert root.get("storage/tank").result["mountpoint"] == "/tank"
    assert root.put("storage/tank", blocksize="8k").status == 200
    assert root.get("storage/tank").result["blocksize"] == "8k"
    path = f"{NODE}/storage/tank/content"
    assert root.post(path, vmid=300, filename="vm-300-z", size=1025).result == "tank:vm-300-z"
    (volume,) = root.get(path).result
    assert volume == {
        "volid": "tank:vm-300-z", "name": "vm-300-z", "content": "images", "format": "raw", "size": 2 << 20,
        "vmid": 300, "parent": None,
    }  # fmt: skip
    twice = root.post(path, vmid=300, filename="vm-300-z", size=1024)
    assert (twice.status, twice.text) == (500, "zfs error: cannot create 'tank/vm-300-z': dataset already exists")
    assert root.delete(f"{path}/tank:vm-300-z").exitstatus == "OK"
    options = {"cleanup-config": 1, "cleanup-disks": 1}
    assert root.delete(f"{NODE}/disks/zfs/tank", **options).exitstatus == "OK"
    assert root.get("storage/tank").status == 500


def test_the_content_of_a_directory_has_what_its_files_take_and_what_they_are_on(root: Client) -> None:
    # Plugin.pm: list_images, file_size_info.
    path = f"{NODE}/storage/local/content"
    for name, size in (("vm-310-a.qcow2", 1 << 20), ("vm-310-b.raw", 1 << 20)):
        assert root.post(path, vmid=310, filename=name, size=size).status == 200
    image, raw = root.get(path, vmid=310).result
    assert (image["parent"], raw["parent"], raw["used"]) == (None, None, 0)
    assert 0 < image["used"] < image["size"] == 1 << 30
    for each in (image, raw):
        assert root.delete(f"{path}/{each['volid']}").exitstatus == "OK"


def test_the_partitions_of_an_nvme_disk_get_other_numbers_when_a_storage_is_made_on_one() -> None:
    # Diskmanage.pm, change_parttype: sgdisk, after which the kernel reads the partition table again.
    node = memory_node()
    node.disks.disks += [Disk(f"/dev/nvme0n1p{number}", 1 << 30, partuuid=str(number)) for number in (1, 2)]
    first, second = node.disks.disks[-2:]
    with serve(node) as serving:
        client = Client(serving)
        assert client.post(f"{NODE}/disks/lvm", name="on-first", device=first.device).exitstatus == "OK"
        numbers = (first.minor, second.minor)
        assert 0 not in numbers
        # One of them is in use now, so the kernel keeps all of them.
        assert client.post(f"{NODE}/disks/lvm", name="on-second", device=second.device).exitstatus == "OK"
        assert (first.minor, second.minor) == numbers
