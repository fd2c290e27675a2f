"""One VM on the node, through the API: configured, started, read, removed; its address, and the login to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from harness.errors import GuestError, HarnessError, HostError
from harness.features.proxmox import GuestRules
from harness.features.proxmox.client import READ_SECONDS, Client, Expected, Method, PveError, TaskEnd
from harness.guest.booting import logging_in
from harness.lab.hosts import Host
from harness.lab.transport.base import Runner
from harness.lab.transport.handshake import WrongHostKey
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.model.counters import Transferred
from harness.signals import Deadline, wait_until
from harness.untrusted import count, reading

CONFIG_SECONDS = 180.0
START_SECONDS = 120.0
STOP_SECONDS = 90.0
DESTROY_SECONDS = 180.0
COUNT_SECONDS = 15.0
_POLL_SECONDS = 0.5
_SILENT = "QEMU guest agent is not running"
_NO_FILE = "No such file"
_CONSOLES = ("vncproxy", "spiceproxy")
_FORGOTTEN = "Invalid parameter 'pid'"
"""The agent's error for a command whose end it has already reported, or that began before the agent restarted."""


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """A VM by its id. Failures are a PveError with PVE's text, or a GuestError."""

    client: Client
    vmid: int

    @property
    def path(self) -> str:
        return f"{self.client.node}/qemu/{self.vmid}"

    @property
    def words(self) -> str:
        """How messages name it, with its host."""
        return f"host {self.client.host}: VM {self.vmid}"

    def run_task(
        self, kind: str, below: str, params: Mapping[str, object], is_done: Callable[[], bool], seconds: float
    ) -> TaskEnd:
        """A change for which PVE starts a task of this kind, at a path below that of the VM. Raises PveError."""
        method: Method = "post" if below else "delete"
        expected = Expected(kind, str(self.vmid))
        return self.client.task(
            method, f"{self.path}{below}", params, expected=expected, is_done=is_done, deadline=seconds
        )

    def config(self) -> dict[str, Any]:
        """The configuration in effect, without changes that wait for the VM's next start."""
        return self._require_table(self.client.get(f"{self.path}/config", {"current": 1}), "configuration")

    def pending(self) -> dict[str, str]:
        """The requested changes that are not in effect yet, as text by the name of the setting."""
        listed = self.client.get(f"{self.path}/pending")
        with self._read_answer("pending changes"):
            return {
                str(change["key"]): "its removal" if change.get("delete") else str(change["pending"])
                for change in listed
                if change.get("delete") or "pending" in change
            }

    def set(self, settings: Mapping[str, object]) -> None:
        """Change the configuration, with the call for which PVE starts a task, because no proxy can time out on it.

        Raises PveError, and GuestError if PVE accepted a change but did not apply it. Such a change is reverted: a
        drive that could not be unplugged would be removed at the next start.
        """
        wanted = {key: str(value) for key, value in settings.items() if key != "delete"}

        def is_done() -> bool:
            config = self.config()
            # PVE writes a drive with its size, and a network card with its address.
            return all(str(config.get(key, "")).startswith(value.partition(",")[0]) for key, value in wanted.items())

        try:
            end = self.run_task("qmconfig", "/config", settings, is_done, CONFIG_SECONDS)
        except PveError:
            with suppress(HarnessError):
                self.revert(self.pending())
            raise
        require_all(self, end, "configure")
        if pending := self.pending():
            self.revert(pending)
            raise GuestError(
                f"{self.words} was not changed as requested, only at its next start: "
                + "; ".join(f"{key}: {value}" for key, value in pending.items()),
                hint="the change was reverted; it can be made while the VM does not run",
            )

    def revert(self, pending: Mapping[str, str]) -> None:
        """Revert the changes that wait for the VM's next start."""
        if not pending:
            return
        wanted = {"revert": ",".join(pending)}
        self.run_task("qmconfig", "/config", wanted, lambda: not self.pending().keys() & pending.keys(), CONFIG_SECONDS)

    def start(self) -> None:
        """Start it. Raises GuestError if PVE did not start it as requested, which PVE reports as a warning."""
        end = self.run_task("qmstart", "/status/start", {}, lambda: self.running, START_SECONDS)
        require_all(self, end, "start")
        if not self.running:
            raise GuestError(
                f"{self.words} ended right after its start",
                hint=f"see its task log on {self.client.spec.node}",
            )

    @property
    def running(self) -> bool:
        return bool(self.status().get("status") == "running")

    def status(self) -> dict[str, Any]:
        return self._require_table(self.client.get(f"{self.path}/status/current"), "status")

    def transferred(self, keys: Iterable[str]) -> dict[str, Transferred]:
        """The bytes that the guest read from and wrote to these drives, as QEMU counts them (query-blockstats)."""
        status: dict[str, Any] = {}

        def has_counts() -> bool:
            # PVE omits the counters if QEMU does not answer in time.
            status.update(self.status())
            return bool(status.get("blockstat")) or status.get("status") != "running"

        wait_until(has_counts, deadline=COUNT_SECONDS, every=_POLL_SECONDS)
        counts = {}
        for key in keys:
            with self._read_answer(f"counts for {key}"):
                counted = (status.get("blockstat") or {}).get(key)
                if counted is None:
                    raise GuestError(f"host {self.client.host}: QEMU counts nothing for {key} of VM {self.vmid}")
                moved, trimmed = (counted["rd_bytes"], counted["wr_bytes"]), counted.get("unmap_bytes", 0)
                counts[key] = Transferred(*(count(int(number)) for number in (*moved, trimmed)))
        return counts

    def ask_monitor(self, command: str) -> str:
        """What QEMU's human monitor prints for a command that only reads. Raises PveError."""
        answer = self.client.write(
            "post", f"{self.path}/monitor", {"command": command}, is_done=lambda: False, deadline=READ_SECONDS
        )
        with self._read_answer(f"monitor's answer to `{command}`"):
            if not isinstance(answer, str):
                raise TypeError(f"it is {type(answer).__name__} instead of a text")
            return answer

    def interfaces(self) -> list[dict[str, Any]] | None:
        """The guest's network interfaces as its agent reports them; None while no agent answers."""
        try:
            answer = self.client.get(f"{self.path}/agent/network-get-interfaces", deadline=10)
        except PveError as error:
            if _SILENT in error.reason or error.lost:
                return None
            raise
        with self._read_answer("list of network interfaces"):
            listed: list[dict[str, Any]] = answer["result"]
            return listed

    def run_by_agent(self, script: str, *, deadline: float) -> bool:
        """Run a shell script in the guest through its agent, perhaps twice; False while no agent answers."""
        try:
            started = self.client.write(
                "post",
                f"{self.path}/agent/exec",
                {"command": ["/bin/sh", "-c", script]},
                is_done=lambda: False,
                deadline=5,
            )
        except PveError as error:
            # Its answer may have been lost (status 0): such scripts may run twice.
            if error.status == 0 or _SILENT in error.reason:
                return False
            raise
        with reading(f"{self.words}: the start of `{script}` by its agent", GuestError):
            pid = count(int(started["pid"]))
        status = wait_until(lambda: self._read_end(pid), deadline=deadline, every=_POLL_SECONDS)
        if status is None:
            raise GuestError(f"{self.words}: `{script}` did not end in the guest")
        if status.get("forgotten"):
            return False
        if status.get("exitcode") != 0:
            output = status.get("err-data") or status.get("out-data") or "(it printed nothing)"
            raise GuestError(f"{self.words}: `{script}` failed in the guest: {output.strip()}")
        return True

    def read_file(self, path: str) -> str | None:
        """A small text file of the guest, read by its agent; None if no agent answers or the file does not exist."""
        try:
            answer = self.client.get(f"{self.path}/agent/file-read", {"file": path}, deadline=10)
        except PveError as error:
            if error.lost or any(word in error.reason for word in (_SILENT, _NO_FILE)):
                return None
            raise
        with self._read_answer(f"file {path}"):
            return str(answer["content"])

    def _read_end(self, pid: int) -> dict[str, Any] | None:
        """How a command of the agent ended; None while it runs.

        The agent reports the end only once. If that answer is lost, the result is `forgotten`.
        """
        try:
            answer = self.client.get(f"{self.path}/agent/exec-status", {"pid": pid})
        except PveError as error:
            if _FORGOTTEN not in error.reason:
                raise
            return {"forgotten": 1}
        status = self._require_table(answer, "answer of the guest agent")
        return status if status.get("exited") else None

    def _read_answer(self, what: str) -> AbstractContextManager[None]:
        return reading(f"{self.words}: its {what}", GuestError)

    def _require_table(self, answer: object, what: str) -> dict[str, Any]:
        with self._read_answer(what):
            if not isinstance(answer, dict):
                raise TypeError(f"it is {type(answer).__name__} instead of an object")
            return answer

    def stop(self, **options: int) -> None:
        """End it. Does nothing if it does not run."""
        self.run_task("qmstop", "/status/stop", options, lambda: not self.running, STOP_SECONDS)

    def free(self, keys: Sequence[str], volid: str) -> None:
        """Remove these settings of the stopped VM, and the volume `volid` that they name."""
        wanted = {"delete": ",".join(keys), "force": 1}
        self.run_task(
            "qmconfig", "/config", wanted, lambda: not any(key in self.config() for key in keys), CONFIG_SECONDS
        )
        if left := [key for key, value in self.config().items() if str(value).partition(",")[0] == volid]:
            raise GuestError(f"{self.words} still has {volid} as {', '.join(left)}")

    def end(self) -> None:
        """Stop it if it runs. If a task left it locked, PVE allows this only to root@pam with a password."""
        self.settle()
        if self.running:
            self._retry_locked(self.stop)

    def destroy(self) -> None:
        """Remove the stopped VM and the volumes that its configuration names, and nothing else.

        Volumes that only have its number in their name, and backup jobs, belong to an earlier VM and stay.
        """
        self._retry_locked(self._delete)

    def _retry_locked(self, change: Callable[..., None]) -> None:
        try:
            change()
        except PveError as error:
            if "VM is locked" not in error.reason or not self.client.spec.may_pass_devices:
                raise
            change(skiplock=1)

    def _delete(self, **options: int) -> None:
        wanted = {"destroy-unreferenced-disks": 0, "purge": 0, **options}
        self.run_task("qmdestroy", "", wanted, lambda: not has_vm(self.client, self.vmid), DESTROY_SECONDS)

    def settle(self) -> None:
        """Wait for the tasks of a client that has ended: they lock the VM while they run."""
        if not wait_until(lambda: not self._list_active_tasks(), deadline=STOP_SECONDS, every=_POLL_SECONDS):
            raise GuestError(
                f"host {self.client.host}: a task of VM {self.vmid} does not end: "
                f"{', '.join(self._list_active_tasks())}",
                hint=f"see the task log of {self.client.spec.node}, then: virt-overhead reap",
            )

    def _list_active_tasks(self) -> list[str]:
        """The kinds of the running tasks, except for open consoles, which end with the VM."""
        tasks = self.client.get(f"{self.client.node}/tasks", {"source": "active", "vmid": self.vmid})
        with self._read_answer("list of tasks"):
            return [str(task["type"]) for task in tasks if task["type"] not in _CONSOLES]


