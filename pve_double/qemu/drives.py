"""Drive strings: parsing and printing them as qemu-server does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pve_double import schema
from pve_double.errors import bad_parameters
from pve_double.formats import format_size, parse, parse_size
from pve_double.qemu.machine import Config, boot_order
from pve_double.schema import BadFormat

NEW_DISK = re.compile(r"(?:([^/:\s]+):)?(\d+(?:\.\d+)?)")
"""`STORAGE:GIBIBYTES`, which asks for a new volume."""
BUSES = ("ide", "scsi", "virtio", "sata")
DRIVE_NAMES = (
    *(f"{bus}{index}" for bus in BUSES for index in range(schema.COUNTS[bus])),
    "efidisk0",
    "tpmstate0",
)
_CLOUDINIT = re.compile(r"[:/](?:vm-\d+-)?cloudinit(?:\.(?:raw|qcow2|vmdk))?$")
_THROTTLES = ("bps", "bps_rd", "bps_wr")
_EXCLUDE = (("mbps_rd", "mbps"), ("mbps_wr", "mbps"), ("iops_rd", "iops"), ("iops_wr", "iops"))
_REQUIRED = {
    **{f"mbps{way}_max": f"mbps{way}" for way in ("", "_rd", "_wr")},
    **{f"bps{way}_max_length": f"mbps{way}_max" for way in ("", "_rd", "_wr")},
    **{f"iops{way}_max_length": f"iops{way}_max" for way in ("", "_rd", "_wr")},
}
"""What a burst needs. PVE asks nothing of iops_max itself: it looks for it under another name."""


@dataclass(frozen=True, slots=True)
class Drive:
    """One drive of a configuration. `options` has no `file`; `size` in it is in bytes."""

    key: str
    file: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def bus(self) -> str:
        return self.key.rstrip("0123456789")

    @property
    def index(self) -> int:
        return int(self.key[len(self.bus) :])

    @property
    def is_cloudinit(self) -> bool:
        return _CLOUDINIT.search(self.file) is not None

    @property
    def is_cdrom(self) -> bool:
        return self.options.get("media") == "cdrom"

    @property
    def is_disk(self) -> bool:
        """Whether it holds data of the guest's, or a cloud-init image, which PVE owns like one."""
        return not self.is_cdrom or self.is_cloudinit

    @property
    def storage(self) -> str | None:
        """The storage of its volume; None for a device path, an empty drive and the host's own."""
        storage, separator, _ = self.file.partition(":")
        return storage if separator and not self.file.startswith("/") else None

    @property
    def new_disk(self) -> tuple[str, float] | None:
        """Storage and size in GiB where the drive asks for a new volume."""
        match = NEW_DISK.fullmatch(self.file)
        return (match[1] or "", float(match[2])) if match else None

    def flag(self, name: str) -> bool:
        return self.options.get(name) == "1"

    def changed(self, file: str, size_bytes: int | None = None, *, without: tuple[str, ...] = ()) -> Drive:
        """The same drive on another volume."""
        options = {name: value for name, value in self.options.items() if name not in {"size", *without}}
        if size_bytes is not None:
            options["size"] = str(size_bytes)
        return replace(self, file=file, options=options)

    def text(self) -> str:
        """As the configuration has it: the volume first, then everything else by name."""
        shown = dict(self.options)
        if "size" in shown:
            shown["size"] = format_size(int(shown["size"]))
        return ",".join([self.file, *(f"{name}={value}" for name, value in sorted(shown.items()))])


def is_drive(key: str) -> bool:
    return key in DRIVE_NAMES


def is_unused(key: str) -> bool:
    return re.fullmatch(r"unused\d+", key) is not None


def _format_name(key: str) -> str:
    stem = key.rstrip("0123456789")
    return key if key in {"efidisk0", "tpmstate0"} else f"{stem}[n]"


def parse_drive(key: str, text: str) -> Drive | None:
    """None where qemu-server cannot make sense of it."""
    try:
        values = parse(schema.named_format(_format_name(key)), text, key)
    except BadFormat:
        return None
    for name in _THROTTLES:
        if name in values:
            if f"m{name}" in values:
                return None
            values[f"m{name}"] = f"{int(values.pop(name)) / 1024**2:.3f}"
    # As Perl sees it: a 0 is as good as nothing.
    given = {name for name, value in values.items() if value not in {"0", ""}}
    if any({first, second} <= given for first, second in _EXCLUDE):
        return None
    if any(burst in given and needed not in given for burst, needed in _REQUIRED.items()):
        return None
    if values.get("media") == "cdrom" and (given & {"snapshot", "format"} or key.startswith("virtio")):
        return None
    if "size" in values:
        values["size"] = str(parse_size(values["size"]))
    return Drive(key, values.pop("file"), values)


def require_drive(key: str, text: str) -> Drive:
    """400 with PVE's text where it is none."""
    drive = parse_drive(key, text)
    if drive is None:
        raise bad_parameters({key: "unable to parse drive options"})
    return drive


def drives(config: Config, *, unused: bool = False) -> Iterator[Drive]:
    """The drives of a configuration in PVE's order: by bus, then by number; the unused ones last."""
    for key in DRIVE_NAMES:
        if key in config and (drive := parse_drive(key, config[key])) is not None:
            yield drive
    for key in sorted(filter(is_unused, config), key=lambda name: int(name[6:])) if unused else ():
        yield Drive(key, config[key])


def default_boot_devices(config: Config) -> list[str]:
    """What PVE boots from when nobody says: the first disk, the first CD, the first network card."""
    found = list(drives(config))
    disk = next((drive.key for drive in found if not drive.is_cdrom and drive.bus in BUSES), None)
    cdrom = next((drive.key for drive in found if drive.is_cdrom), None)
    net = next((f"net{index}" for index in range(schema.COUNTS["net"]) if f"net{index}" in config), None)
    return [device for device in (disk, cdrom, net) if device is not None]


def boot_disks(config: Config) -> list[str]:
    """Disks that a running VM does not give away, as it boots from them."""
    order = boot_order(config) if config.get("boot", "").startswith("order=") else default_boot_devices(config)
    return [drive.key for drive in drives(config) if drive.key in order and not drive.is_cdrom]
