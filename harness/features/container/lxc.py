"""Containers of LXC on a host that commands reach: configuration, start, commands in one, what it really has, removal.

`ContainersBesideVms` is the hypervisor of a host with containers. The volumes are those that it makes for its VMs.

LXC, because the containers of Proxmox VE are LXC, so both kinds of host are measured with the same program; because it
runs a container from a file without a service of its own; and because Debian has had it in each release.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events
from harness.files import read_script
from harness.guest.booting import LinuxSystem, choose_vcpus
from harness.guest.protocol import Backup, Guest, GuestDisk, Hypervisor
from harness.guest.qemu_process import read_io_limit
from harness.lab.counters import VmThreads
from harness.lab.created import CreationLog, Entry, Processes, RandomName, Removal, fenced
from harness.lab.guard.writable import run_all
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk
from harness.lab.pin import TAG, BlockPin
from harness.lab.transport.base import Completed, Runner, whole
from harness.layout.build import Layouts
from harness.model.attach import InContainer
from harness.model.counters import Transferred
from harness.model.guest import ANY_GUEST, GUEST_MEMORY, GuestOptions
from harness.model.mode import Mode
from harness.model.option import Effective
from harness.model.values import format_list, parse_cpus
from harness.untrusted import count, reading

if TYPE_CHECKING:
    from harness.features.proxmox.client import Client

_CREATE = read_script("harness.features.container", "create_container.sh")
_CHECK = read_script("harness.features.container", "check_lxc.sh")
_READ = read_script("harness.features.container", "read_container.sh")
_IO_STAT = read_script("harness.features.container", "read_io_stat.sh")
_START_SECONDS = 60.0
_DISKS = "/disks"
_COMMON = "/usr/share/lxc/config/common.conf"
"""What every distribution's containers have: the devices, the capabilities and the filter of system calls."""
_CGROUP2 = "cgroup2fs"
_COUNTED = ("dm-", "rbd")
"""Volumes that are a device of their own: control groups count partitions as their disk."""
_NO_LIMIT = "max"
FIRST_ID, IDS = 100_000, 65_536
"""The host's users and groups that an unprivileged container has, from its root on: those of Proxmox VE and Debian."""


class Container(Processes):
    """A container with `mark` in the environment of its processes, in a directory that nobody else knows."""

    kind: Literal["container"] = "container"  # type: ignore[assignment] # a kind of its own
    name: str
    directory: RandomName

    removal: ClassVar[str] = (
        read_script("harness.features.container", "end_container.sh")
        + Processes.removal
        + read_script("harness.features.container", "remove_container.sh")
    )

    @property
    def words(self) -> str:
        return f"the container {self.name}"

    def arguments(self) -> Sequence[str]:
        return [self.mark, self.directory, self.name]

    @property
    def pid_file(self) -> str:
        """The file with the id of its first process."""
        return f"{self.directory}/pid"


def refuse_lxc(host: Host, options: GuestOptions, *, unprivileged: bool = False) -> str | None:
    """Why the host cannot have a container of this size, with the remedy; None if it can. Raises HostError."""
    printed = host.runner.run(["sh", "-c", _CHECK], deadline=30, check=False).stdout
    facts = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    if not facts.get("version") or "common" not in facts:
        return f"LXC is not installed there, which runs containers: {host.facts.install('lxc')}"
    if facts.get("groups") != _CGROUP2:
        return (
            "the host has control groups of version 1, which do not count the I/O of a container: boot it with "
            "systemd.unified_cgroup_hierarchy=1"
        )
    cpus = int(host.facts["cpus"] or 1)
    if (vcpus := options.vcpu_count or 1) > cpus:
        return f"the container needs {vcpus} CPUs, but the host has {cpus}: request fewer vcpus"
    # Without newuidmap, LXC writes the mapping itself.
    if unprivileged and not all(_has_ids(facts[name]) for name in ("subuid", "subgid") if name in facts):
        last = FIRST_ID + IDS - 1
        return (
            f"root may not give its users {FIRST_ID} to {last} to an unprivileged container: usermod --add-subuids "
            f"{FIRST_ID}-{last} --add-subgids {FIRST_ID}-{last} root"
        )
    return None


