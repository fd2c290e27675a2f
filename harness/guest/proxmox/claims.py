"""The users of a node's disk: every storage, VM and container whose configuration names it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


def claims(disk: DiskNames, node: NodeConfig) -> list[str]:
    """The users of the disk, as texts for a message; empty if there are none."""
    return [*_of_storages(disk.paths, node), *shared(disk, node)]


def shared(disk: DiskNames, node: NodeConfig) -> list[str]:
    """The VMs and containers that name the disk or its controller. PVE starts two on one device without a warning."""
    return list(_of_guests(disk, node))


def mappings_used(guests: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The resource mappings that VMs use for PCI devices."""
    options = (_options(value) for config in guests.values() for key, value in config.items() if _is_pci(key))
    return {found["mapping"] for found in options if "mapping" in found}


def _of_storages(names: Collection[str], node: NodeConfig) -> Iterator[str]:
    bare = {name.rpartition("/")[2] for name in names}
    for group, devices in node.groups.items():
        if set(devices) & set(names):
            users = [f"storage {storage['storage']}" for storage in node.storages if _is_on_group(storage, group)]
            yield f"volume group {group} is on it" + _used_by(users)
    for pool, devices in node.pools.items():
        if {device.rpartition("/")[2] for device in devices} & bare:
            users = [f"storage {storage['storage']}" for storage in node.storages if _is_on_pool(storage, pool)]
            yield f"ZFS pool {pool} is on it" + _used_by(users)
    for path, device in node.directories.items():
        if device in names:
            users = [f"storage {storage['storage']}" for storage in node.storages if storage.get("path") == path]
            yield f"{path} is on it" + _used_by(users)
    for storage in node.storages:
        if (target := storage.get("target")) and any(f"-iscsi-{target}-lun-" in name for name in names):
            yield f"storage {storage['storage']} has it as a LUN of {target}"
        if any(token in names for value in storage.values() for token in _tokens(value)):
            yield f"storage {storage['storage']} names it"


def _of_guests(disk: DiskNames, node: NodeConfig) -> Iterator[str]:
    for guest, config in node.guests.items():
        keys = [key for key, value in config.items() if any(token in disk.paths for token in _tokens(value))]
        if keys:
            yield f"{guest} has it as {', '.join(keys)}"
        for key in filter(_is_pci, config):
            options = _options(config[key])
            mapping = options.get("mapping")
            if mapping is not None and mapping not in node.mappings:
                yield f"{guest} has the PCI devices of the mapping {mapping} as {key}, and their addresses are unknown"
                continue
            given = options.get("host", "").split(";") if mapping is None else node.mappings[mapping]
            if hit := sorted(each for each in disk.pci if any(_is_at(each, address) for address in given)):
                yield f"{guest} has its controller {', '.join(hit)} as {key}"


def _is_pci(key: str) -> bool:
    return key.startswith("hostpci")


def _options(value: object) -> dict[str, str]:
    """The options of a PCI device. An option without a name is `host`."""
    pairs = (part.partition("=") for part in str(value).split(","))
    return {(key if separator else "host"): text if separator else key for key, separator, text in pairs}


def _is_at(controller: str, address: str) -> bool:
    """Whether PVE's address includes the controller. The default domain is 0000, and the default function is all."""
    found = _PCI.fullmatch(address.strip())
    if found is None:
        return False
    whole = f"{(found[1] or '0000').lower()}:{found[2].lower()}"
    return controller == whole + found[3].lower() if found[3] else controller.rpartition(".")[0] == whole


def _is_on_group(storage: Mapping[str, Any], group: str) -> bool:
    return storage.get("type") in _GROUPED and storage.get("vgname") == group


def _is_on_pool(storage: Mapping[str, Any], pool: str) -> bool:
    return str(storage.get("pool", "")).partition("/")[0] == pool


def _used_by(users: Sequence[str]) -> str:
    return f" (used by {', '.join(users)})" if users else ""


def _tokens(value: object) -> list[str]:
    """The words of a configuration's value. A path may be anywhere in it, as in `args` or a container's devices."""
    return _SEPARATORS.split(str(value))
