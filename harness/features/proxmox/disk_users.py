"""The users of a node's disk: every storage, VM and container that names it. A run never writes to a disk in use."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import SafetyError
from harness.features.proxmox.client import Client, PveError
from harness.files import read_script
from harness.lab.inventory import DiskById
from harness.lab.transport.base import Runner
from harness.untrusted import reading

_SEPARATORS = re.compile(r"[,=;\s]+")
_GROUPED = ("lvm", "lvmthin")

_PCI = re.compile(r"(?:([0-9a-f]{4,}):)?([0-9a-f]{2}:[0-9a-f]{2})(\.[0-9a-f])?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DiskNames:
    """The names by which the configuration of a node can refer to a disk.

    `paths` are all paths that lead to the disk or to a partition of it: its devices and their links below /dev/disk.
    `pci` has the addresses of its controllers, as in sysfs: 0000:03:00.0.
    """

    paths: frozenset[str]
    pci: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The part of a node's configuration that can name a disk, as its API reports it.

    `groups` has the devices of each volume group, `pools` the devices of each ZFS pool, `directories` the device that
    is mounted at each path. `guests` has the configuration of each VM and container by its name in messages (`VM 101`),
    including pending changes and snapshots. `mappings` has the PCI addresses of each resource mapping.
    """

    storages: Sequence[Mapping[str, Any]] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    directories: Mapping[str, str] = field(default_factory=dict)
    guests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mappings: Mapping[str, Sequence[str]] = field(default_factory=dict)


def find_claims(disk: DiskNames, node: NodeConfig) -> list[str]:
    """The users of the disk, as texts for a message; empty if there are none."""
    return [*_find_storages(disk.paths, node), *find_sharing(disk, node)]


def find_sharing(disk: DiskNames, node: NodeConfig) -> list[str]:
    """The VMs and containers that name the disk or its controller. PVE starts two on one device without a warning."""
    return list(_find_guests(disk, node))