def _has_ids(ranges: str) -> bool:
    """Whether one of these ranges, each as FIRST:NUMBER, has all ids of an unprivileged container."""
    pairs = (text.split(":") for text in ranges.split())
    return any(int(first) <= FIRST_ID and int(first) + int(number) >= FIRST_ID + IDS for first, number in pairs)


def choose_cpus(options: GuestOptions, wanted: int, cpus: int) -> str:
    """The host's CPUs for a container that needs so many of them: the pinned ones, else the last ones.

    The first ones handle most of the host's interrupts.
    """
    if options.pin_vcpus:
        return format_list({cpu for text in options.pin_vcpus for cpu in parse_cpus(text)})
    return format_list(range(max(cpus - wanted, 0), cpus))


def is_unprivileged(disks: Sequence[GuestDisk]) -> bool:
    """Whether the container of these disks has a root that is an ordinary user of the host."""
    return any(isinstance(disk.attach, InContainer) and disk.attach.unprivileged for disk in disks)


def make_config(made: Container, disks: Sequence[GuestDisk], *, cpus: str, memory: int, programs: Sequence[str]) -> str:
    """The configuration of a container with these disks, CPUs of the host, and bytes of memory (lxc.container.conf(5)).

    `programs` are further directories of the host with programs. Pure.
    """
    lines = [
        f"lxc.include = {_COMMON}",
        # Without lxcfs: its /proc/uptime is not the clock of fio's jobs.
        "lxc.hook.mount =",
        f"lxc.uts.name = {made.name}",
        f"lxc.rootfs.path = dir:{made.directory}/{made.name}/rootfs",
        "lxc.net.0.type = empty",
        f"lxc.environment = {made.mark}",
        # It has nothing to do but to be there: commands come from outside, and their ends are awaited there.
        "lxc.init.cmd = /usr/bin/sleep infinity",
        "lxc.signal.halt = SIGKILL",
        f"lxc.cgroup2.cpuset.cpus = {cpus}",
        f"lxc.cgroup2.memory.max = {memory}",
        "lxc.mount.entry = tmpfs run tmpfs nosuid,nodev,mode=0755 0 0",
        "lxc.mount.entry = tmpfs tmp tmpfs nosuid,nodev 0 0",
        "lxc.mount.entry = /etc/ld.so.cache etc/ld.so.cache none bind,ro,optional,create=file 0 0",
        "lxc.mount.entry = /etc/alternatives etc/alternatives none bind,ro,optional,create=dir 0 0",
    ]
    unprivileged = is_unprivileged(disks)
    if unprivileged:
        # As in LXC's userns.conf, but with the list of devices, which only an ordinary user cannot have.
        lines += [f"lxc.idmap = {kind} 0 {FIRST_ID} {IDS}" for kind in "ug"]
        lines += [
            "lxc.cap.drop =",
            "lxc.tty.dir =",
            "lxc.mount.auto =",
            "lxc.mount.auto = cgroup:mixed proc:mixed sys:rw",
        ]
    lines += [f"lxc.mount.entry = {path} {path[1:]} none bind,ro,create=dir 0 0" for path in map(_escape, programs)]
    for disk in disks:
        pin = disk.source.writable.pin
        path = pin.path if isinstance(pin, BlockPin) else disk.source.path
        if unprivileged:
            # A node of its own, which belongs to the container's root: create_container.sh.
            path = f"{made.directory}/devices/{disk.name}"
        lines.append(f"lxc.mount.entry = {_escape(path)} {_inside(disk.name)[1:]} none bind,create=file 0 0")
        if isinstance(pin, BlockPin):
            lines.append(f"lxc.cgroup2.devices.allow = b {pin.number} rw")
    return "\n".join(lines) + "\n"


