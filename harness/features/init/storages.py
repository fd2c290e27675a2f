"""Finds the storages of a host with libvirt on which a run can create volumes, and what a node of Proxmox VE has.

It only reads: of a node, by its API and its shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from harness.errors import ConfigError, HarnessError, HostError, Unsupported
from harness.feature import FeatureStorage, list_brought
from harness.features.init.disks import Names, NotOffered, Offers, StorageOffer, find_disks
from harness.guest.proxmox.client import TO_CREATE_VOLUMES, Client, PveError
from harness.guest.proxmox.disk_users import read_claims, read_node
from harness.guest.proxmox.layouts import list_offered
from harness.lab.guard.room import free_bytes
from harness.lab.inventory import storage_kinds
from harness.lab.lab_schema import storage_keys
from harness.lab.pin import TAG
from harness.lab.storages import FILESYSTEMS, Place, look_at, reserve_bytes
from harness.lab.transport.base import Completed, Runner
from harness.model.workloads import PROFILES
from harness.units import format_size
from harness.untrusted import count, first_problem, parse_json, reading

LEAST_BYTES = 2 * min(profile.span for profile in PROFILES)
"""The least that a run fills: the volumes of the baseline and of one mode, in the smallest profile."""
OF_A_RUN = "a run of virt-overhead created it; `virt-overhead reap` removes it"
MOST_CANDIDATES = 200
"""Of each kind. Each is looked at with commands of its own."""

IMAGES = "/var/lib/libvirt/images"
"""libvirt's directory for images. A new installation has it without a pool."""
_SYSTEM = re.compile(r"/((boot(/efi)?|efi|etc|home|opt|root|tmp|usr(/local)?|var(/(cache|lib|log|tmp))?))?")
"""Mount points of the system itself, whose file systems are not meant for virtual machines."""
_OF_OTHERS = re.compile(r"/(dev|proc|run|snap|sys|var/snap|var/lib/(containers|docker|kubelet))/.*")
"""Below these directories, programs mount file systems for themselves."""

# Prints the first file that looks like an image of a virtual machine, not far below a directory.
_WITHIN = ("timeout", "20")
_LOOKS_LIKE_IMAGE = (
    "-maxdepth",
    "3",
    "-xdev",
    "-type",
    "f",
    "-regex",
    r".*\.\(qcow2\|raw\|img\|vmdk\)",
    "-print",
    "-quit",
)

