"""The cloud-init files that PVE makes of a configuration, as cloudinit/dump shows them."""

from __future__ import annotations

from urllib.parse import unquote

from pve_double.formats import parse
from pve_double.qemu import network
from pve_double.qemu.machine import Config
from pve_double.schema import split_list

NODE_NAMESERVER = "10.255.255.53"
"""The nameserver of the recorded node, which a VM without one gets."""


def user_data(vmid: int, config: Config) -> str:
    hostname = config.get("name", f"VM{vmid}")
    lines = ["#cloud-config", f"hostname: {hostname}", "manage_etc_hosts: true"]
    lines += [f"fqdn: {hostname}.{config['searchdomain']}"] if "searchdomain" in config else []
    lines += [f"user: {config['ciuser']}"] if "ciuser" in config else ["disable_root: False"]
    lines += [f"password: {config['cipassword']}"] if "cipassword" in config else []
    keys = unquote(config.get("sshkeys", "")).splitlines()
    lines += ["ssh_authorized_keys:", *(f"  - {key}" for key in keys)] if keys else []
    lines += ["chpasswd:", "  expire: False"]
    lines += ["users:", "  - default"] if "ciuser" in config else []
    lines += [f"package_upgrade: {'true' if config.get('ciupgrade', '1') == '1' else 'false'}"]
    return "".join(f"{line}\n" for line in lines)


def network_config(config: Config) -> str:
    lines = ["version: 1", "config:"]
    for card in network.cards(config):
        address = parse("pve-qm-ipconfig", config.get(f"ipconfig{card.index}", "")).get("ip", "")
        lines += [
            "    - type: physical",
            f"      name: eth{card.index}",
            f"      mac_address: '{card.address.lower()}'",
        ]
        lines += ["      subnets:", *_subnet(address)] if address else []
    servers = split_list(config.get("nameserver", NODE_NAMESERVER))
    lines += ["    - type: nameserver", "      address:", *(f"      - '{server}'" for server in servers)]
    if "searchdomain" in config:
        lines += ["      search:", f"      - '{config['searchdomain']}'"]
    return "".join(f"{line}\n" for line in lines)


def _subnet(address: str) -> list[str]:
    if address == "dhcp":
        return ["      - type: dhcp4"]
    return ["      - type: static", f"        address: '{address.partition('/')[0]}'"]


def meta_data(vmid: int) -> str:
    return f"instance-id: double-{vmid}\n"
