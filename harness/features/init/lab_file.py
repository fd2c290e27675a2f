"""Inspects a host, and writes a lab file with what can be measured there: storages as tables, disks as comments.

`virt-overhead quick` writes one for one of the storages, and measures the scenario `quick` on it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from harness.cli import PYTEST, pytest_arguments
from harness.errors import ConfigError, HarnessError
from harness.features.init.commands import OUTPUT, InitRequest
from harness.features.init.offers import (
    DiskOffer,
    Names,
    NotOffered,
    Offers,
    StorageOffer,
    find_disks,
    find_storages,
    is_root,
    show,
)
from harness.files import write_atomically
from harness.lab.hosts import connect
from harness.lab.inventory import HostSpec, withdraw_secrets
from harness.lab.lab_file import KEYS_HINT, lab_of
from harness.lab.transport.base import Runner
from harness.model.disk import STORAGE
from harness.scenario.scenario import name_for
from harness.terminal import clean_json, one_line
from harness.units import format_size

Table = Mapping[str, Any]
"""A table of a lab file: texts, numbers, and tables of such values."""

_HEAD = "# A lab file, written by `virt-overhead init`. docs/lab.md explains it.\n"
_STORAGES = """\
# Storages in use. A run creates only its own volumes there, keeps the larger of 1 GiB and 5 % free for others, and
# removes its volumes at the end.
"""
_SUGGESTED = """\
# Mounted file systems without images of virtual machines near the top. To measure one, remove the hashes in front of
# its lines.
"""
_NO_STORAGE = """\
# No storage was found that can be measured. To name one, remove the hashes in front of its lines, for example:
## [host.{host}.storage.files]
## {example}
"""
_FREE = """\
# Disks that nothing uses. A run overwrites EVERYTHING on such a disk. To measure one, remove the hashes in front of its
# lines, and write destroy = true.
"""
_USED = "# Disks that are not offered, with the reason:\n"
_OTHERS = "# Storages that are not offered, with the reason:\n"


def write_lab_text(name: str, host: Table, offers: Offers, file: str) -> str:
    """The text of a lab file with one host. `host` has the keys of its table, and `file` is its path in comments."""
    steps = "".join(f"#   {show(next_step)}\n" for next_step in list_next_steps(offers, file))
    parts = [_HEAD + steps, *_list_notes(offers), "\n".join(_format_host(name, host)) + "\n"]
    if offers.ready:
        parts += [_STORAGES, *("\n".join(_format_storage(name, storage)) + "\n" for storage in offers.ready)]
    if offers.suggested:
        parts += [
            _SUGGESTED,
            *("\n".join(_format_storage(name, storage, "## ")) + "\n" for storage in offers.suggested),
        ]
    if not offers.storages:
        example = 'storage = "local"' if host["kind"] == "proxmox" else 'directory = "/srv/vms"'
        parts.append(_NO_STORAGE.format(host=name, example=example))
    parts += _list_reasons(_OTHERS, offers.other_storages)
    if offers.disks:
        parts += [_FREE, *("\n".join(_format_disk(name, disk)) + "\n" for disk in offers.disks)]
    parts += _list_reasons(_USED, offers.other_disks)
    return "\n".join(parts)


def list_next_steps(offers: Offers, file: str) -> Iterator[str]:
    """The commands to run next with the lab file `file`, each with its purpose as a comment of the shell."""
    lab = f"--lab={shlex.quote(file)}"
    run = f"virt-overhead run {lab} --profile=smoke"
    if offers.needs_key:
        yield f"# first name root's SSH key for the node in {show(file)}: the doctor and runs need it"
    yield f"virt-overhead doctor {lab}    # is the host fit for measuring?"
    if offers.ready:
        first = offers.ready[0]
        pattern = f'"storage and {first.layouts[0]}-randread-4k"'
        yield f"{run} --disk={first.name} -k {pattern}    # a first figure, in about a minute"
        yield f"{run} -k storage    # all storages, in all modes that they offer"


def _list_notes(offers: Offers) -> list[str]:
    return ["".join(f"# Note: {show(note)}\n" for note in offers.notes)] if offers.notes else []


def _list_reasons(title: str, others: tuple[NotOffered, ...]) -> list[str]:
    return [title + "".join(f"# - {show(f'{other.what}: {other.why}', 400)}\n" for other in others)] if others else []


def _format_host(name: str, host: Table) -> Iterator[str]:
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


def _format_storage(host: str, storage: StorageOffer, hashes: str = "") -> Iterator[str]:
    about = f"{', '.join(storage.notes)}; " if storage.notes else ""
    yield f"# {show(about)} layouts: {', '.join(storage.layouts)}; a run may fill {_usable(storage)}".replace("  ", " ")
    yield f"{hashes}[host.{host}.storage.{storage.name}]"
    yield f"{hashes}{storage.key} = {_value(storage.at)}"


def _usable(storage: StorageOffer) -> str:
    return f"{format_size(storage.usable_bytes)} of {format_size(storage.free_bytes)} that are free"


def _format_disk(host: str, disk: DiskOffer) -> Iterator[str]:
    size = format_size(disk.size_bytes) if disk.size_bytes else "of unknown size"
    yield f"# {show(disk.model or 'a disk of unknown model')}, {size}, {show(disk.device)} now"
    yield f"## [host.{host}.disk.{disk.name}]"
    yield f"## id = {_value(disk.id)}"
    yield f"## serial = {_value(disk.serial)}"
    if disk.disk_class:
        yield f"## class = {_value(disk.disk_class)}"
    yield "## destroy = false"


def _value(value: object) -> str:
    """The value in TOML. Texts of a lab file are printable, so JSON's escapes are those of TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


