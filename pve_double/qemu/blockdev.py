"""One drive as QEMU arguments: what qemu-server makes of a drive string. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pve_double.errors import PveError
from pve_double.qemu.drives import Drive
from pve_double.qemu.machine import Config

SINGLE = "virtio-scsi-single"
NATIVE_UNCACHED = "aio=native was specified, but it requires cache.direct=on, which was not specified."
_WRITE_THROUGH = {"writethrough", "directsync"}
_DIRECT = {"none", "directsync"}
_LSI_DEVICES = 7
_LIMITS = {
    f"{unit}{way}{burst}": f"{qemu}-{name}{'-max' if burst else ''}"
    for unit, qemu in (("mbps", "bps"), ("iops", "iops"))
    for way, name in (("", "total"), ("_rd", "read"), ("_wr", "write"))
    for burst in ("", "_max")
} | {
    f"{unit}{way}_max_length": f"{unit}-{name}-max-length"
    for unit in ("bps", "iops")
    for way, name in (("", "total"), ("_rd", "read"), ("_wr", "write"))
}
"""PVE's limits by QEMU's names for them."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a drive is backed by: its path on the node, its format, and the kind of its storage ("" for a path)."""

    path: str
    format: str
    storage_kind: str = ""
    rbd: Mapping[str, str] | None = None
    """How QEMU opens an image of Ceph by itself: RBDPlugin.pm, qemu_blockdev_options."""


@dataclass(frozen=True, slots=True)
class Chipset:
    """What of the machine type matters to drives. From version 10.0 on PVE uses -blockdev."""

    q35: bool
    version: tuple[int, int]

    @property
    def has_blockdev(self) -> bool:
        return self.version >= (10, 0)


NEWEST = (10, 0)


def chipset(config: Config) -> Chipset:
    kind = config.get("machine", "pc").partition(",")[0].removeprefix("type=")
    match = re.search(r"-(\d+)\.(\d+)", kind)
    return Chipset("q35" in kind, (int(match[1]), int(match[2])) if match else NEWEST)


def is_direct(drive: Drive) -> bool:
    """Whether QEMU opens the image with O_DIRECT."""
    return not drive.is_cdrom if "cache" not in drive.options else drive.options["cache"] in _DIRECT


def engine(drive: Drive, image: Image) -> str:
    """The I/O engine: as asked for, else by the storage; only thick LVM does not get io_uring."""
    if "aio" in drive.options:
        return drive.options["aio"]
    if image.storage_kind == "lvm":
        return "native" if is_direct(drive) else "threads"
    return "io_uring"


def check(drive: Drive, prefix: str) -> None:
    """Raises PveError as QEMU would refuse the drive."""
    if drive.options.get("aio") == "native" and not is_direct(drive) and drive.file != "none":
        raise PveError(prefix + NATIVE_UNCACHED)


def iothread_ignored(drive: Drive, config: Config) -> bool:
    """Whether PVE leaves out the I/O thread that the drive asks for, with a warning."""
    return drive.flag("iothread") and drive.bus == "scsi" and config.get("scsihw", "lsi") != SINGLE


def throttle_group(drive: Drive) -> str:
    """The object that a drive's throttle filter refers to."""
    limits = {
        _LIMITS[name]: int(float(value) * 1024**2) if name.startswith("mbps") else int(value)
        for name, value in drive.options.items()
        if name in _LIMITS
    }
    return _json({"id": f"throttle-drive-{drive.key}", "limits": limits, "qom-type": "throttle-group"})


def arguments(drive: Drive, image: Image | None, config: Config, bootindex: int | None) -> list[str]:
    """Controller, backend and device of one drive, as words for QEMU. `image` is None for an empty CD drive."""
    parts = chipset(config)
    words = _controller(drive, config)
    if drive.bus == "virtio" and drive.flag("iothread"):
        words += ["-object", f"iothread,id=iothread-{drive.key}"]
    if parts.has_blockdev:
        words += ["-blockdev", _json(blockdev(drive, image))] if image is not None else []
    else:
        words += ["-drive", _legacy(drive, image)]
    return [*words, "-device", _device(drive, image, config, parts, bootindex)]


def _controller(drive: Drive, config: Config) -> list[str]:
    if drive.bus != "scsi":
        return []
    kind = config.get("scsihw", "lsi")
    if kind == SINGLE:
        name, slot = f"virtioscsi{drive.index}", f"bus=pci.3,addr={drive.index + 1:#x}"
        thread = f"iothread-{name}" if drive.flag("iothread") else ""
        device = f"virtio-scsi-pci,id={name},{slot}"
        device += f",iothread={thread}" if thread else ""
        device += f",num_queues={drive.options['queues']}" if "queues" in drive.options else ""
        return [*(["-object", f"iothread,id={thread}"] if thread else []), "-device", device]
    number = scsi_controller(drive, kind)
    return ["-device", f"{kind},id=scsihw{number},bus=pci.0,addr={0x5 - number:#x}"]


def scsi_controller(drive: Drive, kind: str) -> int:
    """Which controller a SCSI disk is on, where each has room for several."""
    return drive.index // _LSI_DEVICES if kind.startswith("lsi") else 0