def require_all(machine: VirtualMachine, end: TaskEnd, what: str) -> None:
    """Raises GuestError if the task has warnings: PVE omitted something, so the result is not as requested."""
    if end.warnings:
        raise GuestError(
            f"host {machine.client.host}: Proxmox VE did {what} VM {machine.vmid}, but not as requested: "
            + "; ".join(end.warnings),
            hint="the ignored options may affect figures, so nothing is measured",
        )


def has_vm(client: Client, vmid: int) -> bool:
    """Whether the node has this VM. (A GET of a missing VM answers 500, like many other errors.)"""
    listed = client.get(f"{client.node}/qemu")
    with reading(f"host {client.host}: the list of VMs of its API"):
        return any(int(vm["vmid"]) == vmid for vm in listed)


# QEMU writes to the node's journal under this name. The lines may include those of other VMs.
_JOURNAL = ("journalctl", "--quiet", "--no-pager", "--output=cat", "--identifier=QEMU", "--since=-15min", "--lines=4")


class Ended(GuestError):
    """The VM no longer runs."""


def require_running(machine: VirtualMachine) -> None:
    """Raise Ended if the VM has ended."""
    if not machine.running:
        raise Ended(
            f"{machine.words} ended while it was booting",
            hint=f"see the task log of VM {machine.vmid} and `journalctl -t QEMU` on {machine.client.spec.node}",
        )