# $1...: a command. The status is 127 if it is not installed.
_IF_INSTALLED = 'PATH="$PATH:/usr/sbin:/sbin"; command -v "$1" >/dev/null || exit 127; exec "$@"'
_NOT_INSTALLED = 127


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A place that may be a storage, and from where it is known."""

    place: Place
    at: str
    note: str = ""
    called: str = ""
    """The name that its owner gave it, if it is not where it is."""
    for_vms: bool = True
    """Whether it is meant for virtual machines. A mounted file system may be for anything else, such as backups."""

    @property
    def words(self) -> str:
        return f"{storage_kinds()[self.place].words} {self.at}"


def find_storages(runner: Runner, names: Names, path: str | None = None) -> tuple[list[StorageOffer], list[NotOffered]]:
    """The storages that can be measured without loss, and those that cannot with the reason. Raises HostError.

    `path` is a directory that its owner named, besides those that are found.
    """
    refused: list[NotOffered] = []
    candidates = [*_find_lvm(runner, refused), *_find_zfs(runner, refused)]
    candidates += _find_pools(runner, refused)
    candidates += _find_of_features(runner, refused)
    candidates += _find_directories(runner, candidates, refused)
    candidates += [_Candidate("directory", path)] if path is not None else []
    offers: list[StorageOffer] = []
    merged: dict[tuple[str, str], _Candidate] = {}
    for candidate in candidates:
        first = merged.setdefault((candidate.place, candidate.at), candidate)
        if candidate.note and not first.note:
            merged[candidate.place, candidate.at] = replace(first, note=candidate.note, called=candidate.called)
    for candidate in merged.values():
        offer = _offer(runner, candidate, names)
        (refused if isinstance(offer, NotOffered) else offers).append(offer)  # type: ignore[arg-type] # its own list
    return offers, refused


def _offer(runner: Runner, candidate: _Candidate, names: Names) -> StorageOffer | NotOffered:
    place, at = candidate.place, candidate.at
    try:
        storage_keys().model_validate({place: at})
        if at.startswith(f"{TAG}-"):
            return NotOffered(candidate.words, OF_A_RUN)
        place_facts = look_at(runner, place, at)
        free, total = free_bytes(runner, place_facts)
    except ValidationError as error:
        return NotOffered(candidate.words, f"a lab file cannot name it: {first_problem(error)}")
    except HarnessError as error:
        return NotOffered(candidate.words, error.message.removeprefix(f"{runner.name}: "))
    usable = max(free - reserve_bytes(total), 0)
    if usable < LEAST_BYTES:
        return NotOffered(candidate.words, explain_too_little(free, total))
    notes = [note for note in (place_facts.filesystem, candidate.note) if note]
    name = names.name(candidate.called or at, "storage")
    return StorageOffer(name, place, at, place_facts.layouts, free, usable, tuple(notes), candidate.for_vms)


def explain_too_little(free: int, total: int) -> str:
    """Why a storage with so many free bytes is not offered."""
    reserve = format_size(reserve_bytes(total))
    return f"{format_size(free)} are free, and {reserve} of them must stay free for others"


def _run(runner: Runner, *argv: str) -> Completed:
    return runner.run(["sh", "-c", _IF_INSTALLED, "sh", *argv], deadline=60, check=False)


def _list_output(runner: Runner, refused: list[NotOffered], what: str, *argv: str) -> list[str]:
    """What the command prints, in lines. If it fails, `refused` says so, because then nothing is known of `what`."""
    done = _run(runner, *argv)
    if done.status == 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        return _take_first(lines, what, refused)
    if done.status != _NOT_INSTALLED:
        refused.append(NotOffered(what, f"{argv[0]} could not tell: {_explain_failure(done)}"))
    return []


def _take_first(names: list[str], what: str, refused: list[NotOffered]) -> list[str]:
    if len(names) > MOST_CANDIDATES:
        refused.append(
            NotOffered(what, f"the host has {len(names)}, and only the first {MOST_CANDIDATES} were looked at")
        )
    return names[:MOST_CANDIDATES]


def _explain_failure(done: Completed) -> str:
    """The end of what a command reported: programs print the cause last, and warnings before it."""
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return "; ".join(said[-2:]) or f"status {done.status}"


def _find_lvm(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    listing = ("--noheadings", "--separator", "/", "-o")
    for name in _list_output(runner, refused, "volume groups", "vgs", *listing, "vg_name"):
        yield _Candidate("volume_group", name)
    pools = ("vg_name,lv_name", "--select", "segtype=thin-pool")
    for name in _list_output(runner, refused, "thin pools", "lvs", *listing, *pools):
        yield _Candidate("thin_pool", name)


def _find_zfs(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    """The datasets that have volumes in them, as those of virtual machines; of a pool without volumes, the pool."""
    listed = _list_output(
        runner, refused, "ZFS datasets", "zfs", "list", "-H", "-t", "filesystem,volume", "-o", "name,type"
    )
    rows = [line.partition("\t")[::2] for line in listed]
    parents = [name.rpartition("/")[0] for name, kind in rows if kind == "volume"]
    pools = [name for name, kind in rows if kind == "filesystem" and "/" not in name]
    empty = [pool for pool in pools if not any(parent.partition("/")[0] == pool for parent in parents)]
    for name in dict.fromkeys([*parents, *empty]):
        yield _Candidate("dataset", name, "has volumes already" if name in parents else "")


def _find_pools(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    """The places of libvirt's active pools. The read-only connection needs no root."""
    from harness.guest.libvirt.backend import parse_pool  # noqa: PLC0415 - nodes of Proxmox VE need no libvirt

    virsh = ("virsh", "--connect", "qemu:///system", "--readonly")
    for name in _list_output(runner, refused, "libvirt pools", *virsh, "pool-list", "--name"):
        what = f"libvirt pool {name}"
        done = _run(runner, *virsh, "pool-dumpxml", "--pool", name)
        if done.status != 0:
            refused.append(NotOffered(what, f"libvirt does not describe it: {_explain_failure(done)}"))
            continue
        try:
            with reading(what):
                place, at = parse_pool(done.stdout, what)
        except Unsupported as error:
            refused.append(NotOffered(what, f"{error.message}; {error.hint or 'see virsh pool-dumpxml'}"))
        except HarnessError as error:
            refused.append(NotOffered(what, error.message))
        else:
            yield _Candidate(place, at, what, name)


