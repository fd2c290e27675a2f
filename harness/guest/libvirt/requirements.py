"""The versions of libvirt and QEMU that an attachment or a guest needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.guest.capacity import too_many_queues
from harness.model.attach import Attach
from harness.model.guest import GUEST_OPTIONS, GuestOptions
from harness.model.layout import Qcow2
from harness.model.mode import Mode
from harness.model.option import Since

_MODEL = re.compile(r"[A-Za-z0-9_.-]+")
DATA_FILE = 10_010_000
"""libvirt 10.10.0 has the data file of a qcow2 image (`<dataStore>`)."""
BACKUP = 6_000_000
"""libvirt 6.0.0 has virDomainBackupBegin. Source: libvirt's NEWS."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions as libvirt encodes them: 1,000,000 x major + 1,000 x minor + release."""

    libvirt: int
    qemu: int


def missing_for(attach: Attach, has: Versions, cpus: int) -> str | None:
    """Why a host with these versions and CPUs cannot attach a disk in this way, with the remedy; None if it can."""
    if why := too_many_queues(attach, cpus):
        return why
    return lacking(need for name, since in _since(attach) for need in _needs(name, since, has))


def unoffered(attach: Attach, has: Versions) -> str | None:
    """Why no host offers an option today, with the remedy; None if hosts with these or later versions may."""
    for name, since in _since(attach):
        if since.lacking:
            return lacking(_needs(name, since, has)) or f"{since.what}: {since.lacking}"
    return None


def guest_missing(guest: GuestOptions, has: Versions) -> str | None:
    """Why a host with these versions cannot have a guest with these options, with the remedy; None if it can."""
    if guest.cpu is not None and not _MODEL.fullmatch(guest.cpu):
        return f'cpu = "{guest.cpu}" is an option of Proxmox VE; with libvirt, request the model only'
    requested = ((name, GUEST_OPTIONS[name].needs(guest)) for name in guest.requested)
    return lacking(need for name, since in requested if since is not None for need in _needs(name, since, has))


def mode_missing(mode: Mode, has: Versions) -> str | None:
    """Why a host with these versions cannot have what a mode requests beside its attachment; None if it can."""
    needs = []
    if mode.backup:
        needs.append(("backup", "libvirt", BACKUP, has.libvirt))
    if isinstance(mode.layout, Qcow2) and mode.layout.data_file:
        needs.append(("data_file", "libvirt", DATA_FILE, has.libvirt))
    return lacking(needs)


def lacking(needs: Iterable[tuple[str, str, int, int]]) -> str | None:
    """Which of these versions a host lacks, as text: what, the program, the oldest suitable version and the host's."""
    found = dict.fromkeys(
        f"{what} needs {program} {_shown(least)}, but the host has {_shown(version)}"
        for what, program, least, version in needs
        if version < least
    )
    return f"{'; '.join(found)}: upgrade the host, or measure on another one" if found else None


def _since(attach: Attach) -> Iterator[tuple[str, Since]]:
    """What each option that is used needs, by the name of the option."""
    for name, row in attach.used.items():
        if (since := row.needs(attach)) is not None:
            yield name, since


def _needs(name: str, since: Since, has: Versions) -> Iterator[tuple[str, str, int, int]]:
    """The option, the program, the oldest suitable version and the host's, for each program that needs one."""
    for program, text, version in (("libvirt", since.libvirt, has.libvirt), ("QEMU", since.qemu, has.qemu)):
        if text:
            major, minor, release = map(int, text.split("."))
            yield since.what or name, program, 1_000_000 * major + 1_000 * minor + release, version


def _shown(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"