def _inside(disk: str) -> str:
    return f"{_DISKS}/{disk}"


def _escape(path: str) -> str:
    """The path as in fstab(5)."""
    for character in "\\ \t":
        path = path.replace(character, f"\\{ord(character):03o}")
    return path


class ContainerRunner:
    """Runs commands in a container, by way of its host. `enter` is the command there that runs the one that follows."""

    def __init__(self, name: str, host: Runner, enter: Sequence[str]) -> None:
        self.name = name
        self._host = host
        self._enter = tuple(enter)

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        """A `Runner`. Both outputs have the limits of the host's runner."""
        return self._host.run([*self._enter, *argv], deadline=deadline, stdin=stdin, check=check)

    def put(self, source: Path, target: str, *, deadline: float) -> None:  # noqa: ARG002 - a Runner
        """No container gets files: its programs are those of its host."""
        raise HostError(f"{self.name}: {source} cannot be copied to {target}")

    def close(self) -> None:
        """There is no connection of its own."""


class RunningContainer:
    """A `Guest`: a container with its disks."""

    windows: ClassVar[bool] = False
    threads: ClassVar[VmThreads | None] = None
    """There is no process of QEMU."""

    def __init__(
        self,
        host: Host,
        disks: Sequence[GuestDisk],
        *,
        words: str,
        runner: Runner,
        pid: str,
        places: Mapping[str, str],
        seconds: float | None,
        by: str = "",
    ) -> None:
        """`words` name it, `pid` is its first process, `places` are the disks in it, `by` says who started it."""
        self._host = host
        self._words = words
        self._pid = pid
        self._disks = {disk.name: disk for disk in disks}
        self._places = places
        self._by = f", started by {by}" if by else ""
        self.fio = host.spec.fio
        self.boot_seconds = seconds
        self.runner = runner
        system = LinuxSystem(self.runner, self.fio)
        self.evidence: Mapping[str, str] = {**system.evidence(), "container": "lxc"}

    def device(self, disk: str) -> str:
        """The path of the disk in the container."""
        return self._places[disk]

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        """The bytes by the container's control group; None for a disk that it does not count on its own."""
        printed = self._run(_IO_STAT, "read what it moved")
        with reading(f"{self.runner.name}: io.stat of its control group", GuestError):
            moved = parse_io_stat(printed)
        numbers = {disk: self._number(disk) if moved is not None else None for disk in disks}
        return {disk: (moved or {}).get(number, Transferred()) if number else None for disk, number in numbers.items()}

    def _number(self, disk: str) -> str | None:
        """The number of the device, if only this disk is on it."""
        pin = self._disks[disk].source.writable.pin
        return pin.number if isinstance(pin, BlockPin) and pin.name.startswith(_COUNTED) else None

    def effective(self, disk: str) -> Effective:
        """What the container really has."""
        printed = self._run(_READ, "read its limits")
        limits = read_io_limit(self._host.runner, self._pid, self._disks[disk].source.path)
        cpus = self.runner.run(["nproc"], deadline=30).stdout
        with reading(f"{self.runner.name}: its control group", GuestError):
            shown = parse_container(printed, self.evidence).merged(limits)
            version = f"{shown.container_version}{self._by}" if shown.container_version else None
            return shown.merged(Effective(container_version=version, guest_cpus=count(int(cpus))))

    def holding(self, disk: str) -> AbstractContextManager[None]:  # noqa: ARG002 - a Guest
        """Nothing to do: it always has its disks."""
        return nullcontext()

    def backup(self, disk: str, target: str) -> Backup:
        """No tool of the host copies a volume while its container runs."""
        raise Unsupported(f"{self.runner.name}: no backup of {disk} to {target}", hint="leave out backup in the mode")

    def post_mortem(self) -> str | None:
        """Whether the container has ended, as text for the end of a message; None if it runs."""
        alive = 'grep -q "^State:[[:space:]]*[^[:space:]XZ]" "/proc/$1/status"'
        done = self._host.runner.run(["sh", "-c", alive, "sh", self._pid], deadline=20, check=False)
        return None if done.status == 0 else f"{self._words} has ended on {self._host.name}"

    def _run(self, script: str, what: str) -> str:
        done = self._host.runner.run(["sh", "-s", "--", self._pid], stdin=script, deadline=30, check=False)
        if done.status != 0:
            raise GuestError(f"{self.runner.name}: cannot {what}: {done.stderr.strip() or 'it has ended'}")
        return done.stdout


