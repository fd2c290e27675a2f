"""The size and placement of a guest: what lab file and scenario request, and what must be read back. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, Strict, create_model

from harness.model.option import (
    BY_ARGUMENTS,
    POLLING,
    Effective,
    IothreadInfo,
    Option,
    Pve,
    QemuArgument,
    ReadBack,
    Xml,
    declare_rows,
    declared,
)
from harness.model.values import (
    Bytes,
    Count,
    FileValue,
    Flag,
    NumberList,
    PollTime,
    TomlTable,
    from_text,
    names_of,
    parse_cpus,
)
from harness.units import format_size, parse_size

GUEST_MEMORY = 768 << 20
"""The guest's memory in bytes. Below 512 MiB of usable memory, Linux turns off transparent huge pages.

Then the buffers of large I/Os consist of single pages that lie anywhere, and QEMU maps each of them. In the embedded
lab, reads of 256 KiB reached 700 MB/s without huge pages and 1000 MB/s with them, and varied more from slice to slice.
"""
KIB, MIB, GIB = 1024, 1024**2, 1024**3
SMALLEST_MEMORY = 256 * MIB

GuestPreset = Literal["study-1"]
NumaMode = Literal["strict", "preferred", "interleave"]
Firmware = Literal["bios", "uefi"]
Idle = Literal["haltpoll", "poll"]
_MACHINE = re.compile(r"q35|pc|pc-(q35|i440fx)-\d+\.\d+(\.\d+)?(\+pve\d+)?")
_CPU = re.compile(r"[A-Za-z0-9_.+,=;-]+")
INSTALL = "install"
FIO_DIRECTORY = "/var/lib/virt-overhead"
INSTALLED_FIO = f"{FIO_DIRECTORY}/fio/run"
"""Where a guest of an image gets virt-overhead's own fio."""
_FILE = re.compile(r"(/[A-Za-z0-9_.+-]+)+")


def _check_memory(size: int) -> int:
    if size < SMALLEST_MEMORY or size % MIB:
        raise ValueError('allowed: whole MiB from "256 MiB"')
    return size


def _check_page(size: int) -> int:
    if size not in (2 * MIB, GIB):
        raise ValueError('allowed: "2 MiB", "1 GiB"')
    return size


def _check_machine(name: str) -> str:
    if not _MACHINE.fullmatch(name):
        raise ValueError('not a machine type; allowed: "q35", "pc", or one with a version, for example "pc-q35-9.2"')
    return name


def _check_cpu(name: str) -> str:
    if not _CPU.fullmatch(name):
        raise ValueError('not a CPU model; allowed: "host", "max", or a model of QEMU, for example "EPYC-Milan"')
    return name


def _check_file(path: str) -> str:
    if not _FILE.fullmatch(path) or ".." in path.split("/"):
        raise ValueError('not an absolute path of a file on the host; allowed: for example "/opt/qemu/bin/qemu-kvm"')
    return path


def _check_program(path: str) -> str:
    if path != INSTALL and (not _FILE.fullmatch(path) or ".." in path.split("/")):
        raise ValueError('not an absolute path in the guest; allowed: "install", or for example "/opt/fio/bin/fio"')
    return path


HostFile = Annotated[str, Strict(), AfterValidator(_check_file)]
GuestProgram = Annotated[str, Strict(), AfterValidator(_check_program)]
Memory = Annotated[int, Strict(), BeforeValidator(from_text(parse_size, "8 GiB")), Bytes, AfterValidator(_check_memory)]
PageSize = Annotated[int, Strict(), BeforeValidator(from_text(parse_size, "2 MiB")), Bytes, AfterValidator(_check_page)]
Cpus = Annotated[Count, Field(ge=1, le=1024)]
Factor = Annotated[Count, Field(ge=0, le=1_000_000)]


_NOT_PINNED = "not pinned"
_OF_LIBVIRT = "libvirt's"


option = declare_rows(Option["GuestOptions"])
"""An option of a guest with its default and its row."""


