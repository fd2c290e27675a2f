"""VMs in Proxmox VE's words: what they are made of, how they are known again, where they answer."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import pytest

from harness.features.proxmox import GuestRules
from harness.features.proxmox.machine import build_address_script, find_address
from harness.features.proxmox.vm_config import (
    build_clone_parameters,
    build_marks,
    build_shell_parameters,
    build_size_parameters,
    free_ids,
    list_root_options,
    name_vm,
    refuse_options,
)
from harness.model.guest import ANY_GUEST, GuestOptions
from tests.unit.guest_options import GUEST_OPTIONS

RUN = "20261121-101500-ab12"
KEY = "ssh-ed25519 AAAA+b/c user@host+x"
CLOUD = {"ide2": "local:900/vm-900-cloudinit.qcow2,media=cdrom", "scsi0": "local-lvm:base-900-disk-0"}


def card(address: str, kind: str = "ipv4") -> Mapping[str, Any]:
    return {"name": "eth0", "ip-addresses": [{"ip-address": address, "ip-address-type": kind, "prefix": 24}]}


def test_no_default_of_pve_applies_to_a_guest() -> None:
    made = build_shell_parameters(GuestRules(bridge="vmbr1", kvm=False, cpu="max"), "local:iso/voh-1.iso", 2)
    asked = {"machine": "q35", "cpu": "max", "scsihw": "virtio-scsi-single", "kvm": 0, "agent": "enabled=1"}
    assert asked.items() <= made.items()
    assert (made["ide2"], made["boot"]) == ("local:iso/voh-1.iso,media=cdrom", "order=ide2")
    assert (made["net0"], made["cores"], made["memory"]) == ("virtio,bridge=vmbr1", 2, 768)


def test_a_vm_has_its_run_and_token_from_the_beginning() -> None:
    made = build_marks(RUN, "c0ffee")
    assert (made["name"], made["tags"]) == (f"voh-{RUN}", f"voh;voh-{RUN}")
    assert "c0ffee" in str(made["description"])
    assert RUN in str(made["description"])


def test_a_name_is_one_that_dns_allows() -> None:
    assert name_vm("my_run.7") == "voh-my-run-7"
    assert len(name_vm("x" * 100)) == 63


def test_ids_are_the_free_ones_of_the_range() -> None:
    assert list(free_ids((9000, 9004), {9001, 9003, 100})) == [9000, 9002, 9004]


def test_a_clone_gets_our_key_by_its_cloud_init_drive() -> None:
    rules = GuestRules(template=900, network="cloud-init", address="192.0.2.5/24", gateway="192.0.2.1")
    settings = build_clone_parameters(rules, CLOUD, 2, KEY)
    assert settings["ipconfig0"] == "ip=192.0.2.5/24,gw=192.0.2.1"
    assert settings["ciuser"] == "root"
    assert unquote(str(settings["sshkeys"])) == KEY
    assert not set(" +/@") & set(str(settings["sshkeys"]))
    assert build_clone_parameters(GuestRules(template=900), CLOUD, 2, KEY)["ipconfig0"] == "ip=dhcp"


def test_a_template_without_cloud_init_must_have_our_key() -> None:
    assert "sshkeys" not in build_clone_parameters(GuestRules(template=900), {"scsi0": "local-lvm:base"}, 2, KEY)
    with pytest.raises(ValueError, match="template 900 has no cloud-init drive"):
        build_clone_parameters(GuestRules(template=900, network="cloud-init"), {"scsi0": "local-lvm:base"}, 2, KEY)


def test_the_address_is_the_first_that_others_can_reach() -> None:
    assert (
        find_address([card("127.0.0.1"), card("169.254.7.7"), card("fe80::1", "ipv6"), card("10.9.0.7")]) == "10.9.0.7"
    )
    assert find_address([card("127.0.0.1")]) is None
    assert find_address([]) is None


def test_the_script_that_sets_an_address_is_one_of_a_shell() -> None:
    script = build_address_script(GuestRules(network="static", address="192.0.2.5/24", gateway="192.0.2.1"))
    assert 'ip address replace 192.0.2.5/24 dev "$nic"' in script
    assert "ip route replace default via 192.0.2.1" in script
    assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0


PVE_HAS = {
    "study-1": {"cores": 2, "memory": 8192},
    "vcpus": {"cores": 4},
    "memory": {"cores": 2, "memory": 1024},
    "machine": {"cores": 2, "machine": "pc-q35-9.2"},
    "cpu-max": {"cores": 2, "cpu": "max"},
    "cpu-model": {"cores": 2, "cpu": "EPYC-Milan"},
    "one-place": {"cores": 2, "affinity": "2-3"},
    "numa": {"cores": 2, "numa": 1, "numa0": "cpus=0-1,hostnodes=0,memory=768,policy=bind"},
    "numa-preferred": {"cores": 2, "numa": 1, "numa0": "cpus=0-1,hostnodes=0,memory=768,policy=preferred"},
    "numa-interleave": {"cores": 2, "numa": 1, "numa0": "cpus=0-1,hostnodes=0-1,memory=768,policy=interleave"},
    "hidden": {"cores": 2, "cpu": "host,hidden=1"},
    "polling": {"cores": 2},
    "no-polling": {"cores": 2},
    "hugepages": {
        "cores": 2, "numa": 1, "numa0": "cpus=0-1,hostnodes=0,memory=768,policy=bind", "hugepages": "2",
    },
    "large-hugepages": {
        "cores": 2, "memory": 1024, "numa": 1, "numa0": "cpus=0-1,hostnodes=0,memory=1024,policy=bind",
        "hugepages": "1024",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GUEST_OPTIONS)
def test_a_guests_options_are_those_of_qm_or_refused_with_the_remedy(name: str) -> None:
    guest = GUEST_OPTIONS[name]
    if name in PVE_HAS:
        assert refuse_options(guest) is None
        assert build_size_parameters(guest, guest.vcpu_count or 2) == PVE_HAS[name]
    else:
        assert name in (
            "topology",
            "pc",
            "pins",
            "haltpoll",
            "poll",
            "files",
            "image",
            "image-uefi",
        )
        assert ": request " in (refuse_options(guest) or "") or ": leave out" in (refuse_options(guest) or "")
        with pytest.raises(ValueError, match="Proxmox VE"):
            build_size_parameters(guest, 2)


def test_sockets_divide_the_cores() -> None:
    assert build_size_parameters(GuestOptions(sockets=2, cores=2), 4) == {"cores": 2, "sockets": 2}


def test_a_guest_without_a_request_has_only_its_number_of_vcpus() -> None:
    assert build_size_parameters(ANY_GUEST, 2) == {"cores": 2}


@pytest.mark.parametrize(
    ("name", "options"),
    [("one-place", ["pin_vcpus"]), ("hugepages", ["hugepages"]), ("numa", []), ("no-polling", ["poll_max_ns"])],
)
def test_some_options_are_for_root_only(name: str, options: list[str]) -> None:
    assert list_root_options(GUEST_OPTIONS[name], None) == options