def parse_io_stat(printed: str) -> dict[str, Transferred] | None:
    """The bytes of each device by its number, from io.stat of a control group (the kernel's cgroup-v2.rst).

    None if the group does not count them. Raises ValueError or KeyError for other text. Pure.
    """
    first, *lines = printed.splitlines() or [""]
    if first != "counted":
        return None
    moved = {}
    for line in lines:
        number, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        if values:
            moved[number] = Transferred(count(int(values["rbytes"])), count(int(values["wbytes"])))
    return moved


def parse_container(printed: str, evidence: Mapping[str, str]) -> Effective:
    """What the kernel shows of a container, from the output of the script. Raises ValueError for other text. Pure."""
    facts = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    memory = facts.get("memory.max", _NO_LIMIT)
    confined = ["seccomp"] if facts.get("seccomp") == "2" else []
    if (profile := facts.get("profile", "unconfined").rstrip("\0")) != "unconfined":
        confined.append(f"AppArmor {profile.partition(' ')[2] or profile}" if profile.startswith("lxc") else profile)
    return Effective(
        container="lxc",
        container_version=facts.get("version") or None,
        container_cpus=facts.get("cpuset.cpus.effective") or None,
        container_memory=None if memory == _NO_LIMIT else int(memory),
        container_unprivileged=int(facts["root"]) != 0 if "root" in facts else None,
        container_confinement=", ".join(confined) or "none",
        guest_kernel=evidence.get("kernel") or None,
        guest_fio=evidence.get("fio_program") or None,
    )


@contextmanager
def start_container(
    host: Host, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions, *, cpus: int, events: Events
) -> Iterator[RunningContainer]:
    """A container with these disks and so many CPUs. It is ended and removed at the end, also after a failure.

    Raises SafetyError if a disk is no longer the one that was checked, HostError and GuestError.
    """
    token = uuid.uuid4()
    made = Container(
        disks=tuple(dict.fromkeys(serial for disk in disks for serial in disk.source.writable.disks)),
        mark=f"VIRT_OVERHEAD_CONTAINER={token}",
        name=f"{TAG}-{log.run_id}-{str(token)[:8]}",
        directory=f"/run/voh-{token}",
    )
    config = make_config(
        made,
        disks,
        cpus=choose_cpus(options, cpus, int(host.facts["cpus"] or 1)),
        memory=options.memory or GUEST_MEMORY,
        programs=list_program_directories(host.spec.fio),
    )
    with log.making_here(made) as entry:
        nodes = list(_list_nodes(disks)) if is_unprivileged(disks) else []
        create = ["sh", "-c", _CREATE, "sh", made.directory, made.name, made.mark, *nodes]
        devices = [disk.source.writable for disk in disks]
        command = fenced(entry, whole(create, config))
        with events.step("start the container", 2.0) as step:
            done = run_all(devices, command, stdin=config, deadline=_START_SECONDS, check=False)
            seconds = step.seconds
        if done.status != 0:
            raise GuestError(
                f"host {host.name}: the container did not start: {done.stderr.strip()[:400] or 'no reason given'}",
                hint="lxc-checkconfig there shows what its kernel lacks",
            )
        enter = ("lxc-attach", "--lxcpath", made.directory, "--name", made.name, "--")
        yield RunningContainer(
            host,
            disks,
            words=made.words,
            runner=ContainerRunner(f"container on {host.name}", host.runner, enter),
            pid=host.runner.run(["cat", made.pid_file], deadline=30).stdout.strip(),
            places={disk.name: _inside(disk.name) for disk in disks},
            seconds=seconds,
        )


