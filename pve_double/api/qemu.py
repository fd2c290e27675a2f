"""The calls about virtual machines."""

from __future__ import annotations

from typing import Any

from pve_double.api import agent
from pve_double.api.call import Call, Handler
from pve_double.errors import PveError, bad_parameters
from pve_double.permissions import ROOT
from pve_double.qemu import clone as clones
from pve_double.qemu import cloudinit, copies, create, monitor, power, snapshots, status, update, vzdump
from pve_double.qemu.drives import drives
from pve_double.qemu.machine import CONFIG_PATH, presented
from pve_double.qemu.volumes import Request

_QEMU = "/nodes/{node}/qemu"
_VM = f"{_QEMU}/{{vmid}}"
_ROOT_ONLY = (
    "stateuri", "skiplock", "migratedfrom", "migration_type", "migration_network", "targetstorage", "force-cpu",
    "with-conntrack-state", "nets-host-mtu", "keepActive", "nocheck",
)  # fmt: skip


def _request(call: Call) -> Request:
    return Request(call.node, call.user, call.vmid)


def _refuse_root_only(call: Call) -> None:
    asked = [name for name in _ROOT_ONLY if call.text(name, "0") != "0"]
    if asked and call.user != ROOT:
        raise bad_parameters({asked[0]: "Only root may use this option."})


def list_machines(call: Call) -> list[dict[str, Any]]:
    may = call.node.permissions
    visible = [vmid for vmid in call.node.machines if may.has(call.user, f"/vms/{vmid}", ["VM.Audit"])]
    return [status.summary(call.node, vmid) for vmid in visible]


def create_machine(call: Call) -> str:
    return create.create(call.node, call.user, call.texts)


def destroy_machine(call: Call) -> str:
    return create.destroy(
        call.node,
        call.user,
        call.vmid,
        skiplock=call.flag("skiplock"),
        purge=call.flag("purge"),
        unreferenced=call.flag("destroy-unreferenced-disks"),
    )


def get_config(call: Call) -> dict[str, Any]:
    if call.text("snapshot") and call.flag("current"):
        text = "cannot use 'snapshot' parameter with 'current'"
        raise bad_parameters({"snapshot": text, "current": text})
    machine = call.node.machine(call.vmid)
    if name := call.text("snapshot"):
        return snapshots.shown(snapshots.existing(machine, name)) | {"digest": machine.digest}
    config = machine.config if call.flag("current") else machine.with_pending
    return presented(config) | {"digest": machine.digest}


def get_pending(call: Call) -> list[dict[str, Any]]:
    machine = call.node.machine(call.vmid)
    now, later = presented(machine.config) | {"digest": machine.digest}, presented(machine.pending)
    entries = []
    for name, value in now.items():
        entry: dict[str, Any] = {"key": name, "value": value}
        entry |= {"pending": later[name]} if name in later else {}
        entry |= {"delete": 2 if machine.deletions[name] else 1} if name in machine.deletions else {}
        entries.append(entry)
    return entries + [{"key": name, "pending": value} for name, value in later.items() if name not in now]


def put_config(call: Call) -> None:
    update.update(call.node, call.user, call.texts, background=False)


def post_config(call: Call) -> str | None:
    upid = update.update(call.node, call.user, call.texts, background=True)
    if upid is None or "background_delay" not in call.params:
        return upid
    task = call.node.tasks.find(upid)
    if not task.done.wait(call.node.pace.real(call.number("background_delay", 1))):
        return upid
    if task.exitstatus == "OK" or str(task.exitstatus).startswith("WARNINGS"):
        return None
    raise PveError(f"failed to update VM {call.vmid}: {task.exitstatus}")


def unlink(call: Call) -> None:
    params = {name: value for name, value in call.texts.items() if name != "idlist"}
    update.update(call.node, call.user, {**params, "delete": call.text("idlist")}, background=False)


def current_status(call: Call) -> dict[str, Any]:
    return status.current(call.node, call.vmid)


def start(call: Call) -> str:
    _refuse_root_only(call)
    return power.start_task(call.node, call.user, call.vmid, call.texts)


def stop(call: Call) -> str:
    _refuse_root_only(call)
    return power.stop_task(call.node, call.user, call.vmid, call.texts)


def shutdown(call: Call) -> str:
    _refuse_root_only(call)
    return power.shutdown_task(call.node, call.user, call.vmid, call.texts)


def reset(call: Call) -> str:
    _refuse_root_only(call)
    return power.reset_task(call.node, call.user, call.vmid, call.texts)


