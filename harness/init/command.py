"""`virt-overhead init`: inspects a host and writes a lab file with what can be measured there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.init.disks import find_disks, is_root
from harness.init.lab_file import lab_text, next_steps
from harness.init.offers import Names, Offers, shown
from harness.init.request import OUTPUT, UNKNOWN_NODE, InitRequest
from harness.init.storages import find_storages

from harness.errors import ConfigError
from harness.files import write_atomically
from harness.lab.hosts import connect
from harness.lab.inventory import HostSpec, ProxmoxSpec, withdraw_secrets
from harness.lab.lab_file import lab_of
from harness.lab.transport.base import Runner
from harness.terminal import clean_json

SOURCE = "virt-overhead init"
"""The name of the command line in messages."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The result of an inspection: lines to print, and whether the host has anything to measure."""

    lines: tuple[str, ...]
    found_any: bool


def init(request: InitRequest) -> Inspected:
    """Inspect the host, and write the lab file.

    Raises ConfigError for a mistake on the command line and for a file that exists, LabUnavailable, HostError.
    """
    output = request.output
    if output is not None and output.exists() and not request.force:
        raise _exists(output)
    name, host = request.name, request.host
    spec = _spec(name, host)
    withdraw_secrets([spec])
    with closing(connect(spec)) as runner:
        if spec.proxmox is not None:
            host, offers = _inspected_node(request, spec.proxmox, runner)
        else:
            offers = inspect_host(runner, Names.besides(request.reserved))
    text = lab_text(name, host, offers, str(output or OUTPUT))
    # The file must load as it is, whatever the host printed.
    lab_of(tomllib.loads(text), str(output or OUTPUT))
    if output is not None:
        _write(output, text, force=request.force)
    lines = (
        [clean_json(json.dumps(_record(name, host, offers, output), indent=1))]
        if request.as_json
        else _lines(offers, output)
    )
    return Inspected(tuple(lines), bool(offers.storages or offers.disks))


def inspect_host(runner: Runner, names: Names) -> Offers:
    """What a host with libvirt has to measure. Raises HostError."""
    storages, other_storages = find_storages(runner, names)
    disks, other_disks = find_disks(runner, names)
    notes = []
    if not is_root(runner):
        notes.append("only root can see everything here, and only root can measure: run init again as root")
    if runner.run(["test", "-e", "/etc/pve/local"], deadline=30, check=False).status == 0:
        notes.append("this is a node of Proxmox VE: to measure with its VMs, use virt-overhead init --proxmox")
    return Offers(tuple(storages), tuple(disks), tuple(other_storages), tuple(other_disks), tuple(notes))


def _inspected_node(request: InitRequest, node: ProxmoxSpec, runner: Runner) -> tuple[dict[str, Any], Offers]:
    """The node's table, with its own name, and what it has to measure."""
    from harness.init.node import node_name, offers_of_node  # noqa: PLC0415

    from harness.guest.proxmox.client import logged_in  # noqa: PLC0415 - other hosts need no HTTP client

    host = request.host
    if host["api"]["node"] == UNKNOWN_NODE:
        with logged_in(request.name, node) as client:
            host = host | {"api": host["api"] | {"node": node_name(client, runner)}}
        node = _spec(request.name, host).proxmox or node
    with logged_in(request.name, node) as client:
        return host, offers_of_node(client, runner, Names.besides(request.reserved))


def _spec(name: str, host: dict[str, Any]) -> HostSpec:
    """The host of the command line. Raises ConfigError, which names the key of a lab file."""
    (spec,) = lab_of({"host": {name: host}}, SOURCE).hosts
    return spec


def _exists(output: Path) -> ConfigError:
    return ConfigError(f"{output} exists already", hint="name another file with --output, or replace it with --force")


def _write(output: Path, text: str, *, force: bool) -> None:
    if force:
        write_atomically(output, text)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _exists(output) from None


def _record(name: str, host: dict[str, Any], offers: Offers, output: Path | None) -> dict[str, Any]:
    return {"file": str(output) if output else None, "host": {"name": name, **host}, **asdict(offers)}


def _lines(offers: Offers, output: Path | None) -> Iterator[str]:
    for storage in offers.storages:
        comment = "" if storage.for_vms else " (a comment in the file: it may not be meant for virtual machines)"
        yield f"storage {storage.name}: {shown(storage.words)}, offers {', '.join(storage.layouts)}{comment}"
    for disk in offers.disks:
        yield f"free disk {disk.name}: {shown(disk.id)} (a comment in the file: a run would overwrite it)"
    for other in (*offers.other_storages, *offers.other_disks):
        yield f"not offered: {shown(f'{other.what}: {other.why}')}"
    for note in offers.notes:
        yield f"note: {shown(note)}"
    yield f"written: {output}"
    yield "next:"
    if not offers.ready:
        release = "release a storage or a disk in it: its comments say how" if offers.storages or offers.disks else None
        yield f"  {release or 'name a storage or a disk in it: docs/lab.md explains how'}"
    yield from (f"  {line}" for line in next_steps(offers, str(output)))