def explained(error: Ended, machine: VirtualMachine, node: Runner) -> GuestError:
    """The error with the VM's state and what QEMU wrote to the journal of its node."""
    known = ""
    with suppress(HarnessError):
        status = machine.status()
        known = f"; Proxmox VE reports that it is {status.get('qmpstatus', status.get('status'))}"
    with suppress(HostError):
        journal = node.run(list(_JOURNAL), deadline=20, check=False).stdout.strip()
        wrote = "\n     ".join(journal.splitlines()[-4:])
        known += f"; QEMU's journal on the node ends with:\n     {wrote}" if wrote else "; QEMU wrote nothing"
    return GuestError(f"{error.message}{known}", hint=error.hint)


_LOGIN_POLL_SECONDS = 1.0


def wait_for_address(machine: VirtualMachine, rules: GuestRules, end: Deadline) -> str:
    """The guest's IPv4 address. Waits for it until `end`. Raises GuestError if there is none."""
    if rules.address is not None:
        return str(IPv4Interface(rules.address).ip)
    agent_answered = False

    def reported() -> str | None:
        nonlocal agent_answered
        interfaces = machine.interfaces()
        agent_answered = agent_answered or interfaces is not None
        with reading(f"{machine.words}: its list of network interfaces", GuestError):
            address = find_address(interfaces or ())
        if address is None:
            require_running(machine)
        return address

    if address := wait_until(reported, deadline=end, every=_LOGIN_POLL_SECONDS):
        return address
    why, remedy = "its agent does not answer", f"its console: qm terminal {machine.vmid} on {machine.client.host}"
    if agent_answered:
        why = "its agent reports no address"
        remedy = f'check DHCP on bridge {rules.bridge}, or set network = "static" and an address in the lab file'
    raise GuestError(f"{machine.words} booted, but {why}", hint=remedy)


