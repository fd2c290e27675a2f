"""Writes a lab file from what a host has to measure: storages as tables, disks as comments. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from harness.init.offers import DiskOffer, NotOffered, Offers, StorageOffer, shown
from harness.units import format_size

Table = Mapping[str, Any]
"""A table of a lab file: texts, numbers, and tables of such values."""

_HEAD = "# A lab file, written by `virt-overhead init`. docs/lab.md explains every key.\n"
_STORAGES = """\
# Storages in use. A run creates only its own volumes there, keeps the larger of 1 GiB and 5 % free for others, and
# removes its volumes at the end.
"""
_SUGGESTED = """\
# Mounted file systems without images of virtual machines near the top. To measure one, remove the hashes in front of
# its lines.
"""
_NO_STORAGE = """\
# No storage was found that can be measured. A directory can be named without the two hashes, for example:
## [host.{host}.storage.files]
## {example}
"""
_FREE = """\
# Disks that nothing uses. A run overwrites EVERYTHING on such a disk. To measure one, remove the hashes in front of its
# lines, and write destroy = true.
"""
_USED = "# Disks that are not offered, with the reason:\n"
_OTHERS = "# Storages that are not offered, with the reason:\n"


def lab_text(name: str, host: Table, offers: Offers, file: str) -> str:
    """The text of a lab file with one host. `host` has the keys of its table, and `file` is its path in comments."""
    steps = "".join(f"#   {shown(next_step)}\n" for next_step in next_steps(offers, file))
    parts = [_HEAD + steps, *_notes(offers), "\n".join(_host(name, host)) + "\n"]
    if offers.ready:
        parts += [_STORAGES, *("\n".join(_storage(name, storage_offer)) + "\n" for storage_offer in offers.ready)]
    if offers.suggested:
        parts += [_SUGGESTED, *("\n".join(_storage(name, each, "## ")) + "\n" for each in offers.suggested)]
    if not offers.storages:
        example = 'storage = "local"' if host["kind"] == "proxmox" else 'directory = "/srv/vms"'
        parts.append(_NO_STORAGE.format(host=name, example=example))
    parts += _reasons(_OTHERS, offers.other_storages)
    if offers.disks:
        parts += [_FREE, *("\n".join(_disk(name, disk)) + "\n" for disk in offers.disks)]
    parts += _reasons(_USED, offers.other_disks)
    return "\n".join(parts)


def next_steps(offers: Offers, file: str) -> Iterator[str]:
    """The commands to run next with the lab file `file`, each with its purpose as a comment of the shell."""
    lab = f"--lab={shlex.quote(file)}"
    run = f"virt-overhead run {lab} --profile=smoke"
    yield f"virt-overhead doctor {lab}    # is the host fit for measuring?"
    if offers.ready:
        first = offers.ready[0]
        pattern = f'"storage and {first.layouts[0]}-randread-4k"'
        yield f"{run} --disk={first.name} -k {pattern}    # a first figure, in about a minute"
        yield f"{run} -k storage    # all storages, in all modes that they offer"


def _notes(offers: Offers) -> list[str]:
    return ["".join(f"# Note: {shown(note)}\n" for note in offers.notes)] if offers.notes else []


def _reasons(title: str, others: tuple[NotOffered, ...]) -> list[str]:
    return [title + "".join(f"# - {shown(f'{other.what}: {other.why}', 400)}\n" for other in others)] if others else []


def _host(name: str, host: Table) -> Iterator[str]:
    yield f"[host.{name}]"
    tables = ("api", "guest")
    yield from (f"{key} = {_value(value)}" for key, value in host.items() if key not in tables)
    if host["kind"] == "proxmox" and "key" not in host:
        yield "# Name root's SSH key for the node here. Without it, commands run on the machine that pytest runs on:"
        yield "# the doctor and runs refuse that, except on the node itself."
        yield '# key = "~/.ssh/id_ed25519"'
    for table in tables:
        if table in host:
            yield ""
            yield f"[host.{name}.{table}]"
            yield from (f"{key} = {_value(value)}" for key, value in host[table].items())


def _storage(host: str, storage: StorageOffer, hashes: str = "") -> Iterator[str]:
    about = f"{', '.join(storage.notes)}; " if storage.notes else ""
    yield f"# {shown(about)} layouts: {', '.join(storage.layouts)}; a run may fill {_usable(storage)}".replace(
        "  ", " "
    )
    yield f"{hashes}[host.{host}.storage.{storage.name}]"
    yield f"{hashes}{storage.key} = {_value(storage.at)}"


def _usable(storage: StorageOffer) -> str:
    return f"{format_size(storage.usable_bytes)} of {format_size(storage.free_bytes)} that are free"


def _disk(host: str, disk: DiskOffer) -> Iterator[str]:
    size = format_size(disk.size_bytes) if disk.size_bytes else "of unknown size"
    yield f"# {shown(disk.model or 'a disk of unknown model')}, {size}, {shown(disk.device)} now"
    yield f"## [host.{host}.disk.{disk.name}]"
    yield f"## id = {_value(disk.id)}"
    yield f"## serial = {_value(disk.serial)}"
    if disk.disk_class:
        yield f"## class = {_value(disk.disk_class)}"
    yield "## destroy = false"


def _value(value: object) -> str:
    """The value in TOML. Texts of a lab file are printable, so JSON's escapes are those of TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
