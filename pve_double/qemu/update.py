"""Changing a VM's configuration: POST and PUT config, and unlink."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass, field

from pve_double.errors import PveError, bad_parameters
from pve_double.permissions import ROOT
from pve_double.qemu import network, pending
from pve_double.qemu.create import clamp_cpu_units, resolve_cdrom, unique_tags, validate_ssh_keys
from pve_double.qemu.drives import is_drive, is_unused, parse_drive
from pve_double.qemu.machine import Config, Machine, boot_order, is_option, memory_mib, printed_boot_order
from pve_double.qemu.machine_type import check_clipboard, check_machine, pinned, pinning
from pve_double.qemu.rights import (
    require_for_device,
    require_for_drive,
    require_for_drive_text,
    require_for_options,
)
from pve_double.qemu.volumes import (
    Request,
    check_bridges,
    check_drives,
    check_storage_access,
    create_disks,
    drop_used,
    owned_by,
    register_unused,
)
from pve_double.schema import split_list
from pve_double.state import Node
from pve_double.tasks import TaskLog

_NOT_OPTIONS = (
    "node", "vmid", "digest", "background_delay", "skip_cloud_init", "import-working-storage", "skiplock", "delete",
    "revert", "force",
)  # fmt: skip


@dataclass(slots=True)
class Change:
    """One call's change, checked. `modified` grows by what the change brings with it."""

    request: Request
    options: Config
    delete: list[str]
    revert: list[str]
    digest: str | None
    force: bool
    skiplock: bool
    words: str
    modified: set[str] = field(default_factory=set)


def update(node: Node, user: str, params: Config, *, background: bool) -> str | None:
    """The UPID of the task with `background`, else None once it is done."""
    change = _checked(Request(node, user, int(params["vmid"])), params)
    _load(change, write=False)

    def work(log: TaskLog) -> None:
        with node.config_lock(change.request.vmid, log):
            _apply(change, log)

    if background:
        return node.tasks.start("qmconfig", params["vmid"], user, work)
    work(TaskLog())
    return None


def _checked(request: Request, params: Config) -> Change:
    options = {name: value for name, value in params.items() if name not in _NOT_OPTIONS}
    said = {name: value for name, value in params.items() if name in {"delete", "revert", "force", "skiplock"}}
    shown = {**options, **said, **({"cipassword": "<hidden>"} if "cipassword" in options else {})}
    words = " ".join(f"-{name} {value}" for name, value in sorted(shown.items()))
    if params.get("skiplock") == "1" and request.user != ROOT:
        raise bad_parameters({"skiplock": "Only root may use this option."})
    validate_ssh_keys(options)
    clamp_cpu_units(options)
    if not options and not params.get("delete") and not params.get("revert"):
        raise PveError("no options specified")
    resolve_cdrom(options)
    revert = _reverted(split_list(params.get("revert", "")), options)
    delete = _deleted(split_list(params.get("delete", "")), revert, options)
    check_drives(request, options)
    _complete(request.node, options)
    require_for_options(request, delete)
    require_for_options(request, options)
    check_storage_access(request, options)
    check_bridges(request, options)
    force, skiplock = params.get("force") == "1", params.get("skiplock") == "1"
    return Change(request, options, delete, revert, params.get("digest"), force, skiplock, words)


def _reverted(names: list[str], options: Config) -> list[str]:
    for name in names:
        if not is_option(name):
            raise bad_parameters({"revert": f"unknown option '{name}'"})
        if name in options:
            raise bad_parameters({"delete": f"you can't use '-{name}' and -revert {name}' at the same time"})
    return names


def _deleted(names: list[str], revert: list[str], options: Config) -> list[str]:
    names = ["ide2" if name == "cdrom" else name for name in names]
    for name in names:
        if name in options:
            raise bad_parameters({"delete": f"you can't use '-{name}' and -delete {name}' at the same time"})
        if name in revert:
            raise bad_parameters({"revert": f"you can't use '-delete {name}' and -revert {name}' at the same time"})
        if not is_option(name):
            raise bad_parameters({"delete": f"unknown option '{name}'"})
    return names


def _complete(node: Node, options: Config) -> None:
    network.add_addresses(options)
    if options.get("vmgenid") == "1":
        options["vmgenid"] = str(uuid.uuid4())
    if "hookscript" in options:
        _check_hookscript(node, options["hookscript"])


def _check_hookscript(node: Node, volid: str) -> None:
    try:
        if node.store.parse(volid).content != "snippets":
            raise PveError(f"'{volid}' is not in the snippets directory")
        if volid not in node.store.volumes:
            raise PveError(f"script '{volid}' does not exist")
    except PveError as refused:
        raise bad_parameters({"hookscript": f"{refused}\n"}) from None


def _load(change: Change, *, write: bool) -> Machine:
    """The VM, fit to be changed; with `write` also what is reverted is turned into settings and deletions."""
    machine = change.request.node.machine(change.request.vmid)
    machine.check_digest(change.digest)
    if not change.skiplock:
        machine.check_lock()
    for name in change.revert if write else ():
        if name in machine.config:
            change.options[name] = machine.config[name]
        elif name in machine.pending:
            change.delete.append(name)
    if "memory" in change.options or "balloon" in change.options:
        config = {**machine.with_pending, **change.options}
        if int(config.get("balloon", "0")) > memory_mib(config):
            raise PveError("balloon value too large (must be smaller than assigned memory)")
    return machine