def blockdev(drive: Drive, image: Image) -> dict[str, Any]:
    """The tree of block nodes: throttle filter, format, file."""
    cache = {"direct": is_direct(drive), "no-flush": drive.options.get("cache") == "unsafe"}
    read_only = drive.is_cdrom or drive.flag("ro")
    common: dict[str, Any] = {"read-only": read_only}
    if not drive.is_cdrom:
        common |= {"detect-zeroes": _detect_zeroes(drive), "discard": _discard(drive)}
    node = hashlib.sha256(f"{drive.key} {drive.file}".encode()).hexdigest()[:30]
    if image.rbd is not None:
        file = common | {"cache": cache, "driver": "rbd", **image.rbd}
    else:
        place = {"driver": _protocol(image), "filename": image.path}
        file = common | {"aio": engine(drive, image), "cache": cache, **place}
    formatted = common | {"cache": cache, "driver": image.format, "file": file | {"node-name": f"e{node}"}}
    name = f"drive-{drive.key}"
    if drive.flag("scsiblock"):
        return formatted | {"node-name": name}
    filtered = {"file": formatted | {"node-name": f"f{node}"}, "throttle-group": f"throttle-{name}"}
    return common | filtered | {"driver": "throttle", "node-name": name}


def _protocol(image: Image) -> str:
    if not image.path:
        return "host_cdrom"
    return "host_device" if image.path.startswith("/dev/") else "file"


def _detect_zeroes(drive: Drive) -> str:
    if drive.options.get("detect_zeroes") == "0":
        return "off"
    return "unmap" if _discard(drive) == "unmap" else "on"


def _discard(drive: Drive) -> str:
    return "unmap" if drive.options.get("discard") == "on" else "ignore"


def _legacy(drive: Drive, image: Image | None) -> str:
    """The -drive of machine types before 10.0."""
    given = drive.options
    parts = [f"file={image.path}"] if image is not None else []
    parts += ["if=none", f"id=drive-{drive.key}"]
    parts += [f"{name}={given[name]}" for name in ("media", "cache", "rerror", "werror", "discard") if name in given]
    parts += ["readonly=on"] if drive.flag("ro") else []
    for name, value in _LIMITS.items():
        if name in given:
            amount = int(float(given[name]) * 1024**2) if name.startswith("mbps") else int(given[name])
            parts.append(f"throttling.{value}={amount}")
    parts.sort(key=lambda part: part.startswith("throttling.bps"))
    parts += [f"format={image.format}"] if image is not None else []
    parts += ["cache=none"] if "cache" not in given and is_direct(drive) else []
    parts += [f"aio={engine(drive, image or Image('', 'raw'))}"]
    parts += [] if drive.is_cdrom else [f"detect-zeroes={_detect_zeroes(drive)}"]
    return ",".join(parts)


def _device(drive: Drive, image: Image | None, config: Config, parts: Chipset, bootindex: int | None) -> str:
    kind = "cd" if drive.is_cdrom else "hd"
    backend = [f"drive=drive-{drive.key}"] if image is not None or not parts.has_blockdev else []
    match drive.bus:
        case "virtio":
            words = ["virtio-blk-pci", *backend, f"id={drive.key}", _virtio_slot(drive.index)]
            words += [f"iothread=iothread-{drive.key}"] if drive.flag("iothread") else []
        case "scsi":
            words = [f"scsi-{kind}", _scsi_bus(drive, config), *backend, f"id={drive.key}"]
            words += [f"device_id=drive-{drive.key}"] if parts.has_blockdev else []
            words += ["rotation_rate=1"] if drive.flag("ssd") else []
            words += [f"{name}={drive.options[name]}" for name in ("vendor", "product", "wwn") if name in drive.options]
        case _:
            words = [f"ide-{kind}", _ide_bus(drive, parts), *backend, f"id={drive.key}"]
            words += [f"model={drive.options['model']}"] if "model" in drive.options else []
            words += ["rotation_rate=1"] if drive.flag("ssd") else []
            words += [f"wwn={drive.options['wwn']}"] if "wwn" in drive.options else []
    words += [f"bootindex={bootindex}"] if bootindex is not None else []
    words += [f"serial={drive.options['serial']}"] if "serial" in drive.options else []
    if parts.has_blockdev and not drive.is_cdrom:
        words.append(f"write-cache={'off' if drive.options.get('cache') in _WRITE_THROUGH else 'on'}")
        words += [f"{name}={drive.options[name]}" for name in ("rerror", "werror") if name in drive.options]
    return ",".join(words)


def _virtio_slot(index: int) -> str:
    return f"bus=pci.0,addr={10 + index:#x}" if index < 6 else f"bus=pci.2,addr={index - 5:#x}"


def _scsi_bus(drive: Drive, config: Config) -> str:
    kind = config.get("scsihw", "lsi")
    if kind == SINGLE:
        return f"bus=virtioscsi{drive.index}.0,channel=0,scsi-id=0,lun={drive.index}"
    number = scsi_controller(drive, kind)
    if kind.startswith("lsi") or kind == "pvscsi":
        return f"bus=scsihw{number}.0,scsi-id={drive.index % _LSI_DEVICES if kind != 'pvscsi' else drive.index}"
    return f"bus=scsihw{number}.0,channel=0,scsi-id=0,lun={drive.index}"


def _ide_bus(drive: Drive, parts: Chipset) -> str:
    if drive.bus == "sata":
        return f"bus=ahci0.{drive.index}"
    controller, unit = divmod(drive.index, 2)
    # q35's ports take one device each; the odd ones were moved behind the even ones.
    return f"bus=ide.{controller + 2 * unit},unit=0" if parts.q35 else f"bus=ide.{controller},unit={unit}"


def _json(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))
