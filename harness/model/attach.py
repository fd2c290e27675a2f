"""How a guest gets a disk, in QEMU's terms: the options, and what must be read back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product, starmap
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Discriminator, Field, Strict, Tag

from harness.config.problems import matching
from harness.model.option import (
    BUSES,
    BY_ARGUMENTS,
    NOTHING,
    POLLING,
    SCSI_BUSES,
    BlockInfo,
    BlockNode,
    Bus,
    Buses,
    Conflict,
    Effective,
    OnController,
    Option,
    Property,
    Pve,
    QemuOverride,
    ReadBack,
    Since,
    VirtioFeature,
    Xml,
    declare_rows,
    declared,
    on_virtio,
)
from harness.model.values import (
    NO_LIMIT,
    Count,
    FileValue,
    Flag,
    Limited,
    LimitKind,
    LimitWay,
    PollTime,
    Rate,
    RateLimit,
    Size,
    format_limits,
    power_of_two,
)
from harness.units import format_size

Cache = Literal["none", "directsync", "writeback", "writethrough", "unsafe"]
Aio = Literal["native", "io_uring", "threads"]
Controller = Literal["single", "shared"]
Discard = Literal["ignore", "unmap"]
DetectZeroes = Literal["off", "on", "unmap"]
Server = Literal["qemu", "storage-daemon", "ublk", "nvme-io_uring", "vhost-vdpa"]

KIB, MIB = 1024, 1024**2

# QEMU accepts up to 2 MiB for both (util/block-helpers.c). A guest's kernel accepts logical blocks up to a page.
LogicalBlock = Annotated[Size, AfterValidator(power_of_two(512, 4 * KIB))]
PhysicalBlock = Annotated[Size, AfterValidator(power_of_two(512, 2 * MIB))]
# A virtio device has at most 1024 virtqueues, and virtio-scsi reserves two. Each has room for 4 to 1024 requests.
Queues = Annotated[Count, Field(ge=1, le=1022)]
QueueSize = Annotated[Count, AfterValidator(power_of_two(4, 1024, sizes=False))]


def _check_read_ahead(size: int) -> int:
    if not 0 <= size <= 16 * KIB or size % 4:
        raise ValueError(f"allowed: multiples of 4 up to {16 * KIB}")
    return size


# Linux reads ahead in whole pages. 0 turns it off.
ReadAhead = Annotated[int, Strict(), AfterValidator(_check_read_ahead)]
GroupName = Annotated[str, matching("[a-z][a-z0-9-]{0,30}", "a lower case letter, then up to 30 with digits and `-`")]
Iops = Annotated[Count, Field(ge=1, le=1_000_000_000)]


class CacheFlags(NamedTuple):
    """The meaning of a cache mode in QEMU. Source: QEMU's manual, table of the block device option `cache`."""

    direct: bool
    no_flush: bool
    write_cache: bool


CACHES: Mapping[Cache, CacheFlags] = {
    "none": CacheFlags(direct=True, no_flush=False, write_cache=True),
    "directsync": CacheFlags(direct=True, no_flush=False, write_cache=False),
    "writeback": CacheFlags(direct=False, no_flush=False, write_cache=True),
    "writethrough": CacheFlags(direct=False, no_flush=False, write_cache=False),
    "unsafe": CacheFlags(direct=False, no_flush=True, write_cache=True),
}


VHOST_USER = "vhost-user-blk-pci"
"""QEMU's device for a disk that another process serves."""
VIRTIO: tuple[Bus, ...] = ("virtio-blk", "virtio-scsi")
ONLY_VIRTIO = Buses(VIRTIO, "which is not a virtio bus", "bus virtio-blk or virtio-scsi")
MAIN_THREAD = "because QEMU's main thread serves this bus"
LUN = "which passes the guest's SCSI commands to the disk"
_INSTEAD = "measure server qemu or storage-daemon instead"
_SERVER_SINCE: Mapping[Server, Since] = {
    "qemu": Since(),
    # The storage daemon of QEMU 7.0 can become a daemon (`--daemonize`).
    "storage-daemon": Since("7.1.0", "7.0.0"),
    # libvirt's NEWS of 9.8.0; QEMU's block-drivers manual: libblkio since 7.2, passing descriptors to it since 8.1.
    "ublk": Since(
        lacking="no release of QEMU serves a disk by ublk, whose kernel part is in Linux 6.0, and virt-overhead starts "
        f"no other server: {_INSTEAD}"
    ),
    "nvme-io_uring": Since(
        qemu="7.2.0",
        lacking="no release of libvirt can request it, and it needs a QEMU with libblkio (Fedora: qemu-block-blkio): "
        f"{_INSTEAD}",
    ),
    "vhost-vdpa": Since(
        "9.8.0",
        "8.1.0",
        lacking="it needs a device /dev/vhost-vdpa-N, which virt-overhead does not create, and a QEMU with libblkio "
        f"(Fedora: qemu-block-blkio): {_INSTEAD}",
    ),
}