_OF_API = ("user", "token", "secret", "ca_file", "fingerprint", "node")
_OPTIONS = {f"api.{key}": f"--{key.replace('_', '-')}" for key in _OF_API}
_OPTIONS |= {"key": "--key", "port": "--ssh-port", "guest.address": "--guest-address"}
"""The option for a key of a node's table; `--proxmox` has the others. For other hosts, `--ssh` has all but the key."""
SOURCE = "virt-overhead init"
"""The name of the command line in messages."""


@dataclass(frozen=True, slots=True)
class InspectedHost:
    """The result of an inspection: lines to print, and whether the host has anything to measure."""

    lines: tuple[str, ...]
    found_any: bool


def init(request: InitRequest) -> InspectedHost:
    """Inspect the host, and write the lab file.

    Raises ConfigError for a mistake on the command line and for a file that exists, LabUnavailable, HostError.
    """
    output = request.output
    if output is not None and output.exists() and not request.force:
        raise _refuse_existing(output)
    name = request.name
    host, offers = inspect_requested(request)
    text = write_lab_text(name, host, offers, str(output or OUTPUT))
    # The file must load as it is, whatever the host printed.
    lab_of(tomllib.loads(text), str(output or OUTPUT))
    if output is not None:
        _write(output, text, force=request.force)
    lines = (
        [clean_json(json.dumps(_to_record(name, host, offers, output), indent=1))]
        if request.as_json
        else _describe(offers, output)
    )
    return InspectedHost(tuple(lines), bool(offers.storages or offers.disks))


def inspect_requested(request: InitRequest, path: str | None = None) -> tuple[dict[str, Any], Offers]:
    """The host's table of a lab file, and what the host has to measure: of a host with libvirt, `path` as well.

    Raises ConfigError, LabUnavailable, HostError.
    """
    with name_options(request):
        spec = parse_host(request.name, request.host)
        withdraw_secrets([spec])
        with closing(connect(spec)) as runner:
            if spec.kind == "proxmox":
                from harness.features.init.node import inspect_node  # noqa: PLC0415 - other hosts need no HTTP client

                return inspect_node(request, spec, runner)
            return request.host, inspect_host(runner, Names.besides(request.reserved), path)


