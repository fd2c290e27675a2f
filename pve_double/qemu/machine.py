"""One VM: its configuration, what is pending of it, its snapshots, and its process."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from pve_double import schema
from pve_double.errors import PveError
from pve_double.formats import parse
from pve_double.schema import BadFormat, Schema

Config = dict[str, str]
_INTERNAL = ("meta", "parent", "runningcpu", "runningmachine", "running-nets-host-mtu", "vmstate")
"""Options that PVE keeps for itself: its API takes them away, but does not set them."""
CONFIG_PATH = "/nodes/{node}/qemu/{vmid}/config"


@dataclass(slots=True)
class Process:
    """A running QEMU. `answers_from` is time.monotonic() of the guest agent's first answer."""

    pid: int
    config: Config
    answers_from: float
    started: float = field(default_factory=time.monotonic)
    paused: bool = False


@dataclass(slots=True)
class Snapshot:
    config: Config
    taken: int
    description: str = ""
    state: str = ""


@dataclass(slots=True)
class VmBackup:
    """The last backup of a VM, as its QEMU knows it."""

    uuid: str
    path: str
    started: float
    total: int
    transferred: int = 0
    status: str = "active"

    def text(self) -> str:
        """What `info backup` prints."""
        share = self.transferred * 100 // self.total if self.total else 0
        lines = [
            f"Backup status: {self.status}",
            f"Start time: {time.ctime(self.started)}",
            f"Backup file: {self.path}",
            f"Backup uuid: {self.uuid}",
            f"Total size: {self.total}",
            f"Transferred bytes: {self.transferred} ({share}%)",
            "Zero bytes: 0 (0%)",
        ]
        return "".join(f"{line}\r\n" for line in lines)


@dataclass(slots=True)
class Machine:
    """`config` is what applies now, `pending` and `deletions` what waits; `deletions` say whether by force."""

    vmid: int
    config: Config
    pending: Config = field(default_factory=dict)
    deletions: dict[str, bool] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    process: Process | None = None

    @property
    def name(self) -> str:
        return self.config.get("name", f"VM {self.vmid}")

    @property
    def digest(self) -> str:
        """SHA-1 over all that the configuration file holds."""
        held = [self.config, self.pending, self.deletions, {name: each.config for name, each in self.snapshots.items()}]
        return hashlib.sha1(json.dumps(held, sort_keys=True).encode(), usedforsecurity=False).hexdigest()

    @property
    def with_pending(self) -> Config:
        """The configuration as it will be once what is pending is applied."""
        kept = {name: value for name, value in self.config.items() if name not in self.deletions}
        return kept | self.pending

    @property
    def is_template(self) -> bool:
        return self.config.get("template") == "1"

    def check_lock(self) -> None:
        if lock := self.config.get("lock"):
            raise PveError(f"VM is locked ({lock})")

    def check_digest(self, digest: str | None) -> None:
        if digest and digest != self.digest:
            raise PveError("checksum mismatch (file change by other user?)")

    def check_unmodified(self, digest: str | None, prefix: str = "") -> None:
        """As `check_digest`, where qemu-server leaves the words to PVE::Tools::assert_if_modified."""
        if digest and digest != self.digest:
            raise PveError(f"{prefix}detected modified configuration - file changed by other user? Try again.")

    def check_protection(self, what: str) -> None:
        if self.config.get("protection") == "1":
            raise PveError(f"{what} - protection mode enabled")

    def drop_nothing_pending(self) -> None:
        """Forget pending values that are what applies already, and deletions of what is not set."""
        self.pending = {name: value for name, value in self.pending.items() if self.config.get(name) != value}
        self.deletions = {name: force for name, force in self.deletions.items() if name in self.config}


def option_schemas() -> dict[str, Schema]:
    """Every option of a VM's configuration with its schema."""
    parameters = schema.document()["paths"][CONFIG_PATH]["PUT"]["parameters"]
    own = {"node", "vmid", "digest", "delete", "revert", "force", "skiplock", "background_delay", "cdrom"}
    spread = schema.spread({name: each for name, each in parameters.items() if name not in own})
    return spread | {name: {"type": "string"} for name in _INTERNAL} | {"snaptime": {"type": "integer"}}


_SCHEMAS = option_schemas()


def is_option(name: str) -> bool:
    return name in _SCHEMAS


def presented(config: Config) -> dict[str, Any]:
    """A configuration as GET config answers: whole numbers and booleans as numbers, the password hidden."""
    shown: dict[str, Any] = {}
    for name, value in config.items():
        kind = _SCHEMAS.get(name, {}).get("type")
        shown[name] = int(value) if kind in {"integer", "boolean"} and value.lstrip("-").isdigit() else value
        if kind == "number":
            shown[name] = float(value)
    if "cipassword" in shown:
        shown["cipassword"] = "**********"
    return shown


def boot_order(config: Config) -> list[str]:
    """The devices a VM boots from, in order; none where the order is a legacy one."""
    try:
        order = parse("pve-qm-boot", config.get("boot", "").strip()).get("order", "")
    except BadFormat:
        return []
    return schema.split_list(order)


def printed_boot_order(devices: list[str]) -> str:
    return f"order={';'.join(devices)}" if devices else " "


def memory_mib(config: Config) -> int:
    return int(parse({"named": "memory"}, config.get("memory", "512")).get("current", "512"))


def cpus(config: Config) -> int:
    return int(config.get("sockets", "1")) * int(config.get("cores", "1"))


def agent_enabled(config: Config) -> bool:
    return parse({"named": "agent"}, config.get("agent", "0")).get("enabled") == "1"
