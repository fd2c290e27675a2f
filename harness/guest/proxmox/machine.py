"""One VM of ours on the node: made, started, asked and removed through the API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.errors import GuestError, HarnessError, LabUnavailable
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.tasks import TaskEnd
from harness.guest.proxmox.vm import free_ids, run_of
from harness.lab.counters import Transferred
from harness.lab.paths import TAG
from harness.lab.proxmox import GuestRules

CREATE_SECONDS = 180.0
CLONE_SECONDS = 900.0
START_SECONDS = 120.0
STOP_SECONDS = 90.0
DESTROY_SECONDS = 180.0
_POLL_SECONDS = 0.5
_SILENT = "QEMU guest agent is not running"


@dataclass(frozen=True, slots=True)
class Machine:
    """A VM by its id. Whatever fails is a PveError with PVE's words, or a GuestError."""

    client: Client
    vmid: int

    @property
    def path(self) -> str:
        return f"{self.client.node}/qemu/{self.vmid}"

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"{self.path}/config")
        return found

    def set(self, settings: Mapping[str, object]) -> None:
        """Change the configuration, by the call that PVE works on in a task, so that no proxy gives up on it."""
        wanted = {key: str(value) for key, value in settings.items()}

        def seen() -> bool:
            config = self.config()
            # PVE writes a drive with its size, and a network card with its address.
            return all(str(config.get(key, "")).startswith(value.partition(",")[0]) for key, value in wanted.items())

        end = self.client.task(
            "post",
            f"{self.path}/config",
            settings,
            expected=Expected("qmconfig", str(self.vmid)),
            seen=seen,
            deadline=CREATE_SECONDS,
        )
        _require_all(self, end, "configure")

    def start(self) -> None:
        """Raises GuestError where PVE started it otherwise than asked for, which it calls a warning."""
        end = self.client.task(
            "post",
            f"{self.path}/status/start",
            {},
            expected=Expected("qmstart", str(self.vmid)),
            seen=lambda: self.running,
            deadline=START_SECONDS,
        )
        _require_all(self, end, "start")
        if not self.running:
            raise GuestError(
                f"host {self.client.host}: VM {self.vmid} ended right after its start",
                hint=f"see its task log on {self.client.spec.node}",
            )

    @property
    def running(self) -> bool:
        return bool(self.status()["status"] == "running")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"{self.path}/status/current")
        return found

    def transferred(self, key: str) -> Transferred:
        """What the guest asked of the drive `key`, as QEMU counts it (its query-blockstats)."""
        counted = self.status().get("blockstat", {}).get(key)
        if counted is None:
            raise GuestError(f"host {self.client.host}: QEMU counts nothing for {key} of VM {self.vmid}")
        return Transferred(int(counted["rd_bytes"]), int(counted["wr_bytes"]))

    def interfaces(self) -> list[dict[str, Any]] | None:
        """The guest's network interfaces as its agent tells them; None while no agent answers."""
        try:
            found = self.client.get(f"{self.path}/agent/network-get-interfaces", deadline=10)
        except PveError as error:
            if _SILENT in error.said or error.lost:
                return None
            raise
        listed: list[dict[str, Any]] = found["result"]
        return listed

    def run_by_agent(self, script: str, *, deadline: float) -> bool:
        """Run a shell script, which may be run twice, in the guest through its agent; False while no agent answers."""
        try:
            started = self.client.write(
                "post",
                f"{self.path}/agent/exec",
                {"command": ["/bin/sh", "-c", script]},
                seen=lambda: False,
                deadline=5,
            )
        except PveError as error:
            # Its answer may have been lost (status 0): what is run so may be run again.
            if error.status == 0 or _SILENT in error.said:
                return False
            raise
        end = time.monotonic() + deadline
        while not (status := self.client.get(f"{self.path}/agent/exec-status", {"pid": started["pid"]})).get("exited"):
            if time.monotonic() >= end:
                raise GuestError(f"host {self.client.host}: VM {self.vmid}: `{script}` did not end in the guest")
            time.sleep(_POLL_SECONDS)
        if status.get("exitcode") != 0:
            said = status.get("err-data") or status.get("out-data") or "(it printed nothing)"
            raise GuestError(f"host {self.client.host}: VM {self.vmid}: `{script}` failed in the guest: {said.strip()}")
        return True

    def stop(self, **options: int) -> None:
        """End it. One that does not run is as good as stopped."""
        self.client.task(
            "post",
            f"{self.path}/status/stop",
            options,
            expected=Expected("qmstop", str(self.vmid)),
            seen=lambda: not self.running,
            deadline=STOP_SECONDS,
        )

    def destroy(self) -> None:
        """Remove it with all volumes of its own. A device that was passed through stays as it is.

        A VM that a task left locked is removed all the same where PVE lets us: as root@pam with a password.
        """
        self._settle()
        try:
            self.stop()
            self._remove()
        except PveError as error:
            if "VM is locked" not in error.said or not self.client.spec.may_pass_devices:
                raise
            self.stop(skiplock=1)
            self._remove(skiplock=1)

    def _remove(self, **options: int) -> None:
        self.client.task(
            "delete",
            self.path,
            {"purge": 1, "destroy-unreferenced-disks": 1, **options},
            expected=Expected("qmdestroy", str(self.vmid)),
            seen=lambda: not exists(self.client, self.vmid),
            deadline=DESTROY_SECONDS,
        )

    def _settle(self) -> None:
        """Wait for the tasks of a client that is gone: its VM is locked as long as they run."""
        end = time.monotonic() + STOP_SECONDS
        while self.client.get(f"{self.client.node}/tasks", {"source": "active", "vmid": self.vmid}):
            if time.monotonic() >= end:
                raise GuestError(f"host {self.client.host}: a task of VM {self.vmid} does not end")
            time.sleep(_POLL_SECONDS)


