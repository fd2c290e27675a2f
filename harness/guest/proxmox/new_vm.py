"""A new VM on the node with an id and an address that no other VM has, created or cloned, and the login to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from harness.errors import GuestError, HarnessError, HostError, LabUnavailable, SafetyError
from harness.guest.booting import logging_in
from harness.guest.proxmox import CreatedVm, free_ids, list_owners, marks, read_uuid
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.machine import VirtualMachine, exists, require_all
from harness.guest.proxmox.removal import remove_vm
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.hosts import Host
from harness.lab.inventory import GuestRules
from harness.lab.transport.base import Runner
from harness.lab.transport.handshake import WrongHostKey
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.signals import Deadline, wait_until
from harness.untrusted import reading

_HOLDS_VOLUMES = frozenset({"images", "rootdir"})


@reading("Proxmox VE's answer about its storages", SafetyError)
def list_used_ids(client: Client) -> set[int]:
    """Ids of VMs and containers of the cluster, and of the owners of volumes on every active storage of the node.

    A volume remains if its storage was not available when its VM was removed. Raises SafetyError if the login may not
    see all volumes of a storage.
    """
    taken = {int(vm["vmid"]) for vm in client.get("cluster/resources", {"type": "vm"})}
    for storage in client.get(f"{client.node}/storage"):
        if storage.get("active") and _HOLDS_VOLUMES & set(str(storage.get("content", "")).split(",")):
            taken |= list_owners(_list_volumes(client, str(storage["storage"])))
    return taken


def _list_volumes(client: Client, storage: str) -> list[dict[str, Any]]:
    client.require_volumes_visible(storage)
    try:
        volumes: list[dict[str, Any]] = client.get(f"{client.node}/storage/{storage}/content")
    except PveError as error:
        raise SafetyError(
            f"host {client.host}: the volumes on storage {storage} cannot be listed, so their VM ids are unknown: "
            f"{error.reason}",
            hint=f"see `pvesm list {storage}` on the node; if it is not needed there: pvesm set {storage} --disable 1",
        ) from error
    return volumes


class Together:
    """The VMs of a run on one node. `rules` are those of the lab file."""

    def __init__(self, rules: GuestRules) -> None:
        self._rules = rules
        self._of: dict[int, GuestRules] = {}
        self._guests: set[int] = set()

    def of(self, vmid: int) -> GuestRules:
        """The rules of this VM, with the address that only this one has."""
        return self._of.get(vmid, self._rules)

    @property
    def following(self) -> GuestRules:
        """The rules for the next VM: with the first address that no VM of the run has."""
        taken = {rules.address for rules in self._of.values()}
        return replace(
            self._rules, address=next((address for address in self._rules.addresses if address not in taken), None)
        )

    @contextmanager
    def having(self, vmid: int, rules: GuestRules) -> Iterator[None]:
        """This VM exists during the block and has these rules, so no other one gets its address."""
        self._of[vmid] = rules
        try:
            yield
        finally:
            del self._of[vmid]

    def is_guest(self, vmid: int) -> bool:
        return vmid in self._guests

    @contextmanager
    def as_guest(self, vmid: int) -> Iterator[None]:
        """This VM is a guest during the block, so another guest gets another VM."""
        self._guests.add(vmid)
        try:
            yield
        finally:
            self._guests.discard(vmid)


def refuse_number(number: int, client: Client, rules: GuestRules) -> str | None:
    """Why so many guests cannot exist at the same time: ids or addresses are missing. With the remedy; else None.

    Raises SafetyError as `list_used_ids`.
    """
    first, last = rules.vmids
    key = f"host.{client.host}.guest"
    if (free := len(list(free_ids(rules.vmids, list_used_ids(client))))) < number:
        return (
            f"{number} guests need {number} VM ids, but only {free} from {first} to {last} are free: widen "
            f"{key}.vmids, or remove what killed runs left: virt-overhead reap --host {client.host}"
        )
    if rules.address and (given := len(rules.addresses)) < number:
        return (
            f"{number} guests need {number} addresses, but {key}.address has {given}: list {number} free ones there, "
            'or use DHCP with network = "agent"'
        )
    return None


CREATE_SECONDS = 180.0
CLONE_SECONDS = 900.0


@contextmanager
def create_vm(
    client: Client, log: CreationLog, rules: GuestRules, settings: Mapping[str, object]
) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    """A VM with these settings and a free id of the lab's range. It is removed at the end.

    If another client takes the id first, the next one is tried.
    """

    def make(machine: VirtualMachine, vm: CreatedVm, _entry: Entry) -> None:
        end = client.task(
            "post",
            f"{client.node}/qemu",
            {"vmid": vm.vmid, **marks(log.run_id, vm.token), "smbios1": f"uuid={vm.uuid}", **settings},
            expected=Expected("qmcreate", str(vm.vmid)),
            is_done=lambda: exists(client, vm.vmid),
            deadline=CREATE_SECONDS,
        )
        require_all(machine, end, "create")

    with _with_free_id(client, log, rules, make) as new:
        yield new


@contextmanager
def clone_vm(client: Client, log: CreationLog, rules: GuestRules) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    """A clone of the lab's template, with the run's name and notes from the beginning. It is removed at the end.

    PVE makes a linked clone of a template, and a full copy of any other VM. Its volumes are not in the log yet.
    """
    template = VirtualMachine(client, int(rules.template or 0))

    def make(machine: VirtualMachine, vm: CreatedVm, entry: Entry) -> None:
        known = marks(log.run_id, vm.token)
        end = client.task(
            "post",
            f"{template.path}/clone",
            {"newid": vm.vmid, "name": known["name"], "description": known["description"]},
            expected=Expected("qmclone", str(template.vmid)),
            is_done=lambda: exists(client, vm.vmid),
            deadline=CLONE_SECONDS,
        )
        require_all(machine, end, "clone")
        log.amend(entry, vm.model_copy(update={"uuid": read_uuid(machine.config())}))

    with _with_free_id(client, log, rules, make, clone=True) as new:
        yield new


@contextmanager
def _with_free_id(
    client: Client,
    log: CreationLog,
    rules: GuestRules,
    make: Callable[[VirtualMachine, CreatedVm, Entry], None],
    *,
    clone: bool = False,
) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    for vmid in free_ids(rules.vmids, list_used_ids(client)):
        if not _is_free(client, vmid):
            continue
        vm = CreatedVm.planned(client.spec.node, vmid, log.run_id, clone=clone)
        taken: list[int] = []
        with log.making(vm, partial(_removed, client, log, vm, taken)) as entry:
            machine = VirtualMachine(client, vmid)
            try:
                make(machine, vm, entry)
            except PveError as error:
                if "already exists" not in error.reason:
                    raise
                taken.append(vmid)
            else:
                yield machine, vm
                return
    first, last = rules.vmids
    raise LabUnavailable(
        f"host {client.host}: no VM id from {first} to {last} is free",
        hint=f"virt-overhead reap --host {client.host}, or widen host.{client.host}.guest.vmids",
    )


def _removed(client: Client, log: CreationLog, vm: CreatedVm, taken: list[int]) -> Removal:
    return Removal("absent") if taken else remove_vm(client, log.runner, vm)


def _is_free(client: Client, vmid: int) -> bool:
    """Whether the id is free in the cluster. This call also covers VMs that the login may not see."""
    try:
        client.get("cluster/nextid", {"vmid": vmid})
    except PveError as error:
        if "already exists" in error.reason:
            return False
        raise
    return True


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


_POLL_SECONDS = 1.0


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

    if address := wait_until(reported, deadline=end, every=_POLL_SECONDS):
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

    if not wait_until(is_set, deadline=end, every=_POLL_SECONDS):
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
            return _logged_in(machine, host, rules, end)
    except Ended as error:
        raise explained(error, machine, host.runner) from error


def _logged_in(machine: VirtualMachine, host: Host, rules: GuestRules, end: Deadline) -> SshRunner:
    if rules.network == "static":
        set_address(machine, rules, end)
    address = wait_for_address(machine, rules, end)
    key = _host_key(machine, host, rules, end)
    while True:
        try:
            target = SshTarget(address, _SSH_PORT, "root", host.guest_files.key, key)
            return _connect(machine, host, rules, target, end)
        except WrongHostKey:
            # cloud-init replaces the template's keys after the agent has started.
            before, key = key, _host_key(machine, host, rules, end)
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


def _host_key(machine: VirtualMachine, host: Host, rules: GuestRules, end: Deadline) -> str | None:
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

    if found := wait_until(read, deadline=end, every=_POLL_SECONDS):
        return found
    raise GuestError(
        f"{where} is reached over a network on which other machines may answer instead, and its agent does not "
        f"report its host key ({KEY_FILE})",
        hint=_CLONE_REMEDY,
    )
