"""The named formats of values: what PVE registers for them, and its words where a value is refused."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from pve_double import schema
from pve_double.cpu_models import REPORTED_MODELS, check_vm_cpu
from pve_double.privileges import PRIVILEGES
from pve_double.schema import COUNTS, BadFormat, Schema, split_list

VOLUME_ID = re.compile(r"([a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]):(.+)")
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REALM = "[A-Za-z][A-Za-z0-9._-]+"
_USER_ID = rf"[^\s:/]+@{_REALM}"
_TEXT: dict[str, Any] = {"type": "string", "optional": 1}
_FLAG: dict[str, Any] = {"type": "boolean", "optional": 1}
_PCI_HOST = r"(?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?"

PROPERTY_STRINGS: Mapping[str, Mapping[str, Any]] = {
    "pve-qm-boot": {
        "legacy": _TEXT | {"pattern": "[acdn]{1,4}", "default_key": 1},
        "order": _TEXT | {"format": "pve-qm-bootdev-list"},
    },
    "pve-qm-ipconfig": {
        "ip": _TEXT | {"format": "pve-ipv4-config"},
        "gw": _TEXT | {"format": "ipv4", "requires": "ip"},
        "ip6": _TEXT | {"format": "pve-ipv6-config"},
        "gw6": _TEXT | {"format": "ipv6", "requires": "ip6"},
    },
    "pve-vm-cpu-conf": {
        "cputype": _TEXT | {"default_key": 1},
        "reported-model": _TEXT | {"enum": REPORTED_MODELS},
        "hidden": _FLAG,
        "hv-vendor-id": _TEXT | {"pattern": "[a-zA-Z0-9]{1,12}"},
        "flags": _TEXT | {"pattern": r"[+-][a-zA-Z0-9\-_.]+(;[+-][a-zA-Z0-9\-_.]+)*"},
        "phys-bits": _TEXT | {"format": "pve-phys-bits"},
        "guest-phys-bits": {"type": "integer", "minimum": 32, "maximum": 64, "optional": 1},
    },
    "pve-qm-hostpci": {
        "host": _TEXT | {"pattern": f"{_PCI_HOST}(;{_PCI_HOST})*", "default_key": 1},
        "mapping": _TEXT | {"format": "pve-configid"},
        "rombar": _FLAG,
        "romfile": _TEXT | {"pattern": r"[^,;]+"},
        "pcie": _FLAG,
        "x-vga": _FLAG,
        "legacy-igd": _FLAG,
        "mdev": _TEXT | {"pattern": r"[^/\.:]+"},
        "driver": _TEXT | {"enum": ["vfio", "keep"]},
        **{name: _TEXT | {"pattern": "0x[0-9a-fA-F]{4}"} for name in ("vendor-id", "device-id")},
        **{name: _TEXT | {"pattern": "0x[0-9a-fA-F]{4}"} for name in ("sub-vendor-id", "sub-device-id")},
    },
    "pve-qm-smbios1": {
        "uuid": _TEXT | {"pattern": "[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}"},
        **{
            name: _TEXT | {"pattern": r"[A-Za-z0-9+\/]+={0,2}"}
            for name in ("version", "serial", "manufacturer", "product", "sku", "family")
        },
        "base64": _FLAG,
    },
    "pve-qm-watchdog": {
        "model": _TEXT | {"enum": ["i6300esb", "ib700"], "default_key": 1},
        "action": _TEXT | {"enum": ["reset", "shutdown", "poweroff", "pause", "debug", "none"]},
    },
    "pve-qm-rng": {
        "source": {"type": "string", "enum": ["/dev/urandom", "/dev/random", "/dev/hwrng"], "default_key": 1},
        "max_bytes": {"type": "integer", "optional": 1},
        "period": {"type": "integer", "optional": 1},
    },
    "pve-qemu-sev-fmt": {
        "type": {"type": "string", "enum": ["std", "es", "snp"], "maxLength": 3, "default_key": 1},
        **dict.fromkeys(("no-debug", "no-key-sharing", "allow-smt", "kernel-hashes"), _FLAG),
    },
    "pve-qemu-tdx-fmt": {
        "type": {"type": "string", "enum": ["tdx"], "default_key": 1},
        "attestation": _FLAG,
        "vsock-cid": {"type": "integer", "minimum": 2, "optional": 1},
        "vsock-port": {"type": "integer", "minimum": 0, "optional": 1},
    },
    "pve-qm-cicustom": {name: _TEXT | {"format": "pve-volume-id"} for name in ("meta", "network", "user", "vendor")},
}


def parse(format_: str | Schema, text: str, path: str = "") -> dict[str, str]:
    """A property string by the name of its format or by its properties. Raises BadFormat."""
    if isinstance(format_, str):
        format_ = PROPERTY_STRINGS[format_]
    elif "named" in format_:
        format_ = schema.named_format(str(format_["named"]))
    return schema.parse_property_string(format_, text, path, check)


def check(format_: str | Schema, text: str, path: str) -> None:
    """Raises BadFormat where `text` is not of this format; formats that nothing here needs accept all."""
    if not isinstance(format_, str) or format_ in PROPERTY_STRINGS:
        values = parse(format_, text, path)
        if format_ == "pve-vm-cpu-conf":
            check_vm_cpu(values)
    elif format_ == "pve-qm-ide":
        parse(schema.named_format("ide[n]"), text, path)
    elif format_ in SINGLE:
        SINGLE[format_](text)
    elif (stem := format_.removesuffix("-list")) in SINGLE:
        for each in split_list(text):
            SINGLE[stem](each)
    elif (stem := format_.removesuffix("-opt")) in SINGLE and text not in {"", "0"}:
        SINGLE[stem](text)


def _pattern(pattern: str, message: str) -> Callable[[str], None]:
    """`message` may name the value as {}."""

    def verify(text: str) -> None:
        if not re.fullmatch(pattern, text):
            raise BadFormat(message.format(text) + "\n")

    return verify


def _among(allowed: Set[str], message: str) -> Callable[[str], None]:
    def verify(text: str) -> None:
        if text not in allowed:
            raise BadFormat(message.format(text) + "\n")

    return verify


def _numbered(*stems: str) -> frozenset[str]:
    return frozenset(f"{stem}{index}" for stem in stems for index in range(COUNTS[stem]))


def _either(*checks: Callable[[str], None], message: str) -> Callable[[str], None]:
    def verify(text: str) -> None:
        for each in checks:
            try:
                each(text)
            except BadFormat:
                continue
            return
        raise BadFormat(message.format(text) + "\n")

    return verify


def _address(kind: type[ipaddress.IPv4Address | ipaddress.IPv6Address], message: str) -> Callable[[str], None]:
    def verify(text: str) -> None:
        try:
            kind(text)
        except ValueError:
            raise BadFormat(message + "\n") from None

    return verify


def _network(
    kind: type[ipaddress.IPv4Interface | ipaddress.IPv6Interface], longest: int, message: str
) -> Callable[[str], None]:
    def verify(text: str) -> None:
        _, _, bits = text.partition("/")
        try:
            kind(text)
        except ValueError:
            raise BadFormat(message + "\n") from None
        if not bits.isdigit() or not 8 <= int(bits) <= longest:
            raise BadFormat(message + "\n")

    return verify


def _disk_size(text: str) -> None:
    if parse_size(text) is None:
        raise BadFormat(f"value does not look like a valid disk size: {text}\n")


def parse_size(text: str) -> int | None:
    """Bytes of `512M`, `1.5G` and the like; None where it is no size."""
    match = re.fullmatch(r"(\d+(\.\d+)?)([KMGT])?", text)
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** " KMGT".index(match[3] or " "))


def format_size(size_bytes: int) -> str:
    """The largest unit that says it without a fraction, as PVE writes sizes of drives."""
    unit = 0
    while size_bytes % 1024 == 0 and unit < 4 and size_bytes:
        size_bytes //= 1024
        unit += 1
    return f"{size_bytes}{['', 'K', 'M', 'G', 'T'][unit]}"


def _hotplug(text: str) -> None:
    for word in [] if text in {"0", "1"} else split_list(text):
        if word not in {"network", "disk", "usb", "cpu", "memory", "cloudinit"}:
            raise BadFormat(f"invalid hotplug feature '{word}'\n")


def _startup(text: str) -> None:
    # Perl takes both an empty text and 0 for false, and PVE an order that is false for none.
    parts = [part for part in text.split(",") if part.strip()]
    if text in {"", "0"} or not all(re.fullmatch(r"(order=)?\d+|up=\d+|down=\d+", part) for part in parts):
        raise BadFormat("unable to parse startup options\n")


def _zfs_block_size(text: str) -> None:
    match = re.fullmatch(r"([1-9][0-9]*)([km])?", text, re.IGNORECASE)
    if match is None:
        raise BadFormat(
            f"invalid ZFS blocksize format '{text}'. Use a positive number (no leading zeros) with an optional "
            "'k' or 'm' suffix.\n"
        )
    size = int(match[1]) * {"k": 1024, "m": 1024**2}.get((match[2] or "").lower(), 1)
    if not 512 <= size <= 16 * 1024**2 or size & (size - 1):
        raise BadFormat(
            f"value '{text}' is not a valid ZFS blocksize. Must be a power of 2 between 512B and 16MiB (e.g., 4k, 8k, "
            "16k, 64k, 1m).\n"
        )


def _user_id(text: str) -> None:
    if len(text) < 3:
        raise BadFormat(f"user name '{text}' is too short\n")
    if len(text) > 64:
        raise BadFormat(f"user name '{text}' is too long ({len(text)} > 64)\n")
    if not re.fullmatch(_USER_ID, text):
        raise BadFormat(f"value '{text}' does not look like a valid user name\n")


BOOT_DISKS = _numbered("ide", "scsi", "virtio", "sata")
_volume_id = _pattern(VOLUME_ID.pattern, "unable to parse volume ID '{}'")
_absolute_or_volume = _either(_pattern("/.*", ""), _volume_id, message="unable to parse volume ID '{}'")
_ipv4_network = _network(ipaddress.IPv4Interface, 32, "value does not look like a valid IPv4 CIDR network")
_ipv6_network = _network(ipaddress.IPv6Interface, 128, "value does not look like a valid IPv6 CIDR network")
_ipv4 = _address(ipaddress.IPv4Address, "value does not look like a valid IPv4 address")
_ipv6 = _address(ipaddress.IPv6Address, "value does not look like a valid IPv6 address")
_dns_name = _pattern(rf"({_LABEL}\.)*{_LABEL}", "value does not look like a valid DNS name")

SINGLE: Mapping[str, Callable[[str], None]] = {
    "pve-vmid": _pattern("[1-9][0-9]{2,8}", "value does not look like a valid VM ID"),
    "pve-node": _pattern(_LABEL, "value does not look like a valid node name"),
    "pve-storage-id": _pattern("[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]", "storage ID '{}' contains illegal characters"),
    "pve-configid": _pattern("[a-zA-Z][a-zA-Z0-9_-]+", "invalid configuration ID '{}'"),
    "pve-poolid": _pattern(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}", "pool name '{}' contains invalid characters"),
    "pve-bridge-id": _pattern(r"[-_.\w]+", "invalid bridge ID '{}'"),
    "pve-iface": _pattern(r"[a-zA-Z][a-zA-Z0-9_]{1,20}([:.]\d+)?", "invalid network interface name '{}'"),
    "pve-tag": _pattern(r"[a-zA-Z0-9_][a-zA-Z0-9_+.-]*", "invalid characters in tag"),
    "pve-volume-id": _volume_id,
    "pve-volume-id-or-absolute-path": _absolute_or_volume,
    "pve-volume-id-or-qm-path": _either(
        _pattern("none|cdrom", ""), _absolute_or_volume, message="unable to parse volume ID '{}'"
    ),
    "pve-qm-bootdev": _among(BOOT_DISKS | _numbered("net", "usb", "hostpci"), "invalid boot device '{}'"),
    "pve-qm-bootdisk": _among(BOOT_DISKS | {"efidisk0", "tpmstate0"}, "invalid boot disk '{}'"),
    "pve-cpuset": _pattern(r"\d+(-\d+)?(,\d+(-\d+)?)*", "unable to parse cpuset option"),
    "pve-phys-bits": _pattern(r"host|0?[89]|[1-5]\d|6[0-4]", "value must be an integer between 8 and 64 or 'host'"),
    "pve-userid": _user_id,
    "pve-tokenid": _pattern(f"{_USER_ID}!{_REALM}", "value '{}' does not look like a valid token ID"),
    "pve-groupid": _pattern(r"[A-Za-z0-9._-]+", "group name '{}' contains invalid characters"),
    "pve-roleid": _pattern(r"[A-Za-z0-9._-]+", "role name '{}' contains invalid characters"),
    "pve-priv": _among(PRIVILEGES, "invalid privilege '{}'"),
    "email": _pattern(r"[\w+.~-]+@[a-zA-Z0-9.-]+", "value does not look like a valid email address"),
    "pve-storage-content": _pattern(
        "images|rootdir|vztmpl|iso|backup|snippets|import|none", "invalid content type '{}'"
    ),
    "pve-storage-zfs-blocksize": _zfs_block_size,
    "pve-storage-path": _pattern("/.*", "value does not look like a valid absolute path"),
    "pve-storage-vgname": _pattern("[a-zA-Z0-9+._-]+", "lvm name '{}' contains illegal characters"),
    "pve-task-status-type": _pattern("(?i)ok|error|warning|unknown", "invalid status '{}'"),
    "pve-hotplug-features": _hotplug,
    "pve-startup-order": _startup,
    "pve-ipv4-config": _either(
        _pattern("dhcp|manual", ""),
        _ipv4_network,
        message="value does not look like a valid ipv4 network configuration",
    ),
    "pve-ipv6-config": _either(
        _pattern("auto|dhcp|manual", ""),
        _ipv6_network,
        message="value does not look like a valid ipv6 network configuration",
    ),
    "urlencoded": _pattern(r"[-%a-zA-Z0-9_.!~*'()]*", "invalid urlencoded string: {}"),
    "mac-addr": _pattern(
        "(?i)[a-f0-9][02468ace](:[a-f0-9]{2}){5}", "value does not look like a valid unicast MAC address"
    ),
    "dns-name": _dns_name,
    "address": _either(_ipv4, _ipv6, _dns_name, message="value does not look like a valid address: {}"),
    "ipv4": _ipv4,
    "ipv6": _ipv6,
    "CIDRv4": _ipv4_network,
    "CIDRv6": _ipv6_network,
    "CIDR": _either(_ipv4_network, _ipv6_network, message="value does not look like a valid CIDR network"),
    "disk-size": _disk_size,
}
