"""Translates a requested attachment to Proxmox VE's configuration of a drive. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.model.attach import ATTACH_OPTIONS, Attach, Attachment
from harness.model.option import BUSES, Bus, Pve
from harness.model.throttle import LimitKind, RateLimit
from harness.model.values import shown_field

MIB = 1024**2
LONGEST_SERIAL = 60
_OFFERED: tuple[Bus, ...] = ("virtio-blk", "virtio-scsi", "sata")
CDROM = "ide2"
"""The drive of the guest's own medium: the guest image's ISO, or a template's cloud-init drive."""


def refuse_drive(attach: Attachment) -> str | None:
    """The options of an attachment that Proxmox VE's drives do not have, as a message; None if they have all."""
    if not isinstance(attach, Attach):
        return "VFIO passthrough is not offered by this backend"
    if attach.bus not in _OFFERED:
        # On a q35 machine, which all guests here are, PVE's IDE drives are on AHCI.
        return f"a guest of Proxmox VE has no bus {attach.bus}; allowed: {', '.join(_OFFERED)}"
    missing = [what for name, row in ATTACH_OPTIONS.items() if (what := _not_offered(attach, name, row.pve))]
    return f"Proxmox VE does not offer {', '.join(missing)}" if missing else None


def _not_offered(attach: Attach, name: str, pve: Pve[Attach] | None) -> str | None:
    """What a drive does not have of an option; None if it has it."""
    if pve is None:
        # With `scsiblock=1`, PVE still made a scsi-hd.
        return f"{name} = {shown_field(attach, name)}" if getattr(attach, name) != getattr(Attach(), name) else None
    if name in attach.used and pve.buses and attach.bus not in pve.buses:
        return f"{pve.what} for {attach.bus}"
    return pve.refused(attach)


def format_drive(source: str, attach: Attachment, serial: str) -> str:
    """PVE's configuration of a drive. `source` is a volume id or a path. Sets every option that affects a figure.

    Raises ValueError for options that `refuse_drive` names, and for a source or serial that the format cannot hold.
    """
    if (why := refuse_drive(attach)) or not isinstance(attach, Attach):
        raise ValueError(why)
    if "," in source or "," in serial or len(serial) > LONGEST_SERIAL:
        raise ValueError(f"{source} with serial {serial} cannot be written as a drive of Proxmox VE")
    rows = [(name, row.pve) for name, row in ATTACH_OPTIONS.items() if row.pve and row.pve.key]
    everywhere = [(name, pve) for name, pve in rows if pve.always and not pve.buses]
    options: dict[str, str | int] = {pve.key: pve.value(getattr(attach, name)) for name, pve in everywhere}
    options |= {"backup": 0, "serial": serial}
    for name, pve in rows:
        if pve.key not in options and (pve.always or name in attach.used) and attach.bus in (pve.buses or _OFFERED):
            options[pve.key] = pve.value(getattr(attach, name))
    for kind, limit in attach.limits.items():
        options |= _limited(kind, limit)
    return ",".join([source, *(f"{key}={value}" for key, value in options.items())])


def _limited(kind: LimitKind, limit: RateLimit) -> dict[str, str | int]:
    """PVE has its bandwidths in MiB/s, but the length of their bursts under the name of bytes."""
    name, unit = ("iops", 1) if kind == "iops" else ("mbps", MIB)
    options: dict[str, str | int] = {name: f"{limit.rate / unit:.15g}"}
    if limit.burst is not None:
        options |= {f"{name}_max": f"{limit.burst / unit:.15g}", f"{kind}_max_length": limit.seconds}
    return options


def choose_drives(buses: Mapping[str, Bus], taken: Iterable[str] = ()) -> dict[str, str]:
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


def parse_drive(drive: str) -> dict[str, str]:
    """The options of a drive string by name. `file` is its volume or path."""
    source, *options = drive.split(",")
    pairs = (option.partition("=") for option in options)
    return {"file": source.removeprefix("file=")} | {key: value for key, _, value in pairs}