def set_address(machine: VirtualMachine, rules: GuestRules, end: Deadline) -> None:
    """Set the lab's address through the guest's agent, as soon as it answers. Raises GuestError if it does not."""

    def is_set() -> bool:
        done = machine.run_by_agent(build_address_script(rules), deadline=max(end.left, 1.0))
        if not done:
            require_running(machine)
        return done

    if not wait_until(is_set, deadline=end, every=_LOGIN_POLL_SECONDS):
        raise GuestError(
            f"{machine.words} booted, but its agent does not answer",
            hint=f"its console: qm terminal {machine.vmid} on {machine.client.host}",
        )


def build_address_script(rules: GuestRules) -> str:
    """A script that sets the address of the guest's only network card and ends its DHCP client."""
    lines = [
        "{ killall udhcpc 2>/dev/null; true; }",
        "nic=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)",
        'ip link set "$nic" up',
        f'ip address replace {rules.address} dev "$nic"',
    ]
    if rules.gateway:
        lines.append(f"ip route replace default via {rules.gateway}")
    return " && ".join(lines)


def find_address(interfaces: Iterable[Mapping[str, Any]]) -> str | None:
    """The first IPv4 address in the agent's list that other machines can reach."""
    for interface in interfaces:
        for each in interface.get("ip-addresses", ()):
            if each.get("ip-address-type") != "ipv4":
                continue
            address = IPv4Address(each["ip-address"])
            if not address.is_loopback and not address.is_link_local:
                return str(address)
    return None


