"""Translates a requested attachment to Proxmox VE's configuration of a drive. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.model.attach import Attach, Attachment
from harness.model.bus import BUSES, Bus
from harness.model.throttle import Limit, LimitKind
from harness.model.values import names_of, shown_field

MIB = 1024**2
LONGEST_SERIAL = 60
_OFFERED: tuple[Bus, ...] = ("virtio-blk", "virtio-scsi", "sata")
_OPTIONS = (
    *("bus", "cache", "aio", "iothread", "queues", "discard", "detect_zeroes", "read_only"),
    *("iops", "bw", "iops_burst", "bw_burst", "burst_seconds"),
)
"""The options of an attachment that Proxmox VE's drives have."""
_WITH_IOTHREAD = ("virtio", "scsi")
CDROM = "ide2"
"""The drive of the guest's own medium: the guest image's ISO, or a template's cloud-init drive."""


def not_offered(attach: Attachment) -> str | None:
    """The options of an attachment that Proxmox VE's drives do not have, as a message; None if they have all."""
    if not isinstance(attach, Attach):
        return "VFIO passthrough is not offered by this backend"
    if attach.bus not in _OFFERED:
        # On a q35 machine, which all guests here are, PVE's IDE drives are on AHCI.
        return f"a guest of Proxmox VE has no bus {attach.bus}; allowed: {', '.join(_OFFERED)}"
    bus = BUSES[attach.bus].hypervisor
    refused = {
        f"an iothread for {attach.bus}": attach.iothread and bus not in _WITH_IOTHREAD,
        f"a number of queues for {attach.bus}": attach.queues is not None and bus != "scsi",
        # PVE's minimum is 2. Without the option, QEMU has one queue per CPU of the guest.
        "a single queue": attach.queues == 1 and bus == "scsi",
        f"read_only for {attach.bus}": attach.read_only and bus not in _WITH_IOTHREAD,
        # PVE's detect_zeroes is only on or off, and "on" means `unmap` if the drive discards.
        f"detect_zeroes {attach.detect_zeroes} with discard {attach.discard}": attach.detect_zeroes
        not in ("off", "unmap" if attach.discard == "unmap" else "on"),
        f"aio native with cache {attach.cache}": attach.aio == "native" and not attach.direct,
    }
    # An option that PVE's drives do not have must keep its default. With `scsiblock=1`, PVE still made a scsi-hd.
    changed = [name for name in names_of(attach) if getattr(attach, name) != getattr(Attach(), name)]
    missing = [what for what, requested in refused.items() if requested]
    missing += [f"{name} = {shown_field(attach, name)}" for name in changed if name not in _OPTIONS]
    return f"Proxmox VE does not offer {', '.join(missing)}" if missing else None


def drive_string(source: str, attach: Attachment, serial: str) -> str:
    """PVE's configuration of a drive. `source` is a volume id or a path. Sets every option that affects a figure.

    Raises ValueError for options that `not_offered` names, and for a source or serial that the format cannot hold.
    """
    if (why := not_offered(attach)) or not isinstance(attach, Attach):
        raise ValueError(why)
    if "," in source or "," in serial or len(serial) > LONGEST_SERIAL:
        raise ValueError(f"{source} with serial {serial} cannot be written as a drive of Proxmox VE")
    bus = BUSES[attach.bus].hypervisor
    options: dict[str, str | int] = {
        "cache": attach.cache,
        "aio": attach.aio,
        "discard": "on" if attach.discard == "unmap" else "ignore",
        "detect_zeroes": int(attach.detect_zeroes != "off"),
        "backup": 0,
        "serial": serial,
    }
    if bus in _WITH_IOTHREAD:
        options["iothread"] = int(attach.iothread)
    if attach.queues is not None:
        options["queues"] = attach.queues
    if attach.read_only:
        options["ro"] = 1
    for kind, limit in attach.limits.items():
        options |= _limited(kind, limit)
    return ",".join([source, *(f"{key}={value}" for key, value in options.items())])


def _limited(kind: LimitKind, limit: Limit) -> dict[str, str | int]:
    """PVE has its bandwidths in MiB/s, but the length of their bursts under the name of bytes."""
    name, unit = ("iops", 1) if kind == "iops" else ("mbps", MIB)
    found: dict[str, str | int] = {name: f"{limit.rate / unit:.15g}"}
    if limit.burst is not None:
        found |= {f"{name}_max": f"{limit.burst / unit:.15g}", f"{kind}_max_length": limit.seconds}
    return found


def drive_keys(buses: Mapping[str, Bus], taken: Iterable[str] = ()) -> dict[str, str]:
    """A drive of the VM (`scsi0`) for each disk in `buses`, by the disk's name. Uses no drive in `taken`.

    Raises ValueError if a bus has too few places.
    """
    occupied = {CDROM, *taken}
    keys: dict[str, str] = {}
    for disk, bus in buses.items():
        facts = BUSES[bus]
        places = (f"{facts.hypervisor}{number}" for number in range(facts.most))
        free = next((place for place in places if place not in occupied), None)
        if free is None:
            raise ValueError(f"a VM of Proxmox VE has room for {facts.most} disks on {bus}")
        occupied.add(free)
        keys[disk] = free
    return keys


def drive_options(drive: str) -> dict[str, str]:
    """The options of a drive string by name. `file` is its volume or path."""
    source, *options = drive.split(",")
    pairs = (option.partition("=") for option in options)
    return {"file": source.removeprefix("file=")} | {key: value for key, _, value in pairs}
