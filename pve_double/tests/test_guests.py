"""Snapshots, clones, moves and the power of the double's guests, beyond what was recorded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pve_double import nodeshell
from pve_double.executor.memory import MemoryExecutor
from pve_double.qemu.power import shutdown_seconds
from pve_double.server import Serving, serve
from pve_double.storage.volumes import Storage
from pve_double.testing import NODE, QEMU, Client, memory_node
from pve_double.tests.recorded_calls import DISK

VMIDS = itertools.count(500)


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with serve(memory_node()) as found:
        yield found


@pytest.fixture(scope="module")
def root(serving: Serving) -> Client:
    return Client(serving)


def made(root: Client, **settings: Any) -> int:
    vmid = next(VMIDS)
    outcome = root.post(QEMU, vmid=vmid, **({"memory": 128} | settings))
    assert outcome.exitstatus == "OK", outcome
    return vmid


def config(root: Client, vmid: int) -> dict[str, Any]:
    found: dict[str, Any] = root.get(f"{QEMU}/{vmid}/config").result
    return found


def test_a_stop_deactivates_thick_volumes_that_nothing_has_open_and_keeps_thin_ones(
    root: Client, serving: Serving
) -> None:
    node = serving.node
    assert isinstance(node.executor, MemoryExecutor)
    node.store.storages["thick"] = Storage("thick", "lvm", frozenset({"images"}), 8 << 30, vgname="thick")
    vmid = made(root, scsi0="thick:1", scsi1="local-lvm:1")
    path = f"/dev/thick/vm-{vmid}-disk-0"

    def boot() -> None:
        assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == "OK"
        stopped = root.post(f"{QEMU}/{vmid}/status/stop")
        assert stopped.exitstatus == "OK"

    boot()
    assert node.executor.inactive == {path}
    boot()
    assert node.executor.activated[path] == 2
    root.post(f"{QEMU}/{vmid}/status/start")
    node.executor.held.add(path)
    assert root.post(f"{QEMU}/{vmid}/status/stop").log[:2] == (
        f"can't deactivate LV '{path}':   Logical volume thick/vm-{vmid}-disk-0 in use.",
        f"volume deactivation failed: thick:vm-{vmid}-disk-0",
    )
    assert node.executor.inactive == set()
    node.executor.held.clear()
    root.delete(f"{QEMU}/{vmid}")
    del node.store.storages["thick"]


def test_snapshots_know_what_they_follow(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    path = f"{QEMU}/{vmid}/snapshot"
    first = root.post(path, snapname="first", description="before")
    assert first.log == (f'  Logical volume "snap_vm-{vmid}-disk-0_first" created.', "TASK OK")
    root.post(path, snapname="second")
    listed = {each["name"]: each for each in root.get(path).result}
    assert (listed["second"]["parent"], listed["current"]["parent"]) == ("first", "second")
    assert listed["first"]["description"] == "before"
    assert root.put(f"{path}/first/config", description="after").status == 200
    shown = root.get(f"{path}/first/config").result
    assert (shown["description"], shown["scsi0"]) == ("after", f"local-lvm:vm-{vmid}-disk-0,size=1G")
    assert root.delete(f"{path}/first").exitstatus == "OK"
    assert "parent" not in root.get(f"{path}/second/config").result


def test_going_back_takes_the_settings_and_keeps_what_came_later_as_unused(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1", cores=1)
    path = f"{QEMU}/{vmid}"
    root.post(f"{path}/snapshot", snapname="first")
    root.put(f"{path}/config", cores=2, scsi1="local-lvm:1", description="new")
    assert root.post(f"{path}/snapshot/first/rollback", start=1).exitstatus == "OK"
    found = config(root, vmid)
    assert (found["cores"], found["description"], found["parent"]) == (1, "new", "first")
    assert found["unused0"] == f"local-lvm:vm-{vmid}-disk-1"
    assert "scsi1" not in found
    assert root.get(f"{path}/status/current").result["status"] == "running"


@pytest.mark.parametrize(
    ("disk", "name"),
    [
        ("local:1,format=qcow2", "local:{base}/base-{base}-disk-0.qcow2/{new}/vm-{new}-disk-0.qcow2"),
        ("local-lvm:1", "local-lvm:vm-{new}-disk-0"),
    ],
)
def test_the_volume_of_a_linked_clone_on_a_directory_has_its_base_in_its_name(
    root: Client, disk: str, name: str
) -> None:
    # PVE::Storage::Plugin::clone_image; that of LvmThinPlugin returns a plain name.
    vmid = made(root, scsi0=disk)
    root.post(f"{QEMU}/{vmid}/template")
    new = next(VMIDS)
    assert root.post(f"{QEMU}/{vmid}/clone", newid=new).exitstatus == "OK"
    volid = name.format(base=vmid, new=new)
    assert config(root, new)["scsi0"].partition(",")[0] == volid
    storage = disk.partition(":")[0]
    assert volid in {each["volid"] for each in root.get(f"{NODE}/storage/{storage}/content").result}
    path = root.get(f"{NODE}/storage/{storage}/content/{volid}").result["path"]
    assert path.endswith(f"/images/{new}/vm-{new}-disk-0.qcow2" if storage == "local" else f"/vm-{new}-disk-0")
    assert root.delete(f"{QEMU}/{new}").exitstatus == "OK"
    assert volid not in {each["volid"] for each in root.get(f"{NODE}/storage/{storage}/content").result}


def test_a_running_vm_reports_how_long_it_waited(root: Client) -> None:
    # As on the second recorded node: PVE::QemuServer::vmstatus, from the pressure of the VM's control group.
    vmid = made(root)
    waited = {f"pressure{of}{how}" for of in ("cpu", "io", "memory") for how in ("some", "full")}
    assert not waited & root.get(f"{QEMU}/{vmid}/status/current").result.keys()
    root.post(f"{QEMU}/{vmid}/status/start")
    found = root.get(f"{QEMU}/{vmid}/status/current").result
    assert {name for name in found if name.startswith("pressure")} == waited


def test_a_failed_snapshot_stays_in_the_way_even_of_force(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1", start=1)
    path = f"{QEMU}/{vmid}"
    assert "query-savevm" in str(root.post(f"{path}/snapshot", snapname="half").exitstatus)
    assert root.delete(f"{path}/snapshot/half", force=1).exitstatus == "VM is locked (snapshot)"
    text = "unable to rollback to incomplete snapshot (snapstate = prepare)"
    assert root.post(f"{path}/snapshot/half/rollback").exitstatus == text
    root.put(f"{path}/config", delete="lock", skiplock=1)
    assert root.delete(f"{path}/snapshot/half", force=1).exitstatus == "OK"


def test_a_clone_gets_its_own_identity_and_cloudinit_image(root: Client) -> None:
    vmid = made(
        root,
        scsi0="local-lvm:1",
        ide2="local-lvm:cloudinit",
        vmgenid="0",
        smbios1="serial=QUJD,base64=1",
        description="old",
    )
    new = next(VMIDS)
    assert root.post(f"{QEMU}/{vmid}/clone", newid=new, storage="local", format="qcow2").exitstatus == "OK"
    found = config(root, new)
    assert found["scsi0"] == f"local:{new}/vm-{new}-disk-0.qcow2,size=1G"
    assert found["ide2"].startswith(f"local:{new}/vm-{new}-cloudinit.qcow2")
    assert found["smbios1"].startswith("serial=QUJD,base64=1,uuid=") or found["smbios1"].startswith("base64=1")
    assert (found["name"], found["vmgenid"], found["description"]) == (f"Copy-of-VM-{vmid}", "0", "old")


def test_a_clone_of_a_snapshot_is_what_the_vm_was(root: Client) -> None:
    vmid, new = made(root, scsi0="local-lvm:1", cores=1), next(VMIDS)
    root.post(f"{QEMU}/{vmid}/snapshot", snapname="first")
    root.put(f"{QEMU}/{vmid}/config", cores=2)
    assert root.post(f"{QEMU}/{vmid}/clone", newid=new, snapname="first", name="then").exitstatus == "OK"
    found = config(root, new)
    assert (found["cores"], found["name"]) == (1, "then")
    assert "parent" not in found


def test_a_disk_that_is_given_away_leaves_the_boot_order(root: Client) -> None:
    vmid, other = made(root, scsi0="local-lvm:1", net0="virtio,bridge=vmbr0"), made(root)
    move = {"disk": "scsi0", "target-vmid": other, "target-disk": "unused0"}
    assert root.post(f"{QEMU}/{vmid}/move_disk", **move).exitstatus == "OK"
    assert config(root, vmid)["boot"] == "order=net0"
    assert config(root, other)["unused0"] == f"local-lvm:vm-{other}-disk-0"


@pytest.mark.parametrize(
    ("kind", "expected"), [("snapshot", {"scsi0": 1, "device": 0}), ("clone", {"scsi0": 0}), ("copy", {"scsi0": 1})]
)
def test_a_vms_features_are_those_of_its_storages(root: Client, kind: str, expected: dict[str, int]) -> None:
    disks = {"scsi0": {"scsi0": "local-lvm:1"}, "device": {"scsi0": DISK}}
    for name, has in expected.items():
        vmid = made(root, **disks[name])
        assert root.get(f"{QEMU}/{vmid}/feature", feature=kind).result == {"hasFeature": has, "nodes": ["pve"]}


def test_a_paused_guest_is_stopped_by_a_shutdown_with_force(root: Client) -> None:
    vmid = made(root, start=1)
    root.post(f"{QEMU}/{vmid}/status/suspend")
    assert root.post(f"{QEMU}/{vmid}/status/shutdown", forceStop=1).exitstatus == "OK"
    assert root.get(f"{QEMU}/{vmid}/status/current").result["status"] == "stopped"


def test_a_windows_is_pinned_to_a_machine_version(root: Client) -> None:
    vmid = made(root, ostype="win11", machine="q35,viommu=virtio")
    assert config(root, vmid)["machine"] == "pc-q35-10.0+pve1,viommu=virtio"
    later = made(root)
    root.put(f"{QEMU}/{later}/config", ostype="win10")
    assert config(root, later)["machine"] == "pc-i440fx-10.0+pve1"
    assert "machine" not in config(root, made(root, ostype="l26"))


def test_values_are_kept_as_pve_changes_them(root: Client) -> None:
    vmid = made(root, cpuunits=200_000)
    assert config(root, vmid)["cpuunits"] == 10_000
    root.put(f"{QEMU}/{vmid}/config", vmgenid="1", cpulimit="0.5")
    found = config(root, vmid)
    assert len(found["vmgenid"]) == 36
    assert found["cpulimit"] == 0.5


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        ("pc-q35-99.0", "Installed QEMU version '10.0.2'"),
        ("pc-i440fx-10.0+pve9", "Installed qemu-server (max feature level for 10.0 is pve1)"),
    ],
)
def test_a_machine_version_of_the_future_does_not_start(root: Client, machine: str, what: str) -> None:
    outcome = root.post(f"{QEMU}/{made(root, machine=machine)}/status/start")
    assert outcome.exitstatus == f"{what} is too old to run machine type '{machine}', please upgrade node 'pve'"


def test_the_id_of_a_clone_is_looked_at_before_its_disks(root: Client) -> None:
    vmid = made(root, scsi0="local-lvm:1")
    text = f"unable to create VM {vmid}: config file already exists"
    assert root.post(f"{QEMU}/{vmid}/clone", newid=vmid, full=0).text == text


def test_kvms_own_processor_cannot_be_emulated(root: Client) -> None:
    outcome = root.post(f"{QEMU}/{made(root, kvm=0, cpu='host')}/status/start")
    assert outcome.exitstatus == "start failed: QEMU exited with code 1"
    assert "kvm: CPU model 'host' requires KVM or HVF" in outcome.log


@pytest.mark.parametrize(
    ("startup", "params", "seconds"),
    [
        ("", {}, 60.0),
        ("order=1,up=20", {}, 60.0),
        ("order=1,down=90", {}, 90.0),
        ("down=0", {}, 60.0),
        ("down=90", {"timeout": "5"}, 5.0),
    ],
)
def test_a_guest_has_the_time_to_shut_down_that_the_call_or_its_startup_gives(
    startup: str, params: dict[str, str], seconds: float
) -> None:
    assert shutdown_seconds({"startup": startup}, params) == seconds


def test_a_file_in_a_guest_is_read_in_parts_and_as_it_is_encoded(root: Client) -> None:
    vmid = made(root, agent=1, start=1)
    root.wait_for_agent(vmid)
    agent, file = f"{QEMU}/{vmid}/agent", {"file": "/tmp/a"}
    assert root.post(f"{agent}/file-write", content="aGVsbG8=", encode=0, **file).status == 200
    assert root.get(f"{agent}/file-read", **file).result == {"content": "hello", "bytes-read": 5}
    part = {"content": "ell", "bytes-read": 3, "truncated": 1}
    assert root.get(f"{agent}/file-read", offset=1, count=3, **file).result == part
    assert root.get(f"{agent}/file-read", decode=0, **file).result["content"] == "aGVsbG8="


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"file": "/nope/a", "content": "x"}, "failed to open file '/nope/a' (mode: 'wb'): No such file or directory"),
        ({"file": "/tmp/a", "content": "?", "encode": 0}, "Base64 data contains invalid characters"),
    ],
)
def test_a_file_that_a_guest_cannot_write_is_refused_in_its_agents_words(
    root: Client, params: dict[str, Any], text: str
) -> None:
    vmid = made(root, agent=1, start=1)
    root.wait_for_agent(vmid)
    assert root.post(f"{QEMU}/{vmid}/agent/file-write", **params).text == f"Agent error: {text}"


def test_text_beyond_bytes_cannot_be_given_to_an_agent(root: Client) -> None:
    vmid = made(root, agent=1, start=1)
    root.wait_for_agent(vmid)
    outcome = root.post(f"{QEMU}/{vmid}/agent/file-write", file="/tmp/a", content="\u201c")
    assert outcome.text.startswith("Wide character in subroutine entry")


def test_a_guest_tells_what_it_has(root: Client) -> None:
    vmid = made(root, agent=1, memory=256, cores=2, start=1)
    root.wait_for_agent(vmid)
    asked = {name: root.get(f"{QEMU}/{vmid}/agent/{name}").result["result"] for name in ("get-vcpus", "info")}
    assert [cpu["can-offline"] for cpu in asked["get-vcpus"]] == [False, True]
    commands = {each["name"]: each for each in asked["info"]["supported_commands"]}
    assert not commands["guest-get-devices"]["enabled"]
    assert not commands["guest-shutdown"]["success-response"]
    assert root.post(f"{QEMU}/{vmid}/agent/fsfreeze-freeze").result == {"result": 0}


def test_what_the_double_does_not_do_is_still_refused_as_pve_does(root: Client) -> None:
    assert root.post(f"{NODE}/status", command="sleep").status == 400
    assert root.post(f"{NODE}/status", command="reboot").status == 501
    assert root.get(f"{NODE}/disks/smart").status == 400
    assert root.get(f"{NODE}/disks/smart", disk="/dev/sdb").status == 501


def test_firmware_without_a_disk_for_its_variables_is_warned_of(root: Client) -> None:
    vmid = made(root, bios="ovmf")
    outcome = root.post(f"{QEMU}/{vmid}/status/start")
    assert outcome.exitstatus == "WARNINGS: 1"
    assert outcome.log[0] == "WARN: no efidisk configured! Using temporary efivars disk."


def test_an_uploaded_image_is_imported_at_the_size_that_its_guest_sees(root: Client, tmp_path: Path) -> None:
    image = tmp_path / "small.qcow2"
    image.write_bytes((b"QFI\xfb" + bytes(20) + (96 * 1024**2).to_bytes(8, "big")).ljust(65_536, b"\0"))
    with image.open("rb") as content:
        assert root.post(f"{NODE}/storage/local/upload", content="import", filename=content).exitstatus == "OK"
    vmid = made(root, scsi0="local-lvm:0,import-from=local:import/small.qcow2")
    assert config(root, vmid)["scsi0"] == f"local-lvm:vm-{vmid}-disk-0,size=96M"


def test_an_upload_that_is_no_image_is_refused_by_its_task(root: Client, tmp_path: Path) -> None:
    image = tmp_path / "none.qcow2"
    image.write_bytes(b"not an image at all")
    with image.open("rb") as content:
        outcome = root.post(f"{NODE}/storage/local/upload", content="import", filename=content)
    assert "Image is not in qcow2 format" in str(outcome.exitstatus)


def test_a_storage_is_configured_changed_and_forgotten(root: Client) -> None:
    made_ = root.post("storage", storage="more", type="dir", path="/srv/more", content="iso,images")
    assert made_.result == {"storage": "more", "type": "dir"}
    assert root.put("storage/more", disable=1, shared=1).status == 200
    found = root.get("storage/more").result
    assert (found["disable"], found["shared"], found["content"]) == (1, "1", "images,iso")
    assert root.get(f"{NODE}/storage/more/status").result["active"] == 0
    assert root.get(f"{NODE}/storage/more/content").text == "storage 'more' is disabled"
    assert [each["storage"] for each in root.get(f"{NODE}/storage", enabled=1).result] == ["local", "local-lvm"]
    assert root.put("storage/more", delete="disable", digest="0" * 40).status == 500
    assert root.put("storage/more", delete="disable").status == 200
    vmid = made(root, scsi0="more:1")
    assert config(root, vmid)["scsi0"].startswith(f"more:{vmid}/vm-{vmid}-disk-0.raw")
    assert root.delete("storage/more").status == 200


def test_a_storage_on_a_group_that_is_not_there_is_taken_and_offline(root: Client) -> None:
    assert root.post("storage", storage="ghost", type="lvmthin", vgname="ghost", thinpool="data").status == 200
    assert root.get(f"{NODE}/storage/ghost/status").result["active"] == 0
    refused = root.post(f"{NODE}/storage/ghost/content", vmid=900, filename="vm-900-disk-0", size="1G")
    assert refused.text == "no such volume group 'ghost'"
    assert root.delete("storage/ghost").status == 200


def test_the_monitor_knows_what_arguments_change(root: Client) -> None:
    args = "-object iothread,id=own,poll-max-ns=0 -set device.virtio0.num-queues=2 -set device.virtio0.iothread=own"
    vmid = made(root, virtio0="local-lvm:1", scsi0="local-lvm:1", args=args, kvm=0)
    assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == "OK"

    def ask(command: str) -> str:
        return str(root.post(f"{QEMU}/{vmid}/monitor", command=command).result).strip()

    device = "/machine/peripheral/virtio0"
    assert ask(f"qom-get {device} num-queues") == "2"
    assert ask(f"qom-get {device} iothread") == '"/objects/own"'
    assert ask(f"qom-get {device} packed") == "false"
    assert ask(f"qom-get {device} bogus") == "Error: Property 'virtio-blk-pci.bogus' not found"
    assert ask("qom-get /machine/peripheral/none x") == "Error: Device '/machine/peripheral/none' not found"
    assert "own:\r\n  thread_id=4242\r\n  poll-max-ns=0\r\n" in ask("info iothreads")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("-set device.virtio7.num-queues=2", 'there is no device "virtio7" defined'),
        ("-set object.iothread-virtio0.poll-max-ns=0", "There is no option group 'object'"),
    ],
)
def test_a_start_fails_if_arguments_change_what_is_not_there(root: Client, args: str, said: str) -> None:
    vmid = made(root, virtio0="local-lvm:1,iothread=1", args=args, kvm=0)
    started = root.post(f"{QEMU}/{vmid}/status/start")
    assert any(said in line for line in started.log), started.log
    assert root.get(f"{QEMU}/{vmid}/status/current").result["status"] == "stopped"


@pytest.fixture
def pci(serving: Serving) -> MemoryExecutor:
    """The node has two PCI devices, of which one is a resource mapping."""
    executor = serving.node.executor
    assert isinstance(executor, MemoryExecutor)
    executor.pci = {"0000:41:00.0": "nvme", "0000:42:00.0": "nvme", "0000:42:00.1": "ixgbe"}
    serving.node.pci_mappings["fast"] = ["node=other,path=0000:99:00.0", "node=pve,path=0000:41:00.0,id=8086:2700"]
    return executor


def test_a_vm_gets_pci_devices_by_address_and_by_mapping_and_the_node_does_not_get_them_back(
    root: Client, serving: Serving, pci: MemoryExecutor
) -> None:
    vmid = made(root, machine="q35", hostpci0="mapping=fast,pcie=1", hostpci1="42:00,rombar=0", kvm=0)
    assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == "OK"
    command = nodeshell.run(serving.node, ["qm", "showcmd", str(vmid)]).text
    assert "vfio-pci,host=0000:41:00.0,id=hostpci0,bus=ich9-pcie-port-1,addr=0x0" in command
    both = "vfio-pci,host=0000:42:00.0,id=hostpci1.0,bus=pci.0,addr=0x11.0,rombar=0,multifunction=on"
    assert both in command
    assert "vfio-pci,host=0000:42:00.1,id=hostpci1.1,bus=pci.0,addr=0x11.1" in command
    root.post(f"{QEMU}/{vmid}/status/stop")
    assert set(pci.pci.values()) == {"vfio-pci"}


@pytest.mark.usefixtures("pci")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hostpci0": "0000:43:00.0"}, "no PCI device found for '0000:43:00.0'"),
        ({"hostpci0": "mapping=slow"}, "PCI device mapping not found for 'slow'"),
        ({"hostpci0": "mapping=fast", "hostpci1": "0000:41:00.0"}, "device '0000:41:00.0' assigned more than once"),
        ({"machine": "pc", "hostpci0": "mapping=fast,pcie=1"}, "q35 machine model is not enabled"),
    ],
)
def test_a_pci_device_that_a_vm_cannot_get_fails_its_start(root: Client, settings: dict[str, str], said: str) -> None:
    vmid = made(root, kvm=0, **({"machine": "q35"} | settings))
    assert said in str(root.post(f"{QEMU}/{vmid}/status/start").exitstatus)


def test_a_backup_copies_the_drives_that_are_not_excluded_and_can_be_stopped(
    root: Client, serving: Serving, pci: MemoryExecutor
) -> None:
    vmid = made(root, scsi0="local-lvm:1", scsi1="local-lvm:1,backup=0", kvm=0)
    root.post(f"{QEMU}/{vmid}/status/start")
    done = root.post(f"{NODE}/vzdump", vmid=vmid, storage="local", **{"notes-template": "mine"})
    assert done.exitstatus == "OK", done
    assert any("exclude disk 'scsi1'" in line for line in done.log)
    (listed,) = root.get(f"{NODE}/storage/local/content", content="backup", vmid=vmid).result
    assert (listed["notes"], listed["subtype"], listed["format"]) == ("mine", "qemu", "vma")
    printed = root.post(f"{QEMU}/{vmid}/monitor", command="info backup").result
    assert "Backup status: done" in printed
    assert f"Transferred bytes: {1 << 30} (100%)" in printed
    assert root.delete(f"{NODE}/storage/local/content/{listed['volid']}").exitstatus == "OK"
    pci.backup_rate = 1 << 20
    upid = str(root._api(f"{NODE}/vzdump").post(vmid=vmid, storage="local"))
    while not any("started backup task" in line for line in serving.node.tasks.find(upid).log.lines):
        time.sleep(0.01)
    assert root.get(f"{QEMU}/{vmid}/config").result["lock"] == "backup"
    assert root.delete(f"{NODE}/tasks/{upid}").status == 200
    assert root.finished(upid).exitstatus == "job errors"
    assert root.get(f"{NODE}/storage/local/content", content="backup", vmid=vmid).result == []
    assert root.post(f"{NODE}/vzdump", vmid=vmid, storage="local-lvm").exitstatus != "OK"


def test_a_backup_needs_its_privileges(root: Client, serving: Serving) -> None:
    vmid = made(root, scsi0="local-lvm:1", kvm=0)
    root.post("access/users", userid="backup@pve", password="of the backup")
    root.put("access/acl", path="/storage/local", users="backup@pve", roles="PVEDatastoreUser")
    user = Client(serving, "backup@pve", password="of the backup")
    lacking = user.post(f"{NODE}/vzdump", vmid=vmid, storage="local")
    assert "VM.Backup" in str(lacking.exitstatus)
    assert user.post(f"{NODE}/vzdump", vmid=vmid, storage="local-lvm").status == 403
    assert user.post(f"{NODE}/vzdump", vmid=vmid, storage="local", script="/bin/sh").status == 400
    assert user.post(f"{NODE}/vzdump", vmid=vmid, storage="local", bwlimit=1).status == 403