BOOT_SECONDS = {"kvm": 180.0, "tcg": 420.0}
"""The firmware reads the ISO, which takes seconds on hardware, and more than a minute if the node is emulated."""
KEY_FILE = "/etc/ssh/ssh_host_ed25519_key.pub"
"""OpenSSH's public host key. A clone of a template creates it at its first boot."""
_SSH_PORT = 22
_FORBIDDEN = 403
_CLONE_REMEDY = 'install qemu-guest-agent and openssh-server in the template, or set reach = "node" in the lab file'


def log_in(machine: VirtualMachine, host: Host, rules: GuestRules) -> SshRunner:
    """Log in to the VM, which may still be booting. Raises GuestError, with the remedy, if that takes too long."""
    end = Deadline.after(BOOT_SECONDS[host.acceleration.accel])
    hint = f"its console: qm terminal {machine.vmid} on {host.name}"
    try:
        with logging_in(f"host {host.name}: VM {machine.vmid}", hint=hint):
            return _connect_to_guest(machine, host, rules, end)
    except Ended as error:
        raise explained(error, machine, host.runner) from error


def _connect_to_guest(machine: VirtualMachine, host: Host, rules: GuestRules, end: Deadline) -> SshRunner:
    if rules.network == "static":
        set_address(machine, rules, end)
    address = wait_for_address(machine, rules, end)
    key = _choose_host_key(machine, host, rules, end)
    while True:
        try:
            target = SshTarget(address, _SSH_PORT, "root", host.guest_files.key, key)
            return _connect(machine, host, rules, target, end)
        except WrongHostKey:
            # cloud-init replaces the template's keys after the agent has started.
            before, key = key, _choose_host_key(machine, host, rules, end)
            if key == before:
                raise


def _connect(machine: VirtualMachine, host: Host, rules: GuestRules, target: SshTarget, end: Deadline) -> SshRunner:
    return SshRunner.connect_when_up(
        target,
        name=f"guest on {host.name}",
        via=host.ssh if rules.reach == "node" else None,
        deadline=max(end.left, 5.0),
        on_wait=lambda _cause: require_running(machine),
    )


def _choose_host_key(machine: VirtualMachine, host: Host, rules: GuestRules, end: Deadline) -> str | None:
    """The key that the guest must show; None for a clone that is reached through the node, whose own key is known."""
    if rules.template is None:
        return host.guest_files.host_key
    return None if rules.reach == "node" else read_clone_key(machine, end)


def read_clone_key(machine: VirtualMachine, end: Deadline) -> str:
    """The public host key of a clone, read by its agent through the API: nobody on the guest's network can change it.

    Raises GuestError, with the remedy, if there is no key by `end`.
    """
    where = machine.words

    def read() -> str | None:
        try:
            key = (machine.read_file(KEY_FILE) or "").strip()
        except PveError as error:
            remedy = _CLONE_REMEDY
            if error.status == _FORBIDDEN:
                remedy = 'give the user VM.GuestAgent.FileRead on /vms, or set reach = "node" in the lab file'
            raise GuestError(f"{where}: its host key cannot be read: {error.message}", hint=remedy) from error
        if key.startswith("ssh-ed25519 "):
            return key
        require_running(machine)
        return None

    if found := wait_until(read, deadline=end, every=_LOGIN_POLL_SECONDS):
        return found
    raise GuestError(
        f"{where} is reached over a network on which other machines may answer instead, and its agent does not "
        f"report its host key ({KEY_FILE})",
        hint=_CLONE_REMEDY,
    )