def _require_all(machine: Machine, end: TaskEnd, what: str) -> None:
    """A warning is something that PVE left out: GuestError, for then what is there is not what was asked for."""
    if end.warnings:
        raise GuestError(
            f"host {machine.client.host}: Proxmox VE did {what} VM {machine.vmid}, but not as asked for: "
            + "; ".join(end.warnings),
            hint="what was ignored may decide the figures, so nothing is measured",
        )


def exists(client: Client, vmid: int) -> bool:
    """Whether the node has such a VM. (A GET of one that is missing answers 500, as much else does.)"""
    return any(int(each["vmid"]) == vmid for each in client.get(f"{client.node}/qemu"))


def ours(client: Client) -> list[tuple[Machine, str]]:
    """Every VM of ours on the node, whichever run made it, with that run."""
    found = []
    for each in client.get(f"{client.node}/qemu"):
        machine = Machine(client, int(each["vmid"]))
        if str(each.get("name", "")).startswith(f"{TAG}-") and (run := run_of(machine.config())):
            found.append((machine, run))
    return found


def create(client: Client, rules: GuestRules, settings: Mapping[str, object]) -> Machine:
    """A VM with these settings and a free id of the lab's range. Another one may take the id first: then the next."""

    def make(machine: Machine) -> None:
        end = client.task(
            "post",
            f"{client.node}/qemu",
            {"vmid": machine.vmid, **settings},
            expected=Expected("qmcreate", str(machine.vmid)),
            seen=lambda: exists(client, machine.vmid),
            deadline=CREATE_SECONDS,
        )
        _require_all(machine, end, "create")

    return _with_free_id(client, rules, make)


def clone(client: Client, rules: GuestRules, marks: Mapping[str, object]) -> Machine:
    """A clone of the lab's template, known as ours from the beginning by its name and description."""
    template = Machine(client, int(rules.template or 0))

    def make(machine: Machine) -> None:
        end = client.task(
            "post",
            f"{template.path}/clone",
            {"newid": machine.vmid, "name": marks["name"], "description": marks["description"]},
            expected=Expected("qmclone", str(template.vmid)),
            seen=lambda: exists(client, machine.vmid),
            deadline=CLONE_SECONDS,
        )
        _require_all(machine, end, "clone")
        machine.set({"tags": marks["tags"]})

    return _with_free_id(client, rules, make)


def _with_free_id(client: Client, rules: GuestRules, make: Callable[[Machine], None]) -> Machine:
    used = {int(each["vmid"]) for each in client.get("cluster/resources", {"type": "vm"})}
    for vmid in free_ids(rules.vmids, used):
        if not _is_free(client, vmid):
            continue
        machine = Machine(client, vmid)
        try:
            make(machine)
        except PveError as error:
            if "already exists" in error.said:
                continue
            _discard(machine)
            raise
        except BaseException:
            _discard(machine)
            raise
        return machine
    first, last = rules.vmids
    raise LabUnavailable(
        f"host {client.host}: no VM id from {first} to {last} is free",
        hint=f"virt-overhead reap --host {client.host}, or widen host.{client.host}.guest.vmids",
    )


def _is_free(client: Client, vmid: int) -> bool:
    """Whether nobody in the cluster has the id: VMs that this login may not see are told by their id alone."""
    try:
        client.get("cluster/nextid", {"vmid": vmid})
    except PveError as error:
        if "already exists" in error.said:
            return False
        raise
    return True


def _discard(machine: Machine) -> None:
    """Remove what a creation of ours left that failed, if it left something."""
    with suppress(HarnessError):
        if not exists(machine.client, machine.vmid):
            return
        config = machine.config()
        # A creation that broke off early has left a lock, and nothing yet by which its VM would be known as ours.
        if run_of(config) or (config.get("lock") == "create" and "name" not in config):
            machine.destroy()
