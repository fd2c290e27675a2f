"""What the real Proxmox VE does and others would not expect: the code holds to it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError, SafetyError
from harness.features.calibrate.command import choose_disk
from harness.features.proxmox import ApiSpec, GuestRules, ProxmoxSpec, SecretSource
from harness.features.proxmox.client import Client, find_remedy, is_lock_timeout
from harness.features.proxmox.disk_users import find_stable_path, require_same_node, require_unclaimed
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import choose_drives
from harness.lab.inventory import DiskById, HostSpec
from harness.lab.pin import disks_below
from harness.model.attach import Attach
from harness.model.layout import Partition
from harness.model.mode import Mode
from harness.model.option import Bus
from pve_double.server import serve
from pve_double.state import Node
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import connected, played_back
from tests.features.proxmox.proxmox_shell import DISK, LINK, NodeShell
from tests.features.proxmox.test_proxmox_backend import (
    HOST,
    RUN,
    SPAN,
    hypervisor,
)
from tests.unit.loop_disks import RUNNER, loop, mounted, require, run, sparse
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "node", "serving", "shell"]

FACTS = {
    "virtio0-15, scsi0-30, sata0-5": "a_bus_has_as_many_places_as_pve_gives_it",
    "a key that a bus has not is refused": "an_option_that_pve_lacks_is_refused_by_name",
    "aio and cache are always pinned": "our_drive_string_has_all_options_of_a_recorded_one",
    "cache is direct, no-flush and write-cache": "cache_and_aio_are_read_back_as_requested",
    "detect_zeroes is on unless told": "every_offered_attachment_is_read_back_as_requested_and_as_with_libvirt",
    "native aio without O_DIRECT fails at the start": "a_vm_that_ends_right_after_its_start_is_an_error",
    "an ignored iothread is a warning": "what_pve_ignores_is_not_measured",
    "lsi, pc and kvm64 are the defaults": "no_default_of_pve_applies_to_a_guest",
    "destroying a VM frees its volumes": "destroying_a_vm_frees_what_its_configuration_names_and_nothing_else",
    "two VMs start on one disk without an error": "two_guests_never_share_a_disk",
    "device paths are for a ticket of root@pam": "passthrough_with_a_token_is_refused_before_anything_is_made",
    "tokens may do all the rest": "existing_storages_are_measured_with_these_privileges",
    "HTTP 596 while the write goes on": "a_lost_answer_is_survived_and_nothing_is_done_twice",
    "a write is never blindly repeated": "a_write_whose_answer_was_lost_is_never_repeated",
    "a task can fail after HTTP 200": "a_task_is_followed_to_its_end",
    "WARNINGS is success with something ignored": "a_warning_is_not_a_success",
    "a lock held by another is waited for": "a_held_lock_is_waited_for",
    "a locked VM is left by a dead client": "a_vm_that_a_dead_client_left_locked_is_removed",
    "nextid races": "an_id_that_another_client_takes_first_is_not_used",
    "a removal that failed stays pending": "a_removal_that_pve_left_pending_is_reverted",
    "a missing VM answers 500": "an_error_has_the_text_of_pve",
    "values mix strings and numbers": "an_answer_arrives_as_it_was_given",
    "booleans are 0 and 1": "booleans_are_sent_as_0_and_1",
    "sshkeys are quoted exactly once": "a_clone_gets_our_key_by_its_cloud_init_drive",
    "a missing program in the guest answers 596": "a_command_in_the_guest_is_given_to_a_shell_word_by_word",
    "exec-status is told once": "a_command_whose_reported_end_was_lost_is_run_again",
    "the agent does not answer at first": "an_agent_that_does_not_answer_yet_is_waited_for",
    "the address is from network-get-interfaces": "a_guest_is_reached_at_the_address_that_its_agent_reports",
    "five seconds are too short": "every_call_ends_by_its_deadline",
    "reads are repeated": "a_read_is_repeated_until_it_is_answered",
}
"""What was observed of Proxmox VE 9.2, and the test that holds the backend to it."""
TESTS = Path(__file__).parent
MIB = 1024**2
API = ApiSpec(url="https://192.0.2.9", node="pve", secret=SecretSource(env="X"))


@pytest.mark.parametrize(("fact", "test"), FACTS.items(), ids=FACTS)
def test_every_fact_has_a_test(fact: str, test: str) -> None:
    holding = [file.name for file in TESTS.glob("test_proxmox_*.py") if f"def test_{test}(" in file.read_text()]
    assert len(holding) == 1, fact


# What is sent


def test_booleans_are_sent_as_0_and_1() -> None:
    with played_back() as (recorded, client):
        client.write("post", "nodes/pve/qemu", {"onboot": True, "tablet": False, "cores": 2}, is_done=lambda: False)
    assert recorded.body == b"onboot=1&tablet=0&cores=2"


def test_a_command_in_the_guest_is_given_to_a_shell_word_by_word() -> None:
    # A program that is not there is answered with a 596, as if the answer had been lost.
    with played_back() as (recorded, client):
        recorded.record = {"result": {"pid": 291, "exited": 1, "exitcode": 0}}
        assert VirtualMachine(client, 9000).run_by_agent("ip link", deadline=5)
    assert recorded.body == b"command=%2Fbin%2Fsh&command=-c&command=ip+link"


@pytest.mark.parametrize(("bus", "last"), [("virtio-blk", "virtio15"), ("virtio-scsi", "scsi30"), ("sata", "sata5")])
def test_a_bus_has_as_many_places_as_pve_gives_it(bus: Bus, last: str) -> None:
    number = int(re.sub(r"\D", "", last)) + 1
    assert list(choose_drives({str(disk): bus for disk in range(number)}).values())[-1] == last
    with pytest.raises(ValueError, match=f"room for {number} disks"):
        choose_drives({str(disk): bus for disk in range(number + 1)})


# Locks


@pytest.mark.parametrize(
    ("said", "nothing_done"),
    [
        ("can't lock file '/var/lock/qemu-server/lock-121.conf' - got timeout", True),
        ("cfs-lock 'file-storage_cfg' error: got lock request timeout", True),
        ("cfs-lock 'storage-nfs' error: got lock timeout - aborting command", False),
        ("VM 101 qmp command 'query-status' failed - got timeout", False),
        ("VM is locked (backup)", False),
    ],
)
def test_only_a_lock_that_pve_did_not_get_is_waited_for(said: str, nothing_done: bool) -> None:
    assert is_lock_timeout(said) == nothing_done


@pytest.mark.parametrize(
    ("said", "what_to_do"),
    [
        ("KVM virtualisation configured, but not available. Either disable in VM configuration", "kvm = false"),
        ("hostname lookup 'pve' failed - failed to get address info for: pve", "host.node1.api.node"),
        ("cfs-lock 'file-storage_cfg' error: no quorum!", "pvecm status"),
        ("VM is locked (snapshot)", "qm unlock"),
        ("Only root may use this option.", "root@pam with a password"),
        ("Permission check failed (/vms/9000, VM.Allocate)", "docs/proxmox.md"),
    ],
)
def test_an_error_of_pve_gets_its_remedy(said: str, what_to_do: str, client: Client) -> None:
    assert what_to_do in (find_remedy(said, client) or "")


# Which disk, which node, who may see what


def test_a_partition_is_attached_by_a_path_that_survives_a_reboot() -> None:
    links = f"/dev/sdb2\n{LINK}-part2\n/dev/disk/by-partuuid/1234\n"
    assert find_stable_path(PlayedShell({"/dev/mapper/*": links}), "/dev/sdb2", LINK) == f"{LINK}-part2"
    links = "/dev/sdb2\n/dev/disk/by-id/wwn-0x5-part2\n/dev/disk/by-partuuid/1234\n"
    assert find_stable_path(PlayedShell({"/dev/mapper/*": links}), "/dev/sdb2", LINK) == "/dev/disk/by-partuuid/1234"
    assert find_stable_path(PlayedShell({"/dev/mapper/*": "/dev/sdb2\n"}), "/dev/sdb2", LINK) == "/dev/sdb2"


def test_the_mode_partition_gets_such_a_path(client: Client, tmp_path: Path, shell: NodeShell) -> None:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    shell.prints["/dev/mapper/*"] = f"/dev/sdb2\n{LINK}-part2\n"
    modes = [HOST, Mode("partition", Partition(), Attach())]
    with hypervisor(client, iso, shell).layouts(shell.log(RUN), [DISK], modes, span=SPAN) as layouts:
        assert layouts.by_mode["partition"].path == f"{LINK}-part2"


def test_a_volume_on_a_loop_device_is_on_the_disk_of_its_file(tmp_path: Path) -> None:
    require("findmnt", "mkfs.ext4")
    file = sparse(tmp_path / "storage", 16 * MIB)
    if not (expected := disks_below(RUNNER, str(file))):
        pytest.skip("the directory for tests is on no disk of this machine")
    with loop(file) as device:
        assert disks_below(RUNNER, device) == expected
        # A file on a file system on it, as a storage of a test node may be.
        run("mkfs.ext4", "-q", device)
        with mounted(device, tmp_path / "mounted"):
            assert disks_below(RUNNER, str(sparse(tmp_path / "mounted" / "volume", MIB))) == expected


def test_commands_that_reach_another_node_than_the_api_are_refused(client: Client) -> None:
    require_same_node(client, PlayedShell({"/etc/pve/local": "nodes/pve\n"}))
    with pytest.raises(SafetyError, match="the API is on node pve, but SSH leads to node pve2"):
        require_same_node(client, PlayedShell({"/etc/pve/local": "nodes/pve2\n"}))


def test_a_machine_that_is_not_a_node_does_not_count_as_the_node(client: Client) -> None:
    # Without a key in the lab file, commands run on the machine of pytest.
    with pytest.raises(SafetyError, match="commands run on a machine that is not a node of Proxmox VE") as error:
        require_same_node(client, PlayedShell({}))
    assert "host.node1.key" in (error.value.hint or "")


def test_without_the_right_to_see_all_storages_no_disk_counts_as_free(node: Node, tmp_path: Path) -> None:
    with serve(node) as serving, connected(serving) as root:
        root.write("post", "access/users", {"userid": "bench@pve"}, is_done=lambda: False)
        root.write("post", "access/roles", {"roleid": "Sees", "privs": "VM.Audit"}, is_done=lambda: False)
        acl = {"path": "/vms", "users": "bench@pve", "roles": "Sees"}
        root.write("put", "access/acl", acl, is_done=lambda: False)
        path = "access/users/bench@pve/token/voh"
        value = root.write("post", path, {"privsep": 0}, is_done=lambda: False)["value"]
        with (
            connected(serving, user="bench@pve", token="voh", secret=Secret(value)) as client,
            pytest.raises(SafetyError, match="may not see all storages") as error,
        ):
            require_unclaimed(client, NodeShell(serving, tmp_path), DISK)
    assert "Datastore.Audit" in (error.value.hint or "")


def test_a_calibration_without_the_password_of_root_is_refused_before_it_starts() -> None:
    disk = DiskById("optane", LINK, "PHM1", destroy=True)
    token = ProxmoxSpec(API.model_copy(update={"user": "bench@pve", "token": "voh"}), GuestRules())
    host = HostSpec("pve1", "proxmox", ssh=None, disks=(disk,), hypervisor=ProxmoxSpec(API, GuestRules()))
    assert choose_disk(host, None) == "optane"
    with pytest.raises(ConfigError, match=r"only from root@pam with a password, not from bench@pve!voh") as error:
        choose_disk(replace(host, hypervisor=token), None)
    assert "host.pve1.api.user" in (error.value.hint or "")