def _list_nodes(disks: Sequence[GuestDisk]) -> Iterator[str]:
    """The user that is root in an unprivileged container; name, major and minor number of the node of each disk.

    Raises Unsupported for a file.
    """
    yield str(FIRST_ID)
    for disk in disks:
        pin = disk.source.writable.pin
        if not isinstance(pin, BlockPin):
            raise Unsupported(
                f"{disk.source.path} is a file, which the root of an unprivileged container may not open",
                hint="leave out unprivileged = true in the mode, or name a storage whose volumes are devices",
            )
        yield from (disk.name, *pin.number.split(":"))


def list_program_directories(fio: str, below: Sequence[str] = ("/usr", "/opt", "/bin", "/sbin")) -> list[str]:
    """The directory of the program fio, if it is in none of the directories that the container has."""
    directory = fio.rpartition("/")[0]
    return [directory] if directory and not any(f"{directory}/".startswith(f"{base}/") for base in below) else []


class ContainersBesideVms:
    """A `Hypervisor`: what `vms` does, and a container where the disks are attached to one."""

    def __init__(self, host: Host, vms: Hypervisor, events: Events) -> None:
        self._host = host
        self._vms = vms
        self._events = events

    def guest(
        self, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions = ANY_GUEST, *, variant: str = ""
    ) -> AbstractContextManager[Guest]:
        """A VM, or a container, with these disks. Raises GuestError or HostError if it does not start."""
        if not any(disk.attach.device == "container" for disk in disks):
            return self._vms.guest(log, disks, options, variant=variant)
        cpus = choose_vcpus(self._host.facts, [disk.attach for disk in disks], options)
        if (client := self._find_client()) is not None:
            from harness.features.container.proxmox import start_on_node  # noqa: PLC0415 - it needs an HTTP client

            return start_on_node(self._host, client, log, disks, options, cpus=cpus, events=self._events)
        return start_container(self._host, log, disks, options, cpus=cpus, events=self._events)

    def remove(self, entry: Entry) -> Removal | None:
        """The thing of the entry, if it is of a VM. Commands on the host remove containers."""
        return self._vms.remove(entry)

    @property
    def poll_seconds(self) -> float:
        """As without containers."""
        return self._vms.poll_seconds

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the host does not support `mode` on `disk`, with the remedy; None if it does."""
        if not mode.in_container:
            return self._vms.unsupported_by_host(mode, disk)
        # Without an attachment, it is about the layout only.
        why = self._vms.unsupported_by_host(replace(mode, attach=None, guest=ANY_GUEST), disk)
        unprivileged = isinstance(mode.attach, InContainer) and mode.attach.unprivileged
        why = why or refuse_lxc(self._host, mode.guest, unprivileged=unprivileged)
        if why or (client := self._find_client()) is None:
            return why
        from harness.features.container.proxmox import refuse_container  # noqa: PLC0415 - it needs an HTTP client

        return refuse_container(client, self._host, mode)

    def _find_client(self) -> Client | None:
        """The API that makes the containers of the host; None if commands on the host do."""
        if self._host.spec.kind != "proxmox":
            return None
        from harness.features.container.proxmox import find_client  # noqa: PLC0415 - it needs an HTTP client

        return find_client(self._host, self._vms)

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> str | None:
        """What the system of a VM lacks. The system of a container is that of its host."""
        return None if mode.in_container else self._vms.unsupported_by_guest_os(log, mode)

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]:
        """As without containers: they use the volumes of the VMs that they are compared with."""
        return self._vms.layouts(log, disks, modes, span=span)