option = declare_rows(Option["Attach"])
"""An option of an attachment with its default and its row."""


def _declare_burst(limited: Limited) -> Any:
    """The option of the bursts of a limit. They are above it."""
    limit = limited.option

    def is_below(attach: Attach) -> bool:
        most, usual = getattr(attach, f"{limit}_burst"), getattr(attach, limit)
        return most is not None and (usual is None or most < usual)

    allowed = f"{limit}, and {limit}_burst that is not smaller"
    return option(
        None,
        docs=f"`<iotune>`: `{limited.in_libvirt}_max`; `{'-'.join(limited)}-max`",
        values=f"as `{limit}`, and not less",
        by_default="no bursts",
        conflicts=(Conflict(limit, is_below, "because a burst is for a while above the limit", allowed),),
        pve=Pve(),
    )


def _declare_limit(limited: Limited) -> Any:
    """The option of a limit of reads or of writes. It is read back with the limit of both together."""
    name = limited.option
    together = limited._replace(way="total").option
    both: Conflict[Attach] = Conflict(
        together,
        lambda attach: getattr(attach, name) is not None and getattr(attach, together) is not None,
        "because QEMU limits reads and writes either together or separately",
        f"{together}, or read_{together} and write_{together}",
    )
    return option(
        None,
        docs=f"`<iotune>`: `{limited.in_libvirt}`; `{'-'.join(limited)}`",
        values=f"as `{together}`, of {limited.way}s only",
        by_default="no limit",
        conflicts=(both,),
        served=False,
        of_lun=False,
        pve=Pve(),
    )


def _expect_write_cache(attach: Attach) -> str | None:
    """A LUN shows the cache of the host's disk. A read-only SCSI disk reports no cache."""
    if attach.device == "lun" or attach.read_only:
        return None
    return "write back" if CACHES[attach.cache].write_cache else "write through"


def _name_qemu_device(attach: Attach) -> str:
    if attach.device == "lun":
        return "scsi-block"
    return BUSES[attach.bus].qemu_device if attach.in_qemu else VHOST_USER


def _find_mapping_versions(attach: Attach) -> Since:
    """The versions that spread the queues over several iothreads."""
    libvirt, qemu = ("11.2.0", "10.0.0") if attach.bus == "virtio-scsi" else ("10.0.0", "9.0.0")
    return Since(libvirt, qemu, f'iothread_vq_mapping with bus = "{attach.bus}"')


def _refuse_shared_queues(attach: Attach) -> str | None:
    """The options that a shared controller of Proxmox VE lacks. It ignores iothreads, and drives share its queues."""
    of_queues = ("iothread", "iothread_vq_mapping", "queues", "queue_size", "packed", "event_idx")
    used = [name for name in of_queues if name in attach.used]
    if attach.controller == "single" or not used:
        return None
    return f'{", ".join(used)} with controller = "shared"'


