"""A VM's life: starting, stopping, shutting down, resetting, pausing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from pve_double.errors import PveError
from pve_double.executor.base import QemuFailed
from pve_double.qemu import command, pending
from pve_double.qemu.blockdev import chipset
from pve_double.qemu.drives import drives
from pve_double.qemu.machine import Machine, Process
from pve_double.qemu.volumes import Request
from pve_double.state import Node
from pve_double.storage.volumes import is_volume_id
from pve_double.tasks import TaskLog

STOP_SECONDS = 60.0
"""How long PVE waits for a guest to shut down when neither the call nor `startup` says."""
NO_COMMAND = "VM {vmid} qmp command '{command}' failed - The command {command} has not been found"
"""What a QEMU without Proxmox's patches says, as that of the recordings."""
EXITED = "start failed: QEMU exited with code 1"


def start_task(node: Node, user: str, vmid: int, params: Mapping[str, str]) -> str:
    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            machine = node.machine(vmid)
            _refuse_template(machine)
            if params.get("skiplock") != "1" and machine.config.get("lock") != "suspended":
                machine.check_lock()
            if node.running(vmid):
                raise PveError(f"VM {vmid} already running")
            start(node, machine, log)

    return node.tasks.start("qmstart", str(vmid), user, work)


def start(node: Node, machine: Machine, log: TaskLog) -> None:
    """Start a VM that is stopped, with all that is pending applied first."""
    _refuse_template(machine)
    pending.apply(node, machine, log)
    config = dict(machine.config)
    if any(drive.is_cloudinit for drive in drives(config)):
        log.line("generating cloud-init ISO")
    if config.get("bios") == "ovmf" and "efidisk0" not in config:
        log.warn("no efidisk configured! Using temporary efivars disk.")
    words = command.build(node, machine.vmid, config, log)
    for drive in drives(config):
        if is_volume_id(drive.file):
            node.store.activate(drive.file)
    _refuse_as_qemu(node, machine, log)
    try:
        pid = node.executor.start(machine.vmid, config, words)
    except QemuFailed as failed:
        for line in str(failed).splitlines():
            log.line(f"kvm: {line}")
        raise PveError(EXITED) from None
    machine.process = Process(pid, config, _first_answer(node))


def _refuse_template(machine: Machine) -> None:
    if machine.is_template:
        raise PveError("you can't start a vm if it's a template")


def _first_answer(node: Node) -> float:
    """When a guest that starts now answers: one that really runs answers for itself."""
    return time.monotonic() + (0.0 if node.executor.real else node.pace.real(node.pace.boot_seconds))


def _refuse_as_qemu(node: Node, machine: Machine, log: TaskLog) -> None:
    """Fail as QEMU does where a drive cannot be opened or KVM's own processor is emulated, whatever executes."""
    for drive in drives(machine.config):
        image = command.image_of(node, drive)
        if image is None or not chipset(machine.config).has_blockdev:
            continue
        reason = None
        try:
            command.check_blockdev(drive, machine.config, "")
        except PveError as refused:
            reason = str(refused)
        if not image.path:
            reason = "The 'host_cdrom' block driver requires a file name"
        elif image.path.startswith("/dev/disk/") and not node.disks.exists(image.path):
            reason = f"Could not open '{image.path}': No such file or directory"
        if reason is not None:
            log.line(f"kvm: -blockdev {command.blockdev_text(drive, image)}: {reason}")
            raise PveError(EXITED)
    if machine.config.get("kvm") == "0" and command.cpu_model(machine.config) == "host":
        log.line("kvm: CPU model 'host' requires KVM or HVF")
        raise PveError(EXITED)


def stop_task(node: Node, user: str, vmid: int, params: Mapping[str, str]) -> str:
    def work(log: TaskLog) -> None:
        stop(node, vmid, log, skiplock=params.get("skiplock") == "1")

    return node.tasks.start("qmstop", str(vmid), user, work)


def stop(node: Node, vmid: int, log: TaskLog, *, skiplock: bool = False) -> None:
    """End the VM at once; nothing happens where it is stopped already."""
    with node.config_lock(vmid, log):
        if not node.running(vmid):
            return
        machine = node.machine(vmid)
        if not skiplock:
            machine.check_lock()
        node.executor.kill(vmid)
        machine.process = None
        _clean_up(node, machine, log)


def _clean_up(node: Node, machine: Machine, log: TaskLog) -> None:
    """After the end of a VM, as QemuServer::vm_stop_cleanup."""
    node.store.deactivate((drive.file for drive in drives(machine.config)), log)


def _is_paused(node: Node, vmid: int) -> bool:
    """Whether the VM runs and is paused; a VM that is not there is not."""
    machine = node.machines.get(vmid)
    return machine is not None and machine.process is not None and machine.process.paused