def list_mappings_used(guests: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The resource mappings that VMs use for PCI devices."""
    options = (_parse_options(value) for config in guests.values() for key, value in config.items() if _is_pci(key))
    return {device["mapping"] for device in options if "mapping" in device}


def _find_storages(names: Collection[str], node: NodeConfig) -> Iterator[str]:
    bare = {name.rpartition("/")[2] for name in names}
    for group, devices in node.groups.items():
        if set(devices) & set(names):
            users = [f"storage {storage['storage']}" for storage in node.storages if _is_on_group(storage, group)]
            yield f"volume group {group} is on it" + _name_users(users)
    for pool, devices in node.pools.items():
        if {device.rpartition("/")[2] for device in devices} & bare:
            users = [f"storage {storage['storage']}" for storage in node.storages if _is_on_pool(storage, pool)]
            yield f"ZFS pool {pool} is on it" + _name_users(users)
    for path, device in node.directories.items():
        if device in names:
            users = [f"storage {storage['storage']}" for storage in node.storages if storage.get("path") == path]
            yield f"{path} is on it" + _name_users(users)
    for storage in node.storages:
        if (target := storage.get("target")) and any(f"-iscsi-{target}-lun-" in name for name in names):
            yield f"storage {storage['storage']} has it as a LUN of {target}"
        if any(token in names for value in storage.values() for token in _split_words(value)):
            yield f"storage {storage['storage']} names it"


def _find_guests(disk: DiskNames, node: NodeConfig) -> Iterator[str]:
    for guest, config in node.guests.items():
        keys = [key for key, value in config.items() if any(token in disk.paths for token in _split_words(value))]
        if keys:
            yield f"{guest} has it as {', '.join(keys)}"
        for key in filter(_is_pci, config):
            options = _parse_options(config[key])
            mapping = options.get("mapping")
            if mapping is not None and mapping not in node.mappings:
                yield f"{guest} has the PCI devices of the mapping {mapping} as {key}, and their addresses are unknown"
                continue
            given = options.get("host", "").split(";") if mapping is None else node.mappings[mapping]
            if hit := sorted(
                controller for controller in disk.pci if any(_is_at(controller, address) for address in given)
            ):
                yield f"{guest} has its controller {', '.join(hit)} as {key}"


def _is_pci(key: str) -> bool:
    return key.startswith("hostpci")


def _parse_options(value: object) -> dict[str, str]:
    """The options of a PCI device. An option without a name is `host`."""
    pairs = (part.partition("=") for part in str(value).split(","))
    return {(key if separator else "host"): text if separator else key for key, separator, text in pairs}


def _is_at(controller: str, address: str) -> bool:
    """Whether PVE's address includes the controller. The default domain is 0000, and the default function is all."""
    match = _PCI.fullmatch(address.strip())
    if match is None:
        return False
    whole = f"{(match[1] or '0000').lower()}:{match[2].lower()}"
    return controller == whole + match[3].lower() if match[3] else controller.rpartition(".")[0] == whole


def _is_on_group(storage: Mapping[str, Any], group: str) -> bool:
    return storage.get("type") in _GROUPED and storage.get("vgname") == group


def _is_on_pool(storage: Mapping[str, Any], pool: str) -> bool:
    return str(storage.get("pool", "")).partition("/")[0] == pool


def _name_users(users: Sequence[str]) -> str:
    return f" (used by {', '.join(users)})" if users else ""


def _split_words(value: object) -> list[str]:
    """The words of a configuration's value. A path may be anywhere in it, as in `args` or a container's devices."""
    return _SEPARATORS.split(str(value))


_NOT_IMPLEMENTED = 501
_SEES_STORAGES = frozenset({"Datastore.Audit", "Datastore.AllocateSpace"})
"""PVE lists a storage only to a login with one of these privileges on it."""

_ALIASES = read_script("harness.features.proxmox", "list_disk_paths.sh")

_CONTROLLERS = read_script("harness.features.proxmox", "list_controllers.sh")

# Only a node of PVE has this link, which leads to the directory of its own configuration.
_OWN_NAME = ["sh", "-c", "readlink /etc/pve/local || true"]


def read_node(runner: Runner) -> str:
    """The node of Proxmox VE that commands run on; empty if the machine is not a node."""
    return runner.run(_OWN_NAME, deadline=30).stdout.strip().rpartition("/")[2]


def require_same_node(client: Client, runner: Runner) -> None:
    """Raises SafetyError unless commands run on the API's node: the users of its disks would be unknown.

    A machine that does not answer the question is another machine.
    """
    reached = read_node(runner)
    if reached == client.spec.node:
        return
    # An API that does not answer is the first problem to solve.
    client.get("version")
    where = f"host {client.host}: the API is on node {client.spec.node}, but"
    if reached:
        raise SafetyError(
            f"{where} SSH leads to node {reached}",
            hint=f"correct host.{client.host}.api.node, or host.{client.host}.address",
        )
    raise SafetyError(
        f"{where} commands run on a machine that is not a node of Proxmox VE ({runner.name})",
        hint=f"name root's SSH key for the node as host.{client.host}.key, and its address as "
        f"host.{client.host}.address: without a key, commands run on this machine",
    )


def find_stable_path(runner: Runner, device: str, disk: str) -> str:
    """A path of the partition `device` that survives a reboot: below the link `disk`, or by the partition's own id.

    The kernel's name if udev has created neither.
    """
    names = sorted(list_aliases(runner, device))
    links = [name for name in names if name.startswith(f"{disk}-part")]
    links += [name for name in names if name.startswith("/dev/disk/by-partuuid/")]
    return links[0] if links else device


def list_aliases(runner: Runner, device: str) -> frozenset[str]:
    """All paths that lead to the block device, to its partitions and to the layers on them."""
    printed = runner.run(["sh", "-s", "--", device], stdin=_ALIASES, deadline=60).stdout
    return frozenset(printed.split("\n")) - {""} | {device}


def read_names(runner: Runner, device: str) -> DiskNames:
    """The names by which a configuration can refer to the disk or partition. Raises HostError."""
    pci = runner.run(["sh", "-c", _CONTROLLERS, "sh", device], deadline=30).stdout.split()
    return DiskNames(list_aliases(runner, device), frozenset(pci))


@reading("Proxmox VE's answer about its configuration", SafetyError)
def read_claims(client: Client, runner: Runner, disk: DiskById) -> list[str]:
    """The node's users of the disk, as texts. Raises SafetyError if the login may not see all possible users."""
    return find_claims(read_names(runner, disk.id), _read_config(client))


def require_unclaimed(client: Client, runner: Runner, disk: DiskById) -> None:
    """Raises SafetyError if a storage, VM or container names the disk, or if the login may not see all of them."""
    if reasons := read_claims(client, runner, disk):
        raise SafetyError(
            f"host {client.host}: disk {disk.name}, {disk.identity}, will not be written to: " + "; ".join(reasons),
            hint="if a killed run left it so: virt-overhead reap; otherwise, name another disk in the lab file",
        )


@reading("Proxmox VE's answer about its VMs", SafetyError)
def require_unshared(client: Client, runner: Runner, device: str, vmid: int | None) -> None:
    """Raises SafetyError if another VM or container than `vmid` names the device: PVE would start both."""
    guests = dict(_read_guests(client, without=vmid))
    reasons = find_sharing(
        read_names(runner, device), NodeConfig(guests=guests, mappings=_read_mappings(client, guests))
    )
    if reasons:
        raise SafetyError(
            f"host {client.host}: {device} is not attached: " + "; ".join(reasons),
            hint="two guests on one device destroy its contents; remove it from the other guest",
        )


def _read_config(client: Client) -> NodeConfig:
    _require_sight(client, "/storage", _SEES_STORAGES, "storages")
    guests = dict(_read_guests(client))
    return NodeConfig(
        storages=client.get("storage"),
        groups={
            str(group["name"]): [str(device["name"]) for device in group.get("children", ())]
            for group in list_children(client.list_made("lvm"))
        },
        pools={
            str(pool["name"]): list(_list_leaves(client.get(f"{client.node}/disks/zfs/{pool['name']}")))
            for pool in client.list_made("zfs")
        },
        directories={str(directory["path"]): str(directory["device"]) for directory in client.list_made("directory")},
        guests=guests,
        mappings=_read_mappings(client, guests),
    )


def list_children(tree: Any) -> list[Mapping[str, Any]]:
    """The entries of a list that PVE returns as a tree: volume groups with their devices as children."""
    entries: list[Mapping[str, Any]] = tree.get("children", []) if isinstance(tree, Mapping) else []
    return entries


def _read_mappings(client: Client, guests: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The PCI addresses on this node of the resource mappings that guests use, as far as the login may see them."""
    if not list_mappings_used(guests):
        return {}
    addresses: dict[str, list[str]] = {}
    for mapping in client.get("cluster/mapping/pci"):
        on_node = addresses.setdefault(str(mapping["id"]), [])
        for entry in mapping.get("map", ()):
            options = dict(part.partition("=")[::2] for part in str(entry).split(","))
            if options.get("node") == client.spec.node:
                on_node += options.get("path", "").split(";")
    return addresses


def _require_sight(client: Client, path: str, privileges: frozenset[str], of: str) -> None:
    """Raises SafetyError if the login may not see everything below the path."""
    if not privileges & client.privileges(path):
        raise SafetyError(
            f"host {client.host}: {client.spec.who} may not see all {of}, so the users of the disks are unknown",
            hint=f"give it {' or '.join(sorted(privileges))} on {path}: docs/proxmox.md has a role",
        )


def _read_guests(client: Client, *, without: int | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    _require_sight(client, "/vms", frozenset({"VM.Audit"}), "VMs")
    for kind, called in (("qemu", "VM"), ("lxc", "container")):
        for listed_guest in _list_guests(client, kind):
            vmid = int(listed_guest["vmid"])
            if vmid != without:
                yield f"{called} {vmid}", _read_guest_config(client, f"{client.node}/{kind}/{vmid}")


def _read_guest_config(client: Client, path: str) -> Mapping[str, Any]:
    """A guest's present and pending configuration, and that of its snapshots. A drive in any of them is in use."""
    now: dict[str, Any] = client.get(f"{path}/config", {"current": 1})
    later: dict[str, Any] = client.get(f"{path}/config")
    config = now | {f"{key} (pending)": value for key, value in later.items() if now.get(key) != value}
    for snapshot in client.get(f"{path}/snapshot"):
        if (name := str(snapshot["name"])) != "current":
            stored: dict[str, Any] = client.get(f"{path}/snapshot/{name}/config")
            config |= {f"{key} (snapshot {name})": value for key, value in stored.items()}
    return config


def _list_guests(client: Client, kind: str) -> list[Mapping[str, Any]]:
    """The VMs or containers of the node; none if the node is installed without them."""
    try:
        guests: list[Mapping[str, Any]] = client.get(f"{client.node}/{kind}")
    except PveError as error:
        if error.status != _NOT_IMPLEMENTED:
            raise
        return []
    return guests


def _list_leaves(tree: Mapping[str, Any]) -> Iterator[str]:
    below = tree.get("children", ())
    if not below:
        yield str(tree.get("name", ""))
    for child in below:
        yield from _list_leaves(child)
