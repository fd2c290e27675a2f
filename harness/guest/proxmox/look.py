"""Reads from a node's API what the doctor judges: nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.doctor.findings import Finding
from harness.doctor.proxmox import NodeSeen, examine_node, needed
from harness.errors import SafetyError
from harness.guest.proxmox.client import Client
from harness.guest.proxmox.node import claims_on
from harness.guest.proxmox.secrets import read_secret
from harness.guest.proxmox.vm import free_ids
from harness.lab.inventory import DiskById, HostSpec
from harness.lab.proxmox import ProxmoxSpec
from harness.lab.transport.base import Runner


def node_findings(host: HostSpec, runner: Runner) -> list[Finding]:
    """The doctor's findings on a node of Proxmox VE; none on other hosts. Raises LabUnavailable, ConfigError."""
    if host.proxmox is None:
        return []
    with logged_in(host.name, host.proxmox) as client:
        return examine_node(host, host.proxmox, look_at(host, host.proxmox, client, runner))


@contextmanager
def logged_in(name: str, spec: ProxmoxSpec) -> Iterator[Client]:
    """A client of the node's API for as long as this lasts."""
    secret = read_secret(spec.api.secret, user=spec.api.who, where=f"host.{name}.api.secret")
    client = Client(spec.api, secret, name)
    try:
        yield client
    finally:
        client.close()


def look_at(host: HostSpec, spec: ProxmoxSpec, client: Client, runner: Runner) -> NodeSeen:
    """What the API tells of the node now."""
    paths = dict.fromkeys(each.path for each in needed(host, spec))
    used = {int(each["vmid"]) for each in client.get("cluster/resources", {"type": "vm"})}
    status = client.get(f"{client.node}/status")
    return NodeSeen(
        version=str(client.get("version")["version"]),
        granted={path: _granted(client, path) for path in paths},
        storages=client.get(f"{client.node}/storage"),
        bridges=[str(each["iface"]) for each in client.get(f"{client.node}/network", {"type": "any_bridge"})],
        hvm=str(status.get("cpuinfo", {}).get("hvm", "")) not in ("", "0"),
        free_ids=sum(1 for _ in free_ids(spec.guest.vmids, used)),
        claims={disk.name: _claims(client, runner, disk) for disk in host.disks if isinstance(disk, DiskById)},
    )


def _granted(client: Client, path: str) -> frozenset[str]:
    return frozenset(client.get("access/permissions", {"path": path}).get(path, {}))


def _claims(client: Client, runner: Runner, disk: DiskById) -> list[str] | None:
    try:
        return claims_on(client, runner, disk)
    except SafetyError:
        return None