@contextmanager
def name_options(request: InitRequest) -> Iterator[None]:
    """Errors name the options of the command line, because the lab file with these keys does not exist yet."""
    try:
        yield
    except HarnessError as error:
        key = re.compile(rf"(?:{SOURCE}: )?\bhost\.{re.escape(request.name)}\.([a-z_.]*[a-z])")
        options, host = ({"key": "--key"}, "--ssh") if request.host["kind"] == "ssh" else (_OPTIONS, "--proxmox")
        error.message, hint = (
            key.sub(lambda match: options.get(match[1], host), text) for text in (error.message, error.hint or "")
        )
        error.hint = "virt-overhead init --help explains the options" if hint == KEYS_HINT else hint or None
        raise


def inspect_host(runner: Runner, names: Names, path: str | None = None) -> Offers:
    """What a host with libvirt has to measure, and the directory `path`. Raises HostError."""
    storages, other_storages = find_storages(runner, names, path)
    disks, other_disks = find_disks(runner, names)
    notes = []
    if not is_root(runner):
        notes.append("only root can see everything here, and only root can measure: run init again as root")
    if runner.run(["test", "-e", "/etc/pve/local"], deadline=30, check=False).status == 0:
        notes.append("this is a node of Proxmox VE: to measure with its VMs, use virt-overhead init --proxmox")
    return Offers(tuple(storages), tuple(disks), tuple(other_storages), tuple(other_disks), tuple(notes))


def parse_host(name: str, host: dict[str, Any]) -> HostSpec:
    """The host of the command line. Raises ConfigError, which names the key of a lab file."""
    (spec,) = lab_of({"host": {name: host}}, SOURCE).hosts
    return spec


def _refuse_existing(output: Path) -> ConfigError:
    return ConfigError(f"{output} exists already", hint="name another file with --output, or replace it with --force")


def _write(output: Path, text: str, *, force: bool) -> None:
    try:
        if not force:
            output.touch(exist_ok=False)
        try:
            write_atomically(output, text)
        except OSError:
            if not force:
                output.unlink()  # It is empty.
            raise
    except FileExistsError:
        raise _refuse_existing(output) from None
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written: {error.strerror or error}",
            hint=f"check that {output.parent} exists and has space, and that this user may write there",
        ) from error


def _to_record(name: str, host: dict[str, Any], offers: Offers, output: Path | None) -> dict[str, Any]:
    return {"file": str(output) if output else None, "host": {"name": name, **host}, **asdict(offers)}


def _describe(offers: Offers, output: Path | None) -> Iterator[str]:
    for storage in offers.storages:
        comment = "" if storage.for_vms else " (a comment in the file: it may not be meant for virtual machines)"
        yield f"storage {storage.name}: {show(storage.words)}, offers {', '.join(storage.layouts)}{comment}"
    for disk in offers.disks:
        yield f"free disk {disk.name}: {show(disk.id)} (a comment in the file: a run would overwrite it)"
    for other in (*offers.other_storages, *offers.other_disks):
        yield f"not offered: {show(f'{other.what}: {other.why}')}"
    for note in offers.notes:
        yield f"note: {show(note)}"
    yield f"written: {output}"
    yield "next:"
    if not offers.ready:
        release = "release a storage or a disk in it: its comments say how" if offers.storages or offers.disks else None
        yield f"  {release or 'name a storage or a disk in it: docs/lab.md explains how'}"
    yield from (f"  {line}" for line in list_next_steps(offers, str(output)))


SCENARIO = "quick"
_PREFERRED = ("lvm-thin", "zvol", "rbd", "lvm", "raw")
"""What most owners of such a storage use; of the layouts that a storage offers, the first one is measured."""
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class QuickRequest:
    """What the user requested: the host, and where and how to measure."""

    host: InitRequest
    storage: str | None
    """A storage by its name, or a path in it; None for the one with most free space."""
    host_only: bool
    vm: str | None
    """A running VM of the user, into which the disk is plugged; None for a guest of our own."""
    reports: Path
    arguments: Sequence[str] = ()
    """Further arguments for pytest."""