def reboot(call: Call) -> str:
    return power.reboot_task(call.node, call.user, call.vmid, call.texts)


def suspend(call: Call) -> str:
    _refuse_root_only(call)
    return power.suspend_task(_request(call), call.texts)


def resume(call: Call) -> str:
    _refuse_root_only(call)
    return power.resume_task(_request(call), call.texts)


def run_monitor(call: Call) -> str:
    return monitor.answer(_request(call), call.text("command"))


def send_key(call: Call) -> None:
    _refuse_root_only(call)
    monitor.send_key(_request(call), call.text("key"), skiplock=call.flag("skiplock"))


def migrate(call: Call) -> str:
    if (target := call.text("target")) == call.node.name:
        raise bad_parameters({"target": "target is local node."})
    raise PveError(f"no such cluster node '{target}'")


def resize(call: Call) -> str:
    _refuse_root_only(call)
    return copies.resize_task(_request(call), call.texts)


def move_disk(call: Call) -> str:
    return copies.move_task(_request(call), call.texts)


def clone(call: Call) -> str:
    return clones.clone_task(_request(call), call.texts)


def template(call: Call) -> str:
    return clones.template_task(_request(call), call.text("disk") or None)


def feature(call: Call) -> dict[str, Any]:
    call.node.running(call.vmid)
    machine, name = call.node.machine(call.vmid), call.text("snapname")
    config = snapshots.existing(machine, name).config if name else machine.config
    has = clones.has_feature(call.node, call.text("feature"), config, of_snapshot=bool(name))
    return {"hasFeature": int(has), "nodes": [call.node.name]}


def cloudinit_dump(call: Call) -> str:
    config = call.node.machine(call.vmid).with_pending
    match call.text("type"):
        case "user":
            return cloudinit.user_data(call.vmid, config)
        case "network":
            return cloudinit.network_config(config)
    return cloudinit.meta_data(call.vmid)


def cloudinit_pending(call: Call) -> list[dict[str, Any]]:
    config = presented(call.node.machine(call.vmid).config)
    names = ("ciuser", "cipassword", "sshkeys", "nameserver", "searchdomain", "citype", "ciupgrade", "cicustom")
    return [{"key": name, "value": config[name]} for name in names if name in config]


def cloudinit_regenerate(call: Call) -> None:
    with call.node.config_lock(call.vmid):
        machine = call.node.machine(call.vmid)
        machine.check_lock()
        for drive in drives(machine.config):
            if drive.is_cloudinit:
                call.node.store.activate(drive.file)


def back_up(call: Call) -> str:
    return vzdump.backup_task(
        call.node, call.user, {name: value for name, value in call.texts.items() if name != "node"}
    )


ROUTES: dict[tuple[str, str], Handler] = {
    ("POST", "/nodes/{node}/vzdump"): back_up,
    ("GET", _QEMU): list_machines,
    ("POST", _QEMU): create_machine,
    ("DELETE", _VM): destroy_machine,
    ("GET", CONFIG_PATH): get_config,
    ("PUT", CONFIG_PATH): put_config,
    ("POST", CONFIG_PATH): post_config,
    ("GET", f"{_VM}/pending"): get_pending,
    ("PUT", f"{_VM}/unlink"): unlink,
    ("GET", f"{_VM}/status/current"): current_status,
    ("POST", f"{_VM}/status/start"): start,
    ("POST", f"{_VM}/status/stop"): stop,
    ("POST", f"{_VM}/status/shutdown"): shutdown,
    ("POST", f"{_VM}/status/reset"): reset,
    ("POST", f"{_VM}/status/reboot"): reboot,
    ("POST", f"{_VM}/status/suspend"): suspend,
    ("POST", f"{_VM}/status/resume"): resume,
    ("POST", f"{_VM}/monitor"): run_monitor,
    ("PUT", f"{_VM}/sendkey"): send_key,
    ("POST", f"{_VM}/migrate"): migrate,
    ("PUT", f"{_VM}/resize"): resize,
    ("POST", f"{_VM}/move_disk"): move_disk,
    ("POST", f"{_VM}/clone"): clone,
    ("POST", f"{_VM}/template"): template,
    ("GET", f"{_VM}/feature"): feature,
    ("GET", f"{_VM}/cloudinit/dump"): cloudinit_dump,
    ("GET", f"{_VM}/cloudinit"): cloudinit_pending,
    ("PUT", f"{_VM}/cloudinit"): cloudinit_regenerate,
    **{(method, f"{_VM}/agent{rest}"): handler for (method, rest), handler in agent.ROUTES.items()},
}