_NO_COMMAND_LINE: Pve[GuestOptions] = Pve(
    refused=lambda guest: (
        f'idle = "{guest.idle}": on Proxmox VE, the guest\'s kernel has the command line of its medium: leave out '
        "idle, and set it in a template; a run reads it back"
        if guest.idle
        else None
    )
)


def _refuse_host_file(name: str, what: str) -> Pve[GuestOptions]:
    """A file of the host that Proxmox VE does not let guests have, because it `what`."""

    def refuse(guest: GuestOptions) -> str | None:
        path = getattr(guest, name)
        return path and (
            f'{name} = "{path}": Proxmox VE {what}: leave out {name}, or measure before and after an upgrade of the '
            "node: virt-overhead compare"
        )

    return Pve(refused=refuse)


def _read_topology(number: int) -> Callable[[GuestOptions], int | None]:
    """Sockets, cores or threads of the topology; None without one."""
    return lambda guest: guest.topology[number] if guest.topology else None


@dataclass(frozen=True, slots=True)
class GuestOptions(FileValue):
    """The size and placement of a guest. For an option that is None, virt-overhead or the hypervisor chooses."""

    # Each field has its row of the table of guest options: what must be read back, the needed versions, what Proxmox VE
    # has of it and its documentation follow from it.

    preset: GuestPreset | None = option(
        None,
        docs="the guest of the [study of local disks][local-disks]: 2 vCPUs, 8 GiB. Other keys win over it",
        by_default="none",
    )
    """The origin of the options that are not set: `study-1` is the guest of the study of local disks."""
    vcpus: Cpus | None = option(
        None,
        docs="`<vcpu>`; `cores`",
        values="1 to 1024, at most the host's CPUs",
        by_default="half of the host's CPUs, at most 4",
        shown=(
            ReadBack("qemu_vcpus", expected=lambda guest: guest.vcpu_count),
            ReadBack("guest_cpus", expected=lambda guest: guest.vcpu_count),
        ),
    )
    """The number of vCPUs."""
    sockets: Cpus | None = option(
        None,
        docs="`<topology sockets>`; `sockets`",
        values="1 to 1024",
        by_default="the hypervisor's",
        shown=(ReadBack("qemu_sockets", expected=_read_topology(0)),),
    )
    """The sockets that the guest sees."""
    cores: Cpus | None = option(
        None,
        docs="`<topology cores>`; `cores`",
        values="1 to 1024, of each socket",
        by_default="the hypervisor's",
        shown=(ReadBack("qemu_cores", expected=_read_topology(1)),),
    )
    """Cores of each socket."""
    threads: Cpus | None = option(
        None,
        docs="`<topology threads>`; not offered",
        values="1 to 1024, of each core",
        by_default="the hypervisor's",
        shown=(ReadBack("qemu_threads", expected=_read_topology(2)),),
        pve=Pve(
            refused=lambda guest: (
                f"threads = {guest.topology[2]}: Proxmox VE has no threads of a core: request more cores"
                if guest.topology and guest.topology[2] > 1
                else None
            )
        ),
    )
    """Threads of each core."""
    memory: Memory | None = option(
        None,
        docs="`<memory>`; `memory`. With less than about 600 MiB, Linux does not use huge pages, and large I/Os are "
        "slower",
        values='whole MiB from `"256 MiB"`',
        by_default='`"768 MiB"`',
        shown=(ReadBack("qemu_memory"), ReadBack("guest_memory")),
        pve=Pve("memory", lambda size: int(size) // MIB),
    )
    """In bytes."""
    machine: Annotated[str, Strict(), AfterValidator(_check_machine)] | None = option(
        None,
        docs="`<type machine>`; `machine`, q35 only",
        values='`"q35"`, `"pc"`, `"pc-q35-9.2"`',
        by_default="`q35`; `pc` for disks on `ide`",
        shown=(
            ReadBack(
                "machine",
                Xml("os/type/@machine"),
                lambda guest: guest.machine if guest.machine not in ("q35", "pc") else None,
            ),
        ),
        pve=Pve(
            "machine",
            refused=lambda guest: (
                f'machine = "{guest.machine}": guests on Proxmox VE are q35: request a machine type of q35'
                if guest.machine and "q35" not in guest.machine
                else None
            ),
        ),
    )
    """QEMU's machine type."""
    cpu: Annotated[str, Strict(), AfterValidator(_check_cpu)] | None = option(
        None,
        docs='`<cpu>`; `cpu`, also with PVE\'s options (`"host,flags=+aes"`)',
        values='`"host"`, `"max"`, a model of QEMU',
        by_default="`host` with KVM, else `max`",
        shown=(ReadBack("qemu_cpu", expected=lambda guest: None if guest.cpu is None else parse_cpu_type(guest.cpu)),),
        pve=Pve("cpu"),
    )
    """The CPU model, by QEMU's name; `host` is the host's own, `max` all that the host can do or emulate."""
    pin_vcpus: Annotated[tuple[NumberList, ...], Strict(strict=False)] = option(
        (),
        docs="`<vcpupin>`; `affinity`",
        values='a list of CPUs for all vCPUs (`["2-5"]`), or one for each (`["2", "3"]`)',
        by_default=_NOT_PINNED,
        shown=(ReadBack("host_vcpu_cpus", expected=lambda guest: compress_lists(guest.pin_vcpus) or None),),
        pve=Pve(
            "affinity",
            lambda lists: str(lists[0]),
            root_only=True,
            refused=lambda guest: (
                None
                if {*guest.pin_vcpus, guest.pin_iothreads, guest.pin_emulator}
                in ({None}, {next(iter(guest.pin_vcpus), None)})
                else "Proxmox VE pins all threads of a VM to the same CPUs (affinity): "
                "request the same CPUs with pin_vcpus, pin_iothreads and pin_emulator"
            ),
        ),
    )
    """The host's CPUs for the vCPUs: one list for all, or one for each."""
    pin_iothreads: NumberList | None = option(
        None,
        docs="`<iothreadpin>`; `affinity`",
        values='CPUs of the host, `"4-5"`',
        by_default=_NOT_PINNED,
        shown=(ReadBack("host_iothread_cpus", of_iothreads=True),),
    )
    """The host's CPUs for all iothreads."""
    pin_emulator: NumberList | None = option(
        None,
        docs="`<emulatorpin>`, for QEMU's other threads; `affinity`",
        values='CPUs of the host, `"0-1,8"`',
        by_default=_NOT_PINNED,
        shown=(ReadBack("host_emulator_cpus"),),
    )
    """The host's CPUs for QEMU's other threads."""
    numa_nodes: NumberList | None = option(
        None,
        docs="`<numatune>`; `numa`, `numa0`",
        values='nodes of the host, `"0"`',
        by_default="not bound",
        shown=(ReadBack("qemu_numa_nodes"),),
    )
    """The host's NUMA nodes for the guest's memory."""
    numa_mode: NumaMode | None = option(
        None,
        docs="`<memory mode>`; `policy` (`bind` for `strict`)",
        by_default="`strict`",
        shown=(
            ReadBack(
                "qemu_numa_mode", expected=lambda guest: (guest.numa_mode or "strict") if guest.numa_nodes else None
            ),
        ),
    )
    """Whether the memory must be on these nodes. None is `strict`."""
    hugepages: PageSize | None = option(
        None,
        docs="`<hugepages>`; `hugepages`, on one node",
        values='`"2 MiB"`, `"1 GiB"`',
        by_default="not used",
        shown=(ReadBack("host_page_size"),),
        pve=Pve(
            "hugepages",
            lambda size: str(size // MIB),
            root_only=True,
            refused=lambda guest: (
                "Proxmox VE has huge pages on one NUMA node only: request one node with numa_nodes"
                if guest.hugepages and len(parse_cpus(guest.numa_nodes or "0")) > 1
                else None
            ),
        ),
    )
    """The size in bytes of the host's huge pages that back the memory."""
    poll_max_ns: PollTime | None = option(
        None,
        docs="`<poll max>` of every iothread whose mode has no `attach.poll_max_ns`, libvirt 9.4.0; `args`",
        values="nanoseconds; 0: no polling",
        by_default="QEMU's: 32768",
        shown=(ReadBack("qemu_poll_max_ns", IothreadInfo("poll-max-ns"), of_iothreads=True),),
        since=POLLING,
        pve=BY_ARGUMENTS,
    )
    """The longest time in nanoseconds for which an iothread polls before it sleeps, unless the attachment requests
    another. 0 turns polling off."""
    poll_grow: Factor | None = option(
        None,
        docs="`<poll grow>`; `args`",
        values="factor; 0: QEMU's own",
        by_default="QEMU's",
        shown=(ReadBack("qemu_poll_grow", IothreadInfo("poll-grow"), of_iothreads=True),),
        since=POLLING,
        pve=BY_ARGUMENTS,
    )
    """The factor by which that time grows; 0 is QEMU's default."""
    poll_shrink: Factor | None = option(
        None,
        docs="`<poll shrink>`; `args`",
        values="divisor; 0: QEMU's own",
        by_default="QEMU's",
        shown=(ReadBack("qemu_poll_shrink", IothreadInfo("poll-shrink"), of_iothreads=True),),
        since=POLLING,
        pve=BY_ARGUMENTS,
    )
    """The divisor by which it shrinks; 0 is QEMU's default."""
    idle: Idle | None = option(
        None,
        docs="how its CPUs wait for an I/O: `haltpoll` polls for a moment before it halts (`cpuidle_haltpoll.force=1` "
        "of its kernel), `poll` never halts (`idle=poll`). See [depth 1](waiting.md); not offered",
        by_default="its kernel's",
        shown=(ReadBack("guest_idle"),),
        pve=_NO_COMMAND_LINE,
    )
    """How the guest's CPUs wait. None is what its kernel does: without a driver, it halts."""
    haltpoll_ns: PollTime | None = option(
        None,
        docs='the longest time for which `idle = "haltpoll"` polls, `haltpoll.guest_halt_poll_ns`; not offered',
        values="nanoseconds",
        by_default="its kernel's: 200000",
        shown=(ReadBack("guest_haltpoll_ns"),),
        pve=_NO_COMMAND_LINE,
    )
    """The longest time in nanoseconds for which haltpoll polls before the CPU halts."""
    hide_kvm: Flag | None = option(
        None,
        docs="`<kvm><hidden>`: the guest's CPUID does not show KVM, so its kernel uses neither KVM's clock nor its "
        "other paravirtual functions; `hidden=1` of `cpu`",
        by_default="`false`",
        shown=(ReadBack("guest_kvm_clock", expected=lambda guest: False if guest.hide_kvm else None),),
        pve=Pve(),
    )
    """Whether the guest's CPUID hides KVM."""
    emulator: HostFile | None = option(
        None,
        docs="`<emulator>`; not offered. AppArmor or SELinux must allow libvirt to run it",
        values='absolute path on the host, `"/opt/qemu/bin/qemu-system-x86_64"`',
        by_default=_OF_LIBVIRT,
        shown=(ReadBack("qemu_emulator", QemuArgument("")),),
        pve=_refuse_host_file("emulator", "starts its own QEMU"),
    )
    """The program of QEMU on the host. None is that of libvirt."""
    kernel: HostFile | None = option(
        None,
        docs="`<kernel>`; not offered. The storage drivers must be built in, or in `initramfs`",
        values="absolute path on the host",
        by_default="that of the guest image",
        shown=(ReadBack("qemu_kernel", QemuArgument("-kernel")),),
        pve=_refuse_host_file("kernel", "boots the kernel of the guest's own image"),
    )
    """The guest's kernel on the host, with the storage drivers built in or in `initramfs`. None is that of the guest
    image."""
    initramfs: HostFile | None = option(
        None,
        docs="`<initrd>`; not offered. It must answer like the [guest image](images.md)",
        values="absolute path on the host",
        by_default="that of the guest image",
        shown=(ReadBack("qemu_initramfs", QemuArgument("-initrd")),),
        pve=_refuse_host_file("initramfs", "boots the kernel of the guest's own image"),
    )
    """The guest's initramfs on the host. None is that of the guest image."""
    image: HostFile | None = option(
        None,
        docs="a disk image with cloud-init that [guests boot from](own-image.md), as a layer of its own `<disk>`; not "
        "offered: use `template`",
        values='absolute path on the host, `"/var/lib/libvirt/images/debian-13.qcow2"`',
        by_default="no image",
        shown=(ReadBack("qemu_image"),),
        pve=Pve(
            refused=lambda guest: (
                guest.image
                and (
                    f'image = "{guest.image}": guests on Proxmox VE are clones of a template: leave out image, make a '
                    "template of it (docs/own-image.md), and set template in the lab file"
                )
            )
        ),
    )
    """The disk image on the host, with cloud-init, that the guest boots from a copy-on-write layer. None is the guest
    image."""
    firmware: Firmware | None = option(
        None,
        docs="`<os firmware>` of a guest from `image`; not offered",
        by_default="`bios`",
        shown=(ReadBack("qemu_firmware", expected=lambda guest: (guest.firmware or "bios") if guest.image else None),),
    )
    """What boots `image`. None is BIOS."""
    fio: GuestProgram | None = option(
        None,
        docs="the program that runs in a guest from `image` (a path also with `initramfs`). `install` copies "
        "virt-overhead's own; not offered",
        values='`"install"`, absolute path in the guest',
        by_default="the fio that the guest finds",
        shown=(ReadBack("guest_fio", expected=lambda guest: INSTALLED_FIO if guest.fio == INSTALL else guest.fio),),
        pve=Pve(
            refused=lambda guest: (
                guest.fio and f'fio = "{guest.fio}": on Proxmox VE, install fio in the template: leave out fio'
            )
        ),
    )
    """The program fio in the guest. None is the one that the guest finds; `install` is virt-overhead's own, which is
    copied into the layer of an image."""

    @property
    def requested(self) -> tuple[str, ...]:
        """The names of the options that are set."""
        return tuple(name for name in names_of(self) if getattr(self, name) not in (None, ()))

    @property
    def topology(self) -> tuple[int, int, int] | None:
        """Sockets, cores of a socket and threads of a core; None if none of them is requested."""
        if self.sockets is None and self.cores is None and self.threads is None:
            return None
        return self.sockets or 1, self.cores or 1, self.threads or 1

    @property
    def vcpu_count(self) -> int | None:
        """The requested number of vCPUs; None if nothing determines it."""
        if (topology := self.topology) is not None:
            return topology[0] * topology[1] * topology[2]
        return self.vcpus or (len(self.pin_vcpus) if len(self.pin_vcpus) > 1 else None)

    @property
    def files(self) -> dict[str, str]:
        """The requested files of the host, by the names of the options."""
        files = {"emulator": self.emulator, "kernel": self.kernel, "initramfs": self.initramfs, "image": self.image}
        return {name: path for name, path in files.items() if path is not None}

    @property
    def own_system(self) -> tuple[str | None, ...]:
        """What decides which system of the user's own runs in the guest; empty if it is virt-overhead's."""
        chosen = tuple(getattr(self, name) for name in (*_KERNEL, *_IMAGE))
        return chosen if any(chosen) else ()

    @property
    def idle_words(self) -> tuple[str, ...]:
        """What the command line of its kernel has for the way in which its CPUs wait."""
        if self.idle == "poll":
            return ("idle=poll",)
        times = () if self.haltpoll_ns is None else (f"haltpoll.guest_halt_poll_ns={self.haltpoll_ns}",)
        return ("cpuidle_haltpoll.force=1", *times) if self.idle == "haltpoll" else ()

    @property
    def polls(self) -> dict[str, int]:
        """The requested polling options by the name of the attribute in libvirt's XML."""
        polls = {"max": self.poll_max_ns, "grow": self.poll_grow, "shrink": self.poll_shrink}
        return {name: value for name, value in polls.items() if value is not None}

    def over(self, other: GuestOptions) -> GuestOptions:
        """These options, and those of `other` where these have none.

        vCPUs and topology are one option: they come from the same one. So are an image, and a kernel with its
        initramfs. Presets are replaced by their options.
        """
        return self._with_preset()._fill(other._with_preset())

    def expected(self, *, iothreads: int) -> Effective:
        """The settings that must be read back. `iothreads` is the number of threads that serve the disk."""
        expected = (pair for name, row in GUEST_OPTIONS.items() for pair in row.expect(name, self))
        of_iothreads = {shown.setting for row in GUEST_OPTIONS.values() for shown in row.shown if shown.of_iothreads}
        return Effective(**{name: value for name, value in expected if iothreads or name not in of_iothreads})

    def _with_preset(self) -> GuestOptions:
        return self if self.preset is None else self._fill(PRESETS[self.preset])

    def _fill(self, base: GuestOptions) -> GuestOptions:
        kept = {"preset", *self.requested}
        for options, instead in _EITHER:
            kept |= set(instead) if any(getattr(self, name) is not None for name in options) else set()
        return replace(self, **{name: getattr(base, name) for name in names_of(self) if name not in kept})


_SIZE = ("vcpus", "sockets", "cores", "threads")
_KERNEL, _IMAGE = ("kernel", "initramfs"), ("image", "firmware", "fio")
_EITHER = ((_SIZE, _SIZE), (_KERNEL, _IMAGE), (("image",), (*_KERNEL, *_IMAGE)))
"""Options, and those that are not taken from elsewhere if one of them is set."""
GUEST_OPTIONS: Mapping[str, Option[GuestOptions]] = declared(GuestOptions)
"""The table of guest options: the row of each, by name."""
ANY_GUEST = GuestOptions()
"""Nothing is requested."""
PRESETS: Mapping[GuestPreset, GuestOptions] = {
    # harness/features/published/figures.toml has the source. The study does not give the topology.
    "study-1": GuestOptions(vcpus=2, memory=8 * GIB),
}


def parse_cpu_type(cpu: str) -> str:
    """The model in Proxmox VE's options of a CPU: `host`, `host,flags=+aes`, `cputype=host`."""
    options = dict(part.partition("=")[::2] for part in cpu.split(","))
    return options.get("cputype", cpu.partition(",")[0])


def compress_lists(lists: Sequence[str]) -> tuple[str, ...]:
    """One list if all are the same, else all of them."""
    return tuple(dict.fromkeys(lists)) if len(set(lists)) == 1 else tuple(lists)


def find_guest_problems(options: GuestOptions) -> Iterator[str]:
    """The conflicts among the options, each as `KEY = VALUE: conflicts with ...; allowed: ...`."""
    guest = options.over(ANY_GUEST)
    count, topology, memory = guest.vcpu_count, guest.topology, guest.memory or GUEST_MEMORY
    if topology is not None and guest.vcpus is not None and guest.vcpus != count:
        shape = " x ".join(map(str, topology))
        yield (
            f"vcpus = {guest.vcpus}: conflicts with sockets, cores and threads, which are {shape} = {count} vCPUs; "
            "allowed: the same number, or only one of the two"
        )
    if len(guest.pin_vcpus) > 1 and len(guest.pin_vcpus) != count:
        yield (
            f"pin_vcpus with {len(guest.pin_vcpus)} lists: conflicts with {count} vCPUs; allowed: one list for all "
            "vCPUs, or one for each"
        )
    if guest.numa_mode is not None and guest.numa_nodes is None:
        yield f'numa_mode = "{guest.numa_mode}": conflicts with numa_nodes left out; allowed: with numa_nodes'
    if guest.hugepages is not None and memory % guest.hugepages:
        yield (
            f'hugepages = "{format_size(guest.hugepages)}": conflicts with memory = "{format_size(memory)}"'
            f"{'' if guest.memory else ' (the default)'}, which is not a multiple of it; allowed: memory in whole pages"
        )
    yield from _find_idle_problems(guest)
    yield from _find_image_problems(guest)


def _find_idle_problems(guest: GuestOptions) -> Iterator[str]:
    """haltpoll needs a guest that sees KVM, and a command line that is not the image's own."""
    if guest.haltpoll_ns is not None and guest.idle != "haltpoll":
        yield f'haltpoll_ns = {guest.haltpoll_ns}: conflicts with another idle; allowed: with idle = "haltpoll"'
    if guest.idle == "haltpoll" and guest.hide_kvm:
        yield 'idle = "haltpoll": conflicts with hide_kvm = true: Linux has it only where it sees KVM; allowed: one'
    if guest.idle is not None and guest.image is not None:
        yield (
            f'idle = "{guest.idle}": conflicts with image = "{guest.image}", which has its own command line; allowed: '
            "neither, and this setting in the image: a run reads it back"
        )


def _find_image_problems(guest: GuestOptions) -> Iterator[str]:
    if guest.image is None:
        own_system = guest.initramfs is not None and guest.fio != INSTALL
        for name, value in (("firmware", guest.firmware), ("fio", None if own_system else guest.fio)):
            if value is not None:
                yield f'{name} = "{value}": conflicts with image left out; allowed: with image'
        return
    for name, path in (("kernel", guest.kernel), ("initramfs", guest.initramfs)):
        if path is not None:
            yield f'{name} = "{path}": conflicts with image = "{guest.image}"; allowed: one of the two'


def describe_guest(effective: Effective) -> str:
    """The size and placement that were read back, in one line; empty if nothing was."""
    parts = [_describe_vcpus(effective)]
    parts.append(format_size(effective.qemu_memory) if effective.qemu_memory else "")
    parts.append(f"in pages of {format_size(effective.host_page_size)}" if effective.host_page_size else "")
    nodes, mode = effective.qemu_numa_nodes, effective.qemu_numa_mode
    parts.append(f"on NUMA nodes {nodes} ({mode})" if nodes else "")
    parts += [text for text in (effective.machine, effective.qemu_cpu and f"CPU model {effective.qemu_cpu}") if text]
    named = {"iothreads": effective.host_iothread_cpus, "QEMU's other threads": effective.host_emulator_cpus}
    parts += [f"{what} on host CPUs {cpus}" for what, cpus in named.items() if cpus]
    if effective.guest_idle is not None:
        time = f" for up to {effective.guest_haltpoll_ns} ns" if effective.guest_idle == "haltpoll" else ""
        parts.append(f"idle: {effective.guest_idle}{time}")
    if effective.qemu_poll_max_ns is not None:
        parts.append(f"polling up to {effective.qemu_poll_max_ns} ns" if effective.qemu_poll_max_ns else "no polling")
    return ", ".join(part for part in parts if part)


def _describe_vcpus(effective: Effective) -> str:
    if effective.qemu_vcpus is None:
        return ""
    shape = (effective.qemu_sockets, effective.qemu_cores, effective.qemu_threads)
    topology = f" ({' x '.join(map(str, shape))} sockets, cores, threads)" if None not in shape else ""
    cpus = f" on host CPUs {' / '.join(effective.host_vcpu_cpus)}" if effective.host_vcpu_cpus else ""
    return f"{effective.qemu_vcpus} vCPU{'s' if effective.qemu_vcpus > 1 else ''}{topology}{cpus}"


_HINTS = get_type_hints(GuestOptions, include_extras=True)
OPTION_TYPES: dict[str, Any] = {name: _HINTS[name] for name in names_of(ANY_GUEST)}
"""The type of each option, by its key."""
_WITH_DEFAULTS: dict[str, Any] = {name: (hint, getattr(ANY_GUEST, name)) for name, hint in OPTION_TYPES.items()}
OPTIONS_TABLE = create_model("GuestOptionsTable", __base__=TomlTable, **_WITH_DEFAULTS)
"""A table with these keys, for a table that has others as well."""
