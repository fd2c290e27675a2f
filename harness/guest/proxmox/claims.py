"""Whom a disk of a node belongs to already: every storage, VM and container whose configuration names it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SEPARATORS = re.compile(r"[,=;\s]+")
_GROUPED = ("lvm", "lvmthin")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What of a node's configuration can name a disk, as its API tells it.

    `groups` holds the devices of each volume group, `pools` those of each ZFS pool, `directories` the device that is
    mounted at each path; `guests` the configuration of each VM and container by what messages call it (`VM 101`).
    """

    storages: Sequence[Mapping[str, Any]] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    directories: Mapping[str, str] = field(default_factory=dict)
    guests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def claims(names: Collection[str], node: NodeConfig) -> list[str]:
    """Who uses the disk, in words; empty where nobody does.

    `names` are all paths that lead to the disk or to a partition of it: its devices and their links below /dev/disk.
    """
    return [*_of_storages(names, node), *_of_guests(names, node.guests)]


def shared(names: Collection[str], guests: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which VMs and containers name the disk: PVE itself starts two on one device without a word."""
    return list(_of_guests(names, guests))


def _of_storages(names: Collection[str], node: NodeConfig) -> Iterator[str]:
    bare = {name.rpartition("/")[2] for name in names}
    for group, devices in node.groups.items():
        if set(devices) & set(names):
            users = [f"storage {each['storage']}" for each in node.storages if _is_on_group(each, group)]
            yield f"volume group {group} is on it" + _for(users)
    for pool, devices in node.pools.items():
        if {device.rpartition("/")[2] for device in devices} & bare:
            users = [f"storage {each['storage']}" for each in node.storages if _is_on_pool(each, pool)]
            yield f"ZFS pool {pool} is on it" + _for(users)
    for path, device in node.directories.items():
        if device in names:
            users = [f"storage {each['storage']}" for each in node.storages if each.get("path") == path]
            yield f"{path} is on it" + _for(users)
    for storage in node.storages:
        if any(token in names for value in storage.values() for token in _tokens(value)):
            yield f"storage {storage['storage']} names it"


def _of_guests(names: Collection[str], guests: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for guest, config in guests.items():
        keys = [key for key, value in config.items() if any(token in names for token in _tokens(value))]
        if keys:
            yield f"{guest} has it as {', '.join(keys)}"


def _is_on_group(storage: Mapping[str, Any], group: str) -> bool:
    return storage.get("type") in _GROUPED and storage.get("vgname") == group


def _is_on_pool(storage: Mapping[str, Any], pool: str) -> bool:
    return str(storage.get("pool", "")).partition("/")[0] == pool


def _for(users: Sequence[str]) -> str:
    return f", which {', '.join(users)} uses" if users else ""


def _tokens(value: object) -> list[str]:
    """The words of a configuration's value: a path may stand in any place, as in `args` or a container's devices."""
    return _SEPARATORS.split(str(value))