def shutdown_task(node: Node, user: str, vmid: int, params: Mapping[str, str]) -> str:
    """A paused guest cannot shut down: with forceStop it is stopped at once, else nothing is tried."""
    force, skiplock = params.get("forceStop") == "1", params.get("skiplock") == "1"
    paused = _is_paused(node, vmid)
    if paused and not force:
        raise PveError("VM is paused - cannot shutdown")

    def work(log: TaskLog) -> None:
        if paused:
            stop(node, vmid, log, skiplock=skiplock)
            return
        with node.config_lock(vmid, log):
            shut_down(node, vmid, log, params, force=force, skiplock=skiplock)

    return node.tasks.start("qmshutdown", str(vmid), user, work)


def shutdown_seconds(config: Mapping[str, str], params: Mapping[str, str]) -> float:
    """How long the guest may take: as the call says, or its `startup`, or PVE."""
    if "timeout" in params:
        return float(params["timeout"])
    found = re.search(r"\bdown=(\d+)", config.get("startup", ""))
    return float(found.group(1)) if found and int(found.group(1)) else STOP_SECONDS


def shut_down(
    node: Node, vmid: int, log: TaskLog, params: Mapping[str, str], *, force: bool = False, skiplock: bool = False
) -> None:
    """Ask the guest to end, wait, and with `force` end it. The caller holds the configuration's lock."""
    if not node.running(vmid):
        return
    machine = node.machine(vmid)
    if not skiplock:
        machine.check_lock()
    process = machine.process
    if process is None:
        return
    seconds = shutdown_seconds(machine.config, params)
    deadline = time.monotonic() + node.pace.real(seconds)
    node.executor.power_down(vmid, process.config)
    while node.running(vmid) and time.monotonic() < deadline:
        node.pace.sleep(min(0.5, seconds))
    if node.running(vmid):
        if not force:
            raise PveError("VM quit/powerdown failed - got timeout")
        log.line("VM still running - terminating now with SIGTERM")
        node.executor.kill(vmid)
        machine.process = None
    _clean_up(node, machine, log)


def require_running(node: Node, vmid: int) -> Machine:
    if not node.running(vmid):
        raise PveError(f"VM {vmid} not running")
    return node.machine(vmid)


def reset_task(node: Node, user: str, vmid: int, params: Mapping[str, str]) -> str:
    machine = require_running(node, vmid)

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            if params.get("skiplock") != "1":
                machine.check_lock()
            node.executor.reset(vmid)
            if machine.process is not None:
                machine.process.answers_from = _first_answer(node)

    return node.tasks.start("qmreset", str(vmid), user, work)


def reboot_task(node: Node, user: str, vmid: int, params: Mapping[str, str]) -> str:
    if _is_paused(node, vmid):
        raise PveError("VM is paused - cannot shutdown")
    machine = require_running(node, vmid)

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            shut_down(node, vmid, log, params)
            start(node, machine, log)

    return node.tasks.start("qmreboot", str(vmid), user, work)


def suspend_task(request: Request, params: Mapping[str, str]) -> str:
    """Pause; keeping the state on a disk fails, as QEMU without Proxmox's patches has no command for it."""
    node, vmid = request.node, request.vmid
    machine = require_running(node, vmid)
    to_disk = params.get("todisk") == "1"
    if to_disk:
        _check_state_storage(request, machine, params.get("statestorage"))

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            if params.get("skiplock") != "1":
                machine.check_lock()
            if to_disk:
                raise PveError(NO_COMMAND.format(vmid=vmid, command="savevm-start"))
            _pause(node, machine, resume=False)

    return node.tasks.start("qmsuspend" if to_disk else "qmpause", str(vmid), request.user, work)


def _check_state_storage(request: Request, machine: Machine, storage: str | None) -> None:
    """Where the state would go: as asked, as configured, or where the first disk with a storage is."""
    request.require(f"/vms/{request.vmid}", "VM.Config.Disk")
    if any(name.startswith("hostpci") for name in machine.config):
        raise PveError(
            "cannot suspend VM to disk due to passed-through PCI device(s), which lack the possibility to save/restore"
            " their internal state"
        )
    disks = [drive.storage for drive in drives(machine.config) if not drive.is_cdrom and drive.storage is not None]
    found = storage or machine.config.get("vmstatestorage") or next(iter(disks), "local")
    request.require(f"/storage/{found}", "Datastore.AllocateSpace")


def resume_task(request: Request, params: Mapping[str, str]) -> str:
    node, vmid = request.node, request.vmid
    machine = require_running(node, vmid)

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            if params.get("skiplock") != "1":
                machine.check_lock()
            _pause(node, machine, resume=True)

    return node.tasks.start("qmresume", str(vmid), request.user, work)


def _pause(node: Node, machine: Machine, *, resume: bool) -> None:
    if machine.process is not None:
        node.executor.pause(machine.vmid, resume=resume)
        machine.process.paused = not resume