@dataclass(frozen=True, slots=True)
class Attach(FileValue):
    """A disk that QEMU serves. Proxmox VE calls the default VirtIO SCSI single."""

    # Each field has its row of the option table: request, read-back, expectation, conflicts, needed versions and
    # documentation follow from it. Source of the versions: libvirt's NEWS and "Domain XML format", QEMU's change log.

    bus: Bus = option(
        "virtio-scsi",
        docs="`<target bus>`, for [SCSI controllers](#scsi-controllers) `<controller model>`; `virtio-blk-pci`, "
        "`scsi-hd`, `ide-hd`, `nvme`",
        shown=(
            ReadBack("bus", Xml("target/@bus"), lambda attach: BUSES[attach.bus].hypervisor),
            ReadBack("guest_driver", expected=lambda attach: BUSES[attach.bus].guest_driver),
            ReadBack("guest_controller_driver", expected=lambda attach: BUSES[attach.bus].guest_controller_driver),
            ReadBack("guest_windows_driver", expected=lambda attach: BUSES[attach.bus].windows_driver),
        ),
        since=lambda attach: Since("11.5.0", what='bus = "nvme"') if attach.bus == "nvme" else None,
        conflicts=(
            Conflict(
                "server",
                lambda attach: attach.server == "storage-daemon" and attach.bus != "virtio-blk",
                "which serves disks by vhost-user-blk",
                "bus virtio-blk",
            ),
            Conflict(
                "device", lambda attach: attach.device == "lun" and attach.bus != "virtio-scsi", LUN, "bus virtio-scsi"
            ),
        ),
        pve=Pve(),
    )
    """The bus of the guest that the disk is on."""
    cache: Cache = option(
        "none",
        docs="`<driver cache>`; `cache.direct`, `cache.no-flush`, `write-cache`",
        xml=Xml("driver/@cache"),
        shown=(
            # libvirt does not know the options of another process. Its own arguments show them.
            ReadBack("cache", Xml("driver/@cache"), lambda attach: attach.cache if attach.in_qemu else None),
            ReadBack("qemu_cache_direct", BlockInfo(("cache", "direct")), lambda attach: CACHES[attach.cache].direct),
            ReadBack(
                "qemu_cache_no_flush", BlockInfo(("cache", "no-flush")), lambda attach: CACHES[attach.cache].no_flush
            ),
            ReadBack(
                "qemu_write_cache", BlockInfo(("cache", "writeback")), lambda attach: CACHES[attach.cache].write_cache
            ),
            ReadBack("guest_write_cache", expected=_expect_write_cache),
        ),
        conflicts=(
            Conflict(
                "device",
                lambda attach: attach.device == "lun" and attach.cache != "none",
                f"{LUN} and bypasses every cache of the host",
                "cache none",
            ),
        ),
        pve=Pve("cache"),
    )
    """QEMU's cache mode."""
    aio: Aio = option(
        "native",
        docs="`<driver io>`; `aio`",
        xml=Xml("driver/@io"),
        shown=(
            ReadBack("aio", Xml("driver/@io"), lambda attach: attach.aio if attach.in_qemu else None),
            ReadBack("qemu_aio"),
        ),
        conflicts=(
            Conflict(
                "cache",
                lambda attach: attach.aio == "native" and not attach.direct,
                "which is not direct I/O",
                "cache none or directsync, or aio threads or io_uring",
            ),
            Conflict(
                "device",
                lambda attach: attach.device == "lun" and attach.aio != "threads",
                f"{LUN} in QEMU's thread pool",
                "aio threads",
            ),
        ),
        pve=Pve(
            "aio",
            refused=lambda attach: (
                f"aio native with cache {attach.cache}" if attach.aio == "native" and not attach.direct else None
            ),
        ),
    )
    """QEMU's engine for asynchronous I/O."""
    iothread: Flag = option(
        True,
        docs="`<driver iothread>`: a thread for the disk's requests; with a shared controller, one for all its disks",
        buses=Buses(VIRTIO, MAIN_THREAD, "iothread = false, or bus virtio-blk or virtio-scsi"),
        unused=False,
        shown=(
            ReadBack("iothread", expected=lambda attach: attach.threads > 0 if attach.in_qemu else None),
            ReadBack("qemu_iothread", expected=lambda attach: attach.threads > 0),
        ),
        conflicts=(
            Conflict(
                "iothread_vq_mapping",
                lambda attach: attach.iothread and attach.iothread_vq_mapping > 0 and attach.bus in VIRTIO,
                "which assigns threads to the queues",
                "iothread = false, or no iothread_vq_mapping",
            ),
        ),
        pve=Pve("iothread", int, VIRTIO, "an iothread"),
    )
    """Whether the disk has its own thread."""
    queues: Queues | None = option(
        None,
        docs="`<driver queues>`; `num-queues`, `num_queues`",
        values="1 to 1022",
        by_default="the hypervisor's: one per vCPU",
        xml=on_virtio(Xml("driver/@queues", int), OnController(Xml("driver/@queues", int))),
        buses=ONLY_VIRTIO,
        shown=(
            ReadBack("qemu_queues", Property(("num-queues", "num_queues"), of_queues=True)),
            ReadBack("guest_queues"),
        ),
        pve=Pve(
            "queues",
            always=False,
            # Only drives on SCSI have it, and from 2 on. Without it, QEMU has one queue per CPU of the guest.
            by_arguments=lambda attach: (
                attach.bus != "virtio-scsi" or attach.queues == 1 or attach.iothread_vq_mapping > 0
            ),
        ),
    )
    """None is the hypervisor's default: one per vCPU for virtio."""
    queue_size: QueueSize | None = option(
        None,
        docs="`<driver queue_size>`; `queue-size`, `virtqueue_size`; in the guest `mq/0/nr_tags`",
        values="power of two, 4 to 1024",
        by_default="the hypervisor's: 256",
        xml=on_virtio(Xml("driver/@queue_size", int), QemuOverride("virtqueue_size")),
        buses=ONLY_VIRTIO,
        shown=(
            ReadBack("qemu_queue_size", Property(("queue-size", "virtqueue_size"), of_queues=True)),
            ReadBack("guest_queue_size"),
        ),
        pve=BY_ARGUMENTS,
    )
    """Requests in a queue. None is the hypervisor's default."""
    iothread_vq_mapping: Annotated[Count, Field(ge=0, le=1022)] = option(
        0,
        docs="the number of iothreads that share the queues; `iothread-vq-mapping`, QEMU 9.0, with virtio-scsi 10.0",
        values="0 to `queues`",
        by_default="0: none",
        buses=Buses(VIRTIO, MAIN_THREAD, "bus virtio-blk or virtio-scsi"),
        shown=(ReadBack("qemu_iothreads", expected=lambda attach: attach.iothread_vq_mapping or None),),
        since=_find_mapping_versions,
        conflicts=(
            Conflict(
                "queues",
                lambda attach: attach.bus in VIRTIO and (attach.queues or 0) < attach.iothread_vq_mapping,
                "because each thread needs a queue",
                lambda attach: f"queues = {attach.iothread_vq_mapping} or more",
            ),
        ),
        served=False,
        pve=BY_ARGUMENTS,
    )
    """The number of iothreads that share the queues of virtio-blk or virtio-scsi. 0 is no mapping."""
    poll_max_ns: PollTime | None = option(
        None,
        docs="`<poll max>` of its iothreads; `poll-max-ns`, libvirt 9.4.0. Modes with and without polling share a "
        "guest, so a [waterfall](#decomposename) can compare them",
        values="nanoseconds; 0: no polling",
        by_default="that of the [guest](#guest), else QEMU's: 32768",
        shown=(ReadBack("qemu_poll_max_ns"),),
        # The thread of a storage daemon polls as its arguments say, whatever libvirt knows.
        since=lambda attach: POLLING if attach.in_qemu else None,
        conflicts=(
            Conflict(
                "iothread",
                lambda attach: attach.poll_max_ns is not None and not attach.threads,
                "because only iothreads poll",
                "iothread = true, or no poll_max_ns",
            ),
        ),
        pve=BY_ARGUMENTS,
    )
    """The longest time in nanoseconds for which its iothreads poll. 0 is no polling, None that of the guest."""
    controller: Controller = option(
        "single",
        docs="for virtio-scsi: one controller for each disk, or one for all modes that ask for the same shared one. "
        "Proxmox VE: VirtIO SCSI single, VirtIO SCSI (`scsihw`), which has no iothreads",
        buses=Buses(("virtio-scsi",), "which has no choice of controllers", "bus virtio-scsi, or no controller"),
        shown=(
            ReadBack(
                "controller_disks",
                expected=lambda attach: 1 if (attach.bus, attach.controller) == ("virtio-scsi", "single") else None,
            ),
        ),
        pve=Pve(refused=_refuse_shared_queues),
    )
    """Whether a virtio-scsi disk has its controller to itself."""
    discard: Discard = option(
        "ignore",
        docs="`<driver discard>`; `discard`",
        xml=Xml("driver/@discard"),
        shown=(ReadBack("qemu_discard"),),
        of_lun=False,
        pve=Pve("discard", lambda discard: "on" if discard == "unmap" else "ignore"),
    )
    """Whether the guest's discards reach the layout."""
    detect_zeroes: DetectZeroes = option(
        "off",
        docs="`<driver detect_zeroes>`; `detect-zeroes`",
        xml=Xml("driver/@detect_zeroes"),
        shown=(ReadBack("qemu_detect_zeroes", BlockInfo(("detect_zeroes",))),),
        conflicts=(
            Conflict(
                "discard",
                lambda attach: attach.detect_zeroes == "unmap" and attach.discard != "unmap",
                "which ignores the resulting discards",
                'discard = "unmap", or detect_zeroes = "on"',
            ),
        ),
        of_lun=False,
        pve=Pve(
            "detect_zeroes",
            lambda detected: int(detected != "off"),
            # It is only on or off there, and "on" means `unmap` if the drive discards.
            refused=lambda attach: (
                None
                if attach.detect_zeroes in ("off", "unmap" if attach.discard == "unmap" else "on")
                else f"detect_zeroes {attach.detect_zeroes} with discard {attach.discard}"
            ),
        ),
    )
    """Whether QEMU searches written data for zeros."""
    ssd: Flag = option(
        False,
        docs="`<target rotation_rate='1'>`, libvirt 7.3.0: the guest sees a disk that does not rotate. "
        "`rotation_rate`, and `queue/rotational` in the guest",
        buses=Buses((*SCSI_BUSES, "sata", "ide"), "whose disks report no rotation rate", "bus virtio-scsi or sata"),
        shown=(
            ReadBack("qemu_rotation_rate", Property(("rotation_rate",)), lambda attach: int(attach.ssd) or None),
            ReadBack("guest_rotational", expected=lambda attach: False if attach.ssd else None),
        ),
        since=Since("7.3.0"),
        of_lun=False,
        pve=Pve("ssd", int, (*SCSI_BUSES, "sata"), "ssd", always=False),
    )
    """Whether the guest sees a disk that does not rotate. Its kernel then chooses another scheduler, and reads ahead
    in another way."""
    logical_block_size: LogicalBlock | None = option(
        None,
        docs="`<blockio logical_block_size>`; `logical_block_size`",
        values="power of two, 512 B to 4 KiB",
        by_default="the hypervisor's",
        xml=Xml("blockio/@logical_block_size", int),
        shown=(
            ReadBack("qemu_logical_block_size", Property(("logical_block_size",))),
            ReadBack("guest_logical_block_size"),
        ),
        conflicts=(
            Conflict(
                "physical_block_size",
                lambda attach: (attach.logical_block_size or 0) > (attach.physical_block_size or 512),
                "because a physical block cannot be smaller than a logical block",
                lambda attach: f'physical_block_size = "{format_size(attach.logical_block_size or 0)}" or more',
            ),
            Conflict(
                "bus",
                lambda attach: (attach.logical_block_size or 512) != 512 and attach.bus in ("sata", "ide"),
                "because QEMU uses 512-byte blocks on this bus",
                "bus virtio-blk, virtio-scsi or nvme",
            ),
        ),
        served=False,
        of_lun=False,
        pve=BY_ARGUMENTS,
    )
    """In bytes. None is the hypervisor's default."""
    physical_block_size: PhysicalBlock | None = option(
        None,
        docs="`<blockio physical_block_size>`; `physical_block_size`",
        values="power of two, 512 B to 2 MiB",
        by_default="the hypervisor's",
        xml=Xml("blockio/@physical_block_size", int),
        shown=(
            ReadBack("qemu_physical_block_size", Property(("physical_block_size",))),
            ReadBack("guest_physical_block_size"),
        ),
        served=False,
        of_lun=False,
        pve=BY_ARGUMENTS,
    )
    """In bytes. None is the hypervisor's default."""
    read_only: Flag = option(
        False,
        docs="`<readonly/>`; `read-only`",
        xml=Xml("readonly", bool),
        buses=Buses(
            ("virtio-blk", *SCSI_BUSES, "nvme"),
            "which does not support read-only disks",
            "bus virtio-blk, virtio-scsi or nvme",
        ),
        shown=(ReadBack("qemu_read_only", BlockInfo(("ro",))), ReadBack("guest_read_only")),
        served=False,
        of_lun=False,
        pve=Pve("ro", int, ("virtio-blk", *SCSI_BUSES), "read_only", always=False),
    )
    """Whether the guest must not write."""
    iops: Iops | None = option(
        None,
        docs="`<iotune>`: `total_iops_sec`; `iops-total` of QEMU's throttling. [Whether it "
        "holds](measuring.md#limits-of-a-disks-io) is checked",
        values="1 to 1000000000 I/Os per second",
        by_default="no limit",
        shown=(
            ReadBack("qemu_iops_limit", expected=lambda attach: attach.shown_limit("iops")),
            ReadBack("host_io_limit", expected=lambda _: NO_LIMIT),
        ),
        served=False,
        of_lun=False,
        pve=Pve(),
    )
    """The most I/Os per second, reads and writes together. None is no limit."""
    bw: Rate | None = option(
        None,
        docs="`<iotune>`: `total_bytes_sec`; `bps-total`",
        values='a rate, for example `"100 MiB/s"`',
        by_default="no limit",
        shown=(ReadBack("qemu_bw_limit", expected=lambda attach: attach.shown_limit("bps")),),
        served=False,
        of_lun=False,
        pve=Pve(),
    )
    """The most bytes per second, read and written together. None is no limit."""
    iops_burst: Iops | None = _declare_burst(Limited("iops", "total"))
    """The most I/Os per second in a burst. None is no bursts."""
    bw_burst: Rate | None = _declare_burst(Limited("bps", "total"))
    """The most bytes per second in a burst. None is no bursts."""
    read_iops: Iops | None = _declare_limit(Limited("iops", "read"))
    """The most reads per second. None is no limit of them alone, as for the next ones."""
    write_iops: Iops | None = _declare_limit(Limited("iops", "write"))
    read_bw: Rate | None = _declare_limit(Limited("bps", "read"))
    write_bw: Rate | None = _declare_limit(Limited("bps", "write"))
    read_iops_burst: Iops | None = _declare_burst(Limited("iops", "read"))
    write_iops_burst: Iops | None = _declare_burst(Limited("iops", "write"))
    read_bw_burst: Rate | None = _declare_burst(Limited("bps", "read"))
    write_bw_burst: Rate | None = _declare_burst(Limited("bps", "write"))
    burst_seconds: Annotated[Count, Field(ge=1, le=3600)] | None = option(
        None,
        docs="`<iotune>`: `total_iops_sec_max_length`, `total_bytes_sec_max_length`: how long a burst may last",
        values="1 to 3600",
        by_default="1",
        conflicts=(
            Conflict(
                "iops_burst",
                lambda attach: (
                    attach.burst_seconds is not None and all(limit.burst is None for limit in attach.limits.values())
                ),
                "and the other bursts left out as well",
                "with iops_burst, bw_burst or a burst of one way",
            ),
        ),
        pve=Pve(),
    )
    """How long a burst may last. None is one second."""
    throttle_group: GroupName | None = option(
        None,
        docs="`<iotune>`: `group_name`, libvirt 3.0.0: the disks of a guest with the same group share `iops` and `bw`, "
        "which must be the same. Guests of their own (`guests`, a neighbour) are other processes of QEMU and share "
        "nothing. QEMU's name of the group is read back",
        values="lower case letters, digits and hyphens",
        by_default="a group of its own",
        xml=Xml("iotune/group_name"),
        shown=(ReadBack("qemu_throttle_group", BlockInfo(("group",), optional=True)),),
        since=Since("3.0.0"),
        conflicts=(
            Conflict(
                "iops",
                lambda attach: attach.throttle_group is not None and not attach.limits,
                "and the other limits left out as well: a group shares limits",
                "with iops or bw, or a limit of one way",
            ),
        ),
    )
    """The group of disks of the guest that share the limits. None is a group of its own."""
    packed: Flag | None = option(
        None,
        docs="`<driver packed>` of virtio, libvirt 6.3.0; `packed`, and feature 34 of the guest's device",
        by_default="the hypervisor's: `false`",
        xml=on_virtio(Xml("driver/@packed", bool), OnController(Xml("driver/@packed", bool))),
        buses=ONLY_VIRTIO,
        shown=(
            ReadBack("qemu_packed", Property(("packed",), of_queues=True)),
            ReadBack("guest_packed", VirtioFeature(34)),
        ),
        since=Since("6.3.0"),
        served=False,
        pve=BY_ARGUMENTS,
    )
    """Whether the queues are packed rings. None is the hypervisor's default: split rings."""
    event_idx: Flag | None = option(
        None,
        docs="`<driver event_idx>` of virtio-blk, `qemu:override` of virtio-scsi; `event_idx`, and feature 29 of the "
        "guest's device",
        by_default="the hypervisor's: `true`",
        xml=on_virtio(Xml("driver/@event_idx", bool), QemuOverride("event_idx")),
        buses=ONLY_VIRTIO,
        shown=(
            ReadBack("qemu_event_idx", Property(("event_idx",), of_queues=True)),
            ReadBack("guest_event_idx", VirtioFeature(29)),
        ),
        pve=BY_ARGUMENTS,
    )
    """Whether guest and host tell each other when to notify. None is the hypervisor's default: they do."""
    metadata_cache: Size | None = option(
        None,
        docs="`<metadata_cache>`, libvirt 7.0.0: the cache of a qcow2 file's tables; `cache-size`",
        values='a size, for example `"4 MiB"`',
        by_default="QEMU's",
        xml=Xml("driver/metadata_cache/max_size", int, unit="bytes"),
        shown=(ReadBack("qemu_metadata_cache", BlockNode("cache-size")),),
        since=Since("7.0.0"),
        needs_layout=("qcow2", "because only qcow2 files have such tables"),
        served=False,
    )
    """The cache of a qcow2 file's tables in bytes. None is QEMU's default."""
    read_ahead_kb: Annotated[ReadAhead | None, Field(exclude_if=lambda value: value is None)] = option(
        None,
        docs="`queue/read_ahead_kb` of the disk in the guest, and of the volume of its twin on the host, for "
        "[buffered reads](filesystem.md#buffered-io); the same on Proxmox VE",
        values="KiB: multiples of 4 up to 16384",
        by_default="the kernel's, often 128",
        shown=(ReadBack("guest_read_ahead_kb"),),
        pve=Pve(),
        example=512,
    )
    """The most KiB that the guest's kernel reads ahead of a buffered reader. None is the kernel's default."""
    server: Server = option(
        "qemu",
        docs="`storage-daemon`: `<disk type='vhostuser'>`, libvirt 7.1.0, and "
        "[qemu-storage-daemon](measuring.md#storage-daemons) of QEMU 7.0; `vhost-user-blk-pci`",
        values="`qemu`, `storage-daemon`; [`ublk`, `nvme-io_uring`, `vhost-vdpa`](#ways-that-no-host-offers-today)",
        since=lambda attach: replace(_SERVER_SINCE[attach.server], what=f'server = "{attach.server}"'),
    )
    """The process that serves the disk: the guest's QEMU, or a storage daemon by vhost-user-blk. No host offers the
    others today."""
    device: Literal["disk", "lun"] = option(
        "disk",
        docs="`disk`: emulated by QEMU. `lun`: `<disk device='lun'>`, `scsi-block`: the guest's SCSI commands reach "
        "the host's SCSI disk. `vfio`: `<hostdev type='pci'>`, `vfio-pci`: the whole PCI device, which the host does "
        "not have meanwhile",
        values="`disk`, `lun`, `vfio`",
        xml=Xml("@device"),
        shown=(
            ReadBack("qemu_device", Property(("type",)), _name_qemu_device),
            ReadBack("host_driver", expected=lambda _: None),
        ),
        served=False,
    )
    """`lun` passes the guest's SCSI commands to a SCSI disk of the host."""

    @property
    def direct(self) -> bool:
        """Whether QEMU opens the layout with O_DIRECT (its `cache.direct`)."""
        return CACHES[self.cache].direct

    @property
    def threads(self) -> int:
        """How many iothreads serve the disk. 0 is QEMU's main thread."""
        return self.iothread_vq_mapping or int(self.iothread)

    @property
    def in_qemu(self) -> bool:
        """Whether the guest's QEMU serves the disk, with its own block layer and iothreads."""
        return self.server == "qemu"

    @property
    def limits(self) -> dict[Limited, RateLimit]:
        """The requested limits of the disk's I/O."""
        limits = {}
        for limited in starmap(Limited, product(get_args(LimitKind), get_args(LimitWay))):
            if (rate := getattr(self, limited.option)) is not None:
                burst = getattr(self, f"{limited.option}_burst")
                limits[limited] = RateLimit(rate, burst, self.burst_seconds or 1)
        return limits

    @property
    def host_counts(self) -> bool:
        """Whether the host's block layer counts the guest's I/O. It does not count passed-through SCSI commands.

        Source: Linux commit 110234da18ab. Newer kernels count them if `queue/iostats_passthrough` is set.
        """
        return self.device != "lun"

    @property
    def words(self) -> str:
        """The attachment in a few words."""
        iothread = "iothread" if self.iothread else "no iothread"
        limits = "".join(f", at most {limited.format_rate(limit.rate)}" for limited, limit in self.limits.items())
        server = "" if self.in_qemu else f", by a {self.server}"
        return f"{self.bus}, cache {self.cache}, aio {self.aio}, {iothread}{limits}{server}"

    @property
    def expected(self) -> Effective:
        """The settings that must be read back from a disk that is attached in this way."""
        return Effective(**dict(pair for name, row in ATTACH_OPTIONS.items() for pair in row.expect(name, self)))

    @property
    def used(self) -> dict[str, Option[Attach]]:
        """The rows of the options that are used, by name: those with another value than without a request."""
        usual = {key.name: key.default for key in fields(self)}
        return {
            name: row
            for name, row in ATTACH_OPTIONS.items()
            if getattr(self, name) != (usual[name] if row.unused is None else row.unused)
        }

    def shown_limit(self, kind: LimitKind) -> str:
        """A limit as QEMU shows it."""
        settings = {
            name: value for limited, limit in self.limits.items() for name, value in limit.settings(limited).items()
        }
        return format_limits(settings, kind)