def _apply(change: Change, log: TaskLog) -> None:
    node = change.request.node
    machine = _load(change, write=True)
    log.line(f"update VM {machine.vmid}: {change.words}")
    for name in change.delete:
        _delete(change, machine, name, log)
    for name in sorted(change.options):
        _set(change, machine, name, log)
    machine.drop_nothing_pending()
    if not machine.pending and not machine.deletions:
        return
    if not node.running(machine.vmid):
        pending.apply(node, machine, log)
    elif errors := pending.hotplug(node, machine, change.modified, log):
        raise bad_parameters(errors)


def _delete(change: Change, machine: Machine, name: str, log: TaskLog) -> None:
    request = change.request
    value = machine.config.get(name, machine.pending.get(name))
    if value is None:
        log.line(f"cannot delete '{name}' - not set in current configuration!")
        return
    change.modified.add(name)
    waiting = machine.pending.pop(name, None)
    if name in (order := boot_order(machine.with_pending)):
        machine.pending["boot"] = printed_boot_order([each for each in order if each != name])
        change.modified.add("boot")
    if is_unused(name):
        machine.check_protection(f"can't remove unused disk '{value}'")
        request.require(f"/vms/{machine.vmid}", "VM.Config.Disk")
        if owned_by(request.node, machine.vmid, value):
            request.node.store.free(value, log)
        machine.config.pop(name, None)
        return
    if is_drive(name):
        machine.check_protection(f"can't remove drive '{name}'")
        require_for_drive(request, parse_drive(name, value))
        if waiting is not None and (drive := parse_drive(name, waiting)) is not None:
            register_unused(request.node, machine.vmid, machine.config, drive, log)
            drop_used(machine)
    else:
        require_for_device(request, name, value, verb="delete")
        if network.is_card(name) and name in machine.config:
            check_bridges(request, {name: value})
    if name == "tags":
        machine.config.pop(name, None)
    else:
        machine.deletions[name] = change.force


def _set(change: Change, machine: Machine, name: str, log: TaskLog) -> None:
    value = change.options[name]
    change.modified.add(name)
    if machine.pending.get(name) == value:
        return
    if is_drive(name):
        _set_drive(change, machine, name, log)
    elif name == "cipassword":
        machine.config[name] = _hashed(value)
    else:
        _check_value(change, machine, name, value)
        machine.pending[name] = _stored(change, machine, name, value)
    if name == "boot" and boot_order({"boot": value}) and "bootdisk" in machine.config:
        machine.deletions["bootdisk"] = False
    if name == "ostype":
        _pin(change, machine, log)
    machine.deletions.pop(name, None)


def _check_value(change: Change, machine: Machine, name: str, value: str) -> None:
    request, old = change.request, machine.config.get(name)
    if old is not None and not name.startswith("serial"):
        require_for_device(request, name, old)
    require_for_device(request, name, value, verb=_verb(name), old=old or "socket")
    if network.is_card(name) and old is not None:
        check_bridges(request, {name: old})
    if name == "vga":
        check_clipboard(value)
    elif name == "machine":
        check_machine(value)


def _pin(change: Change, machine: Machine, log: TaskLog) -> None:
    """A VM that becomes a Windows gets a machine version, unless the caller says which machine it is to be."""
    if "machine" in change.options or "machine" in machine.pending or "machine" in change.delete:
        return
    if (found := pinned({**machine.config, "ostype": change.options["ostype"]})) is not None:
        log.line(pinning(found))
        machine.pending["machine"] = found


def _verb(name: str) -> str:
    return "modify" if re.fullmatch(r"serial\d+", name) else "set"


def _stored(change: Change, machine: Machine, name: str, value: str) -> str:
    if name == "tags":
        return unique_tags(value)
    if name == "boot":
        order = boot_order({"boot": value})
        known = {**machine.with_pending, **change.options}
        for device in order:
            if device not in known or device in change.delete:
                raise PveError(f"invalid bootorder: device '{device}' does not exist'")
        return printed_boot_order(order) if order else value
    return value


def _set_drive(change: Change, machine: Machine, name: str, log: TaskLog) -> None:
    request = change.request
    require_for_drive_text(request, name, machine.config)
    require_for_drive(request, parse_drive(name, change.options[name]))
    if name in machine.pending and (waiting := parse_drive(name, machine.pending[name])) is not None:
        register_unused(request.node, machine.vmid, machine.config, waiting, log)
    kept = create_disks(request, machine.with_pending, {name: change.options[name]}, log)
    machine.pending.update(kept)
    drop_used(machine)
    drive = parse_drive(name, kept[name])
    order = boot_order(machine.with_pending)
    if drive is not None and drive.is_cdrom and not drive.is_cloudinit and order and name not in order:
        machine.pending["boot"] = printed_boot_order([*order, name])
        change.modified.add("boot")


def _hashed(password: str) -> str:
    # PVE keeps a crypt(3) hash. The double needs only that the password itself is nowhere to be read.
    return "$5$double$" + hashlib.sha256(password.encode()).hexdigest()