def measure_quickly(request: QuickRequest) -> NoReturn:
    """Choose a storage, write its lab file, and replace this process by the run, whose clean-up then gets all signals.

    Raises ConfigError if the storage is not offered, with what is; LabUnavailable, HostError.
    """
    environment = dict(os.environ)  # with the secrets, which this process withdraws from its own
    wanted = name_directory(request.storage) if request.host.host["kind"] == "local" else request.storage
    is_path = wanted is not None and wanted.startswith("/")
    host, offers = inspect_requested(request.host, wanted if is_path else None)
    if offers.needs_key:
        raise ConfigError(
            f"host {request.host.name}: a run needs root's SSH key for the node, because fio runs there, too",
            hint="name it with --key FILE, or start quick on the node itself",
        )
    storage = choose_storage(offers, wanted)
    if request.vm is not None:
        host = host | {"guest": {"borrow": request.vm, "reach": "agent"}}
    lab = request.reports.absolute() / SCENARIO / "lab.toml"
    text = write_lab_text(request.host.name, host, replace(offers, storages=(storage,)), str(lab))
    lab_of(tomllib.loads(text), str(lab))
    lab.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(lab, text)
    quoted = shlex.quote(str(lab))
    sys.stdout.write(
        f"storage {storage.name}: {show(storage.words)}. A run creates only its own volumes there, and removes them.\n"
        f"all its modes: virt-overhead run --lab={quoted} --profile=smoke -k storage\n"
        f"if this run is killed: virt-overhead reap --lab={quoted} --yes\n"
    )
    sys.stdout.flush()
    options = [f"--lab={lab}", f"--reports={request.reports.absolute()}", "--profile=smoke", "-q", "--no-header"]
    options += ["-k", select_cells(storage, host_only=request.host_only), *request.arguments]
    command = [*PYTEST, *pytest_arguments(Path.cwd(), options)]
    os.execve(sys.executable, command, environment)


def name_directory(wanted: str | None) -> str | None:
    """A path of this machine as a lab file has it: absolute, without `..`. The name of a storage stays as it is.

    A storage such as `tank/vms` has the form of a relative path, so that begins with a point.
    """
    if wanted is None or not wanted.startswith(("/", ".")):
        return wanted
    return os.path.realpath(wanted) if ".." in Path(wanted).parts else str(Path(wanted).absolute())


def choose_storage(offers: Offers, wanted: str | None) -> StorageOffer:
    """The storage of this name or place, or the one that has the path; without a wish, the one with most free space.

    Raises ConfigError, which lists what is offered, and why others are not.
    """
    if wanted is None:
        if offers.ready:
            return max(offers.ready, key=lambda storage: storage.usable_bytes)
        raise ConfigError(
            "no storage for virtual machines was found", hint=_list_choices(offers) or "name a directory: quick PATH"
        )
    named = [storage for storage in offers.storages if wanted in (storage.name, storage.at)]
    if named:
        return replace(named[0], for_vms=True)
    reasons = [
        one_line(f"{other.what}: {other.why}") for other in offers.other_storages if f" {wanted} " in f" {other.what} "
    ]
    why = "; ".join(reasons) or "the host has no storage of this name, and a directory begins with / or ./"
    raise ConfigError(f"{one_line(wanted)} cannot be measured: {why}", hint=_list_choices(offers))


def _list_choices(offers: Offers) -> str:
    names = [f"{storage.name} ({show(storage.words)})" for storage in offers.storages[:_MOST_NAMED]]
    return f"storages that can be measured: {', '.join(names)}" if names else ""


def select_cells(storage: StorageOffer, *, host_only: bool) -> str:
    """The expression for `-k`: the baseline alone, or one layout of the storage.

    Ids begin with the name of the storage, which may be part of the ids of other scenarios.
    """
    scenario = SCENARIO if storage.name == STORAGE else name_for(SCENARIO, STORAGE, storage.name)
    if host_only:
        return f"{scenario}-host-"
    layout = next((layout for layout in _PREFERRED if layout in storage.layouts), storage.layouts[0])
    if layout == "rbd" and storage.key == "storage":
        # Proxmox VE has the client for a storage, and the mode of the other one is skipped.
        return f"{scenario}-rbd- or {scenario}-librbd-"
    return f"{scenario}-{layout}-" + (" and not lvm-thin" if layout == "lvm" else "")
