"""Reads the state of a node from its API, for the doctor. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.doctor.findings import Finding
from harness.errors import ConfigError, HostError, LabUnavailable, SafetyError
from harness.guest.proxmox.client import Client, PveError
from harness.guest.proxmox.fitness import NodeState, examine_node, needed, unreachable
from harness.guest.proxmox.node import claims_on, node_of
from harness.guest.proxmox.secrets import read_secret
from harness.guest.proxmox.vm import free_ids
from harness.guest.proxmox.vmids import taken_ids
from harness.lab.inventory import DiskById, HostSpec
from harness.lab.proxmox import ProxmoxSpec
from harness.lab.transport.base import Runner


def node_findings(host: HostSpec, spec: ProxmoxSpec, runner: Runner) -> list[Finding]:
    """The doctor's findings about a node of Proxmox VE."""
    try:
        with logged_in(host.name, spec) as client:
            return examine_node(host, spec, read_state(host, spec, client, runner))
    except (LabUnavailable, ConfigError, HostError) as error:
        return [unreachable(error)]


@contextmanager
def logged_in(name: str, spec: ProxmoxSpec) -> Iterator[Client]:
    """A client of the node's API, which is logged in until the end of the block."""
    api = spec.api
    secret = read_secret(api.secret, user=api.who, where=f"host.{name}.api.secret", for_header=api.token is not None)
    client = Client(spec.api, secret, name)
    try:
        yield client
    finally:
        client.close()


def read_state(host: HostSpec, spec: ProxmoxSpec, client: Client, runner: Runner) -> NodeState:
    """What the API reports of the node now."""
    paths = dict.fromkeys(each.path for each in needed(host, spec))
    return NodeState(
        version=str(client.get("version")["version"]),
        granted={path: client.privileges(path) for path in paths},
        storages=client.get(f"{client.node}/storage"),
        bridges=[str(each["iface"]) for each in client.get(f"{client.node}/network", {"type": "any_bridge"})],
        hvm=_has_hvm(client),
        free_ids=_free_ids(client, spec),
        reached=node_of(runner),
        claims={disk.name: _claims(client, runner, disk) for disk in host.disks if isinstance(disk, DiskById)},
    )


def _free_ids(client: Client, spec: ProxmoxSpec) -> int | None:
    try:
        return sum(1 for _ in free_ids(spec.guest.vmids, taken_ids(client)))
    except SafetyError:
        return None


def _has_hvm(client: Client) -> bool | None:
    """Whether the CPU offers virtualisation; None if the login may not read it (Sys.Audit on the node)."""
    try:
        found = client.get(f"{client.node}/status").get("cpuinfo", {}).get("hvm")
    except PveError:
        return None
    return None if found is None else str(found) not in ("", "0")


def _claims(client: Client, runner: Runner, disk: DiskById) -> list[str] | None:
    try:
        return claims_on(client, runner, disk)
    except SafetyError:
        return None
