"""Finds what a node of Proxmox VE has to measure, by its API and its shell. It only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from harness.errors import ConfigError, HostError
from harness.features.init.commands import UNKNOWN_NODE, InitRequest
from harness.features.init.lab_file import parse_host
from harness.features.init.offers import (
    LEAST_BYTES,
    OF_A_RUN,
    Names,
    NotOffered,
    Offers,
    StorageOffer,
    explain_too_little,
    find_disks,
)
from harness.features.proxmox import ProxmoxSpec
from harness.features.proxmox.client import TO_CREATE_VOLUMES, Client, PveError, open_client
from harness.features.proxmox.disk_users import read_claims, read_node
from harness.features.proxmox.layouts import list_offered
from harness.lab.inventory import HostSpec
from harness.lab.lab_schema import storage_keys
from harness.lab.pin import TAG
from harness.lab.storages import reserve_bytes
from harness.lab.transport.base import Runner
from harness.untrusted import count, first_problem, reading

_NO_SHELL = "Proxmox VE reports no use of it, but only commands on the node can find all users: add --key FILE"


def inspect_node(request: InitRequest, spec: HostSpec, runner: Runner) -> tuple[dict[str, Any], Offers]:
    """The node's table, with its own name, and what it has to measure."""
    node, host = spec.hypervisor, request.host
    assert isinstance(node, ProxmoxSpec), "no other hypervisor is on such a host"
    if host["api"]["node"] == UNKNOWN_NODE:
        with open_client(request.name, node) as client:
            host = host | {"api": host["api"] | {"node": read_node_name(client, runner)}}
        named = parse_host(request.name, host).hypervisor
        node = named if isinstance(named, ProxmoxSpec) else node
    with open_client(request.name, node) as client:
        return host, find_offers(client, runner, Names.besides(request.reserved))


def read_node_name(client: Client, runner: Runner) -> str:
    """The name of the node. Raises ConfigError if neither its shell nor its API shows which one is meant."""
    if node := read_node(runner):
        return node
    with reading(f"host {client.host}: Proxmox VE's list of nodes"):
        names = [str(entry["node"]) for entry in client.get("nodes")]
    if len(names) != 1:
        raise ConfigError(
            f"host {client.host}: its cluster has several nodes: {', '.join(names)}",
            hint="choose one with --node NAME, and name its address with --proxmox",
        )
    return names[0]


def find_offers(client: Client, runner: Runner, names: Names) -> Offers:
    """The node's storages and disks. Disks are offered only if `runner` runs commands on the node itself.

    Raises HostError.
    """
    storages: list[StorageOffer] = []
    others: list[NotOffered] = []
    what = f"host {client.host}: Proxmox VE's list of storages"
    with reading(what):
        entries = list(client.get(f"{client.node}/storage"))
    for entry in entries:
        offer: StorageOffer | NotOffered
        try:
            with reading(what):
                offer = _format_storage(client, entry, names)
        except HostError as error:
            offer = NotOffered("a storage", error.message)
        if isinstance(offer, NotOffered):
            others.append(offer)
        else:
            storages.append(offer)
    notes = [] if entries else [f"{client.spec.who} sees no storage: docs/proxmox.md has the privileges that it needs"]
    if read_node(runner) == client.spec.node:
        free, used = find_disks(runner, names, partial(read_claims, client, runner))
        return Offers(tuple(storages), tuple(free), tuple(others), tuple(used), tuple(notes))
    notes.append("disks were not inspected, because no command can run on the node without its SSH key (--key)")
    return Offers(tuple(storages), (), tuple(others), tuple(_listed_disks(client)), tuple(notes), needs_key=True)


def _format_storage(client: Client, entry: Mapping[str, Any], names: Names) -> StorageOffer | NotOffered:
    name, kind = str(entry["storage"]), str(entry["type"])
    layouts = list_offered(kind)
    if why := _why_not(entry, name, layouts) or _forbidden(client, name):
        return NotOffered(f"storage {name} ({kind})", why)
    free, total = count(entry.get("avail")), count(entry.get("total"))
    usable = max(free - reserve_bytes(total), 0)
    if usable < LEAST_BYTES:
        return NotOffered(f"storage {name} ({kind})", explain_too_little(free, total))
    krbd = [f"krbd {int(client.storages().get(name, {}).get('krbd') or 0)}"] if kind == "rbd" else []
    notes = (f"type {kind}", *krbd, *(["shared with other nodes"] if entry.get("shared") else []))
    return StorageOffer(names.name(name, "storage"), "storage", name, layouts, free, usable, notes)


def _why_not(entry: Mapping[str, Any], name: str, layouts: Sequence[str]) -> str | None:
    """Why no volumes can be created on it; None if they can."""
    try:
        storage_keys().model_validate({"storage": name})
    except ValidationError as error:
        return f"a lab file cannot name it: {first_problem(error)}"
    if "images" not in str(entry.get("content", "")).split(","):
        return "it does not accept disk images"
    if not layouts:
        return "its type is not supported"
    if not entry.get("enabled", 1) or not entry.get("active"):
        return "it is not active"
    return OF_A_RUN if name.startswith(f"{TAG}-") else None


def _forbidden(client: Client, storage: str) -> str | None:
    """Why the login may not create volumes on it, with the remedy; None if it may."""
    path = f"/storage/{storage}"
    lacking = [volume for volume in TO_CREATE_VOLUMES if volume not in client.privileges(path)]
    if not lacking:
        return None
    return (
        f"{client.spec.who} may not create volumes on it: it lacks {' and '.join(lacking)} on {path} "
        "(docs/proxmox.md has a role)"
    )


def _listed_disks(client: Client) -> list[NotOffered]:
    """What the API reports of the disks. It does not show every user of a disk, so none of them is offered."""
    try:
        with reading(f"host {client.host}: Proxmox VE's list of disks"):
            return [
                NotOffered(
                    f"{disk['devpath']} ({disk.get('model', 'unknown')})",
                    f"in use: {disk['used']}" if disk.get("used") else _NO_SHELL,
                )
                for disk in client.get(f"{client.node}/disks/list")
            ]
    except PveError as error:
        return [NotOffered("disks", error.message)]
