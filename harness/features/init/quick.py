"""`virt-overhead quick`: chooses a storage of a host, writes the lab file for it, and measures the scenario `quick`."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from harness.cli import PYTEST, pytest_arguments
from harness.errors import ConfigError
from harness.features.init.commands import InitRequest
from harness.features.init.disks import Offers, StorageOffer, show
from harness.features.init.lab_file import inspect_requested, write_lab_text
from harness.files import write_atomically
from harness.lab.lab_file import lab_of
from harness.model.disk import STORAGE
from harness.scenario.scenario import name_for
from harness.terminal import one_line

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