ATTACH_OPTIONS: Mapping[str, Option[Attach]] = declared(Attach)
"""The option table: the row of each option, by name."""


class NotServed(FileValue):
    """A disk whose requests QEMU does not serve, or of which that is not known: no cache of the host is involved."""

    __slots__ = ()

    @property
    def direct(self) -> bool:
        return True

    @property
    def read_only(self) -> bool:
        return False

    @property
    def queues(self) -> None:
        """The guest's driver chooses."""
        return

    @property
    def host_counts(self) -> bool:
        """Whether the host's block layer counts the guest's I/O: the host does not have the device meanwhile."""
        return False


@dataclass(frozen=True, slots=True)
class Vfio(NotServed):
    """The whole PCI device. The guest's own driver controls it, and QEMU serves no requests."""

    device: Literal["vfio"] = "vfio"
    """`vfio`: the device itself."""

    @property
    def words(self) -> str:
        return "VFIO"

    @property
    def expected(self) -> Effective:
        """The settings that must be read back from a device that is passed through."""
        return Effective(qemu_device="vfio-pci", host_driver="vfio-pci", guest_driver="nvme")


@dataclass(frozen=True, slots=True)
class InContainer(NotServed):
    """A volume of the host in a container, which has the place of the guest. There is no QEMU: the host's kernel does
    the I/O of the container. A scenario requests it with `container` of a mode."""

    device: Literal["container"] = "container"
    """`container`: the volume itself, in a container."""
    unprivileged: Annotated[bool, Field(exclude_if=lambda unprivileged: not unprivileged)] = False
    """Whether its root is an ordinary user of the host."""
    host_counts: ClassVar[bool] = True

    @property
    def words(self) -> str:
        return "unprivileged container" if self.unprivileged else "container"

    @property
    def expected(self) -> Effective:
        """The settings that must be read back from its control group and its process."""
        return Effective(
            container="lxc", container_unprivileged=True if self.unprivileged else None, host_io_limit=NO_LIMIT
        )


@dataclass(frozen=True, slots=True)
class Unknown(NotServed):
    """An attachment that is not known: the guest of a run that was imported. No scenario can request it."""

    device: Literal["unknown"] = "unknown"
    """`unknown`: nothing is known."""

    @property
    def words(self) -> str:
        return "attachment not known"

    @property
    def expected(self) -> Effective:
        """Nothing was requested."""
        return NOTHING


Attachment = Attach | Vfio | InContainer | Unknown


def device(attachment: Any) -> str:
    """The tag of an attachment. pydantic's errors show this function's name, so it is the name of the key."""
    given = attachment.get("device", "disk") if isinstance(attachment, dict) else getattr(attachment, "device", "disk")
    return str(given)


_OfQemu = Annotated[Attach, Tag("disk")] | Annotated[Attach, Tag("lun")] | Annotated[Vfio, Tag("vfio")]
AnyAttachment = Annotated[_OfQemu, Discriminator(device)]
"""An attachment in a file. `device` selects the type."""
StoredAttachment = Annotated[
    _OfQemu | Annotated[InContainer, Tag("container")] | Annotated[Unknown, Tag("unknown")], Discriminator(device)
]
"""An attachment in a record."""