def _find_of_features(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    for storage in list_brought(FeatureStorage):
        try:
            places = [str(at) for at in storage.find(runner)]
        except HostError as error:
            refused.append(NotOffered(f"storages of the kind {storage.kind.words}", error.message))
        else:
            for at in _take_first(places, f"storages of the kind {storage.kind.words}", refused):
                yield _Candidate(storage.key, at)


def _find_directories(runner: Runner, known: Sequence[_Candidate], refused: list[NotOffered]) -> Iterator[_Candidate]:
    """libvirt's directory for images, and mounted file systems that are not the system's. Each file system once."""
    mounts = _read_mounts(runner, refused)
    directories = [candidate.at for candidate in known if candidate.place == "directory"]
    if IMAGES not in directories and runner.run(["test", "-d", IMAGES], deadline=60, check=False).status == 0:
        directories.append(IMAGES)
        yield _Candidate("directory", IMAGES)
    sources = {mounts[at] for directory in directories if (at := _find_mount(directory, mounts)) is not None}
    candidates = [mount for mount in mounts if not _SYSTEM.fullmatch(mount) and not _OF_OTHERS.fullmatch(mount)]
    for target in _take_first(candidates, "mounted file systems", refused):
        if (source := mounts[target]) not in sources:
            sources.add(source)
            for_vms = _run(runner, *_WITHIN, "find", target, *_LOOKS_LIKE_IMAGE).stdout.strip() != ""
            yield _Candidate("directory", target, f"mounted from {source}", for_vms=for_vms)


def _read_mounts(runner: Runner, refused: list[NotOffered]) -> dict[str, str]:
    """What is mounted where, of the file systems for files of virtual machines."""
    what = "mounted file systems"
    # ZFS has its datasets. A btrfs subvolume or a bind mount has its path in brackets behind the source.
    kinds = [filesystem for filesystem in FILESYSTEMS if filesystem != "zfs"]
    done = _run(runner, "findmnt", "--json", "--list", "--real", "--output", "TARGET,SOURCE,FSTYPE")
    try:
        with reading(f"{runner.name}: its mounts"):
            mounts = parse_json(done.stdout, f"{runner.name}: its mounts")["filesystems"]
            rows = [(str(mount["target"]), str(mount["source"]), str(mount["fstype"])) for mount in mounts]
    except HarnessError as error:
        refused.append(NotOffered(what, _explain_failure(done) if done.status else error.message))
        return {}
    return {target: source.partition("[")[0] for target, source, kind in rows if kind in kinds}


def _find_mount(directory: str, mounts: dict[str, str]) -> str | None:
    parents = [mount for mount in mounts if PurePosixPath(directory).is_relative_to(mount)]
    return max(parents, key=len, default=None)


_NO_SHELL = "Proxmox VE reports no use of it, but only commands on the node can find all users: add --key FILE"


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


def inspect_node(client: Client, runner: Runner, names: Names) -> Offers:
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
