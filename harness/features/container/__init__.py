"""A container in place of the guest: "VM or container?" as a difference with its interval.

A mode asks for it with `container = true`. Beside the mode with its VM, there is then a mode whose guest is a container
on the same volume, in the same blocks. Host, twin, contrasts and verdicts are those of every mode: to the kernel, the
container is a guest whose attachment is `InContainer` (`model/attach.py`). `lxc.py` adds such guests to the hypervisor
of a host and starts them with LXC, and `report.py` says what the difference is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.config.names import LONGEST_NAME
from harness.feature import Feature, ModeKeys, Subject, import_later
from harness.model.attach import Attach, InContainer
from harness.model.layout import Qcow2, RawFile, ZfsFile
from harness.model.mode import IN_CONTAINER, Mode
from harness.model.values import Flag, TomlTable
from harness.scenario.scenario import Scenario

if TYPE_CHECKING:
    from harness.features.container import lxc
else:
    (lxc,) = import_later(__name__, "lxc")

_SHARED = ("vcpus", "memory", "pin_vcpus")
"""The options of a guest that a container has, too."""


class BesideVm(TomlTable):
    """What is measured beside the VM."""

    container: Flag = False
    """Whether a container with the same volume is measured beside the VM, in a further mode, `NAME-container`."""
    unprivileged: Flag = False
    """Whether root of that container is an ordinary user of the host."""


def find_problems(mode: Mode, beside: BesideVm) -> Iterator[str]:
    """The conflicts of the key with the mode's layout and attachment, and with other I/O beside its guest."""
    if not beside.container:
        if beside.unprivileged:
            yield "unprivileged = true needs container = true; allowed: both"
        return
    if beside.unprivileged and isinstance(mode.layout, RawFile | ZfsFile):
        yield (
            f'unprivileged = true conflicts with layout.kind = "{mode.layout.kind}", because its root may not open the '
            "files of the host; allowed: a volume, or the device"
        )
    asked, layout, attach = "container = true", mode.layout, mode.attach
    others = {"guests": 1, "neighbour": None, "backup": False}
    for key, alone in others.items():
        if getattr(beside, key, alone) != alone:
            yield f"{asked} conflicts with {key}, because it needs a VM that is alone; allowed: a mode of its own"
    if mode.cached:
        yield f"{asked} conflicts with cached = true, because fio in it bypasses the cache; allowed: one of them"
    if isinstance(layout, Qcow2):
        yield (
            f'{asked} conflicts with layout.kind = "{layout.kind}", which only QEMU can read; allowed: a volume, a RAW '
            "file or the device"
        )
    if not isinstance(attach, Attach):
        yield (
            f'{asked} conflicts with attach.device = "{attach.device if attach else "none"}", because the host does '
            "not have the disk meanwhile; allowed: device disk"
        )
    elif not attach.direct:
        yield (
            f'{asked} conflicts with attach.cache = "{attach.cache}", because fio in the container bypasses the page '
            "cache of the host; allowed: cache none or directsync"
        )
    elif attach.read_only:
        yield f"{asked} conflicts with attach.read_only = true; allowed: attach.read_only = false"


def make_container_mode(mode: Mode, *, unprivileged: bool = False) -> Mode:
    """The same volume in a container instead of the VM, which is compared with this one."""
    return replace(
        mode, name=f"{mode.name}-{IN_CONTAINER}", attach=InContainer(unprivileged=unprivileged), base=mode, against=mode
    )


def add_modes(scenario: Scenario, asked: Mapping[str, BesideVm]) -> tuple[Scenario, list[str]]:
    """The scenario with a further mode for each mode with a container, and the names that conflict.

    After `lvm` comes `lvm-container`. Both are measured in the same blocks, on the same volume. `asked` is by the name
    of the mode.
    """
    modes: list[Mode] = []
    for mode in scenario.modes:
        modes.append(mode)
        if asked.get(mode.name, BesideVm()).container:
            inside = make_container_mode(mode, unprivileged=asked[mode.name].unprivileged)
            # The key is of the VM: a container has no machine type, no CPU model and no image.
            kept = {name: getattr(mode.guest, name) for name in _SHARED}
            modes.append(replace(inside, guest=replace(type(mode.guest)(), **kept)))
    return replace(scenario, modes=tuple(modes)), list(_find_name_problems(modes))


def _find_name_problems(modes: list[Mode]) -> Iterator[str]:
    names = [mode.name for mode in modes]
    for mode in modes:
        if not mode.in_container or mode.base is None:
            continue
        if names.count(mode.name) > 1:
            yield f'mode.{mode.base.name}: needs the name "{mode.name}" for itself; rename the other mode'
        elif len(mode.name) > LONGEST_NAME:
            length = len(mode.name)
            yield f'mode.{mode.base.name}: the name "{mode.name}" has {length} characters; allowed: {LONGEST_NAME}'


_KEYS: Any = ModeKeys(table=BesideVm, find_problems=find_problems, adapt=add_modes)
FEATURE = Feature(
    name="container",
    subject=Subject(
        in_scenario=lambda scenario: any(mode.in_container for mode in scenario.modes),
        in_cell=lambda cell, _slices: cell.mode.in_container,
    ),
    brings=(_KEYS,),
    extend_hypervisor=lambda host, vms, events: lxc.ContainersBesideVms(host, vms, events),
    list_things=lambda: (lxc.Container,),
)
