"""Hosts for `virt-overhead init`: LVM or ZFS are programs of the tests, disks and mounts are played."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.features.init import offers
from harness.lab.guard import writable as probes
from harness.lab.guard.writable import PROBES
from harness.lab.transport.base import Completed
from tests.unit.storage_doubles import GIB, LvmHost, ProgramHost, ZfsHost

BY_ID = "/dev/disk/by-id"
_SHOWN = {"mounts": "/dev/sda1 on /srv", "swaps": "/dev/sda2", "holders": "sda3 by dm-0 (pve-root), LVM"}


@dataclass
class PlayedDisk:
    """A disk as the host's commands show it. `found` has what a probe of the guard finds, `failed` why one fails."""

    name: str
    serials: Sequence[str] = ("PHM1",)
    links: Sequence[str] = ("nvme-INTEL_SSDPED1D280GA_PHM1", "nvme-INTEL_SSDPED1D280GA_PHM1_1", "nvme-eui.5cd2")
    model: str = "INTEL SSDPED1D280GA"
    found: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def listed(self) -> str:
        lines = [f"disk\t{self.name}", *(f"serial\t{each}" for each in self.serials)]
        return "".join(f"{line}\n" for line in [*lines, *(f"link\t{BY_ID}/{each}" for each in self.links)])

    @property
    def facts(self) -> str:
        values = {"exists": "1", "size": str(280 * 10**9 // 512), "device/model": self.model, "rotational": "0"}
        return "".join(f"{self.name}\t{key}\t{value}\n" for key, value in values.items())

    @property
    def evidence(self) -> str:
        whole = {"path": f"/dev/{self.name}", "kname": self.name, "name": self.name, "type": "disk", "ro": False}
        said = dict.fromkeys(("backing", *PROBES), "")
        said |= {"device": f"/dev/{self.name}", "facts": f"8:16\t95\t{GIB // 512}\tid"}
        said |= {"serials": " ".join(self.serials), "contents": "0 0", "left": "none"}
        said |= {"block": json.dumps({"blockdevices": [whole]}), **self.found}
        lines = [f"{key}\t0\t{quote(value)}\n" for key, value in said.items() if key not in self.failed]
        return "".join([*lines, *(f"{key}\t1\t{quote(value)}\n" for key, value in self.failed.items())])


class InitHost:
    """A host of `init`, on top of a ProgramHost. `mounts` has the file systems, `pools` the pools of libvirt in XML."""

    def __init__(self, host: ProgramHost, *played: PlayedDisk) -> None:
        self.name = host.name
        self.host = host
        self.user = "0"
        self.played = {each.name: each for each in played}
        self.mounts: list[dict[str, str]] = []
        self.pools: dict[str, str] = {}
        self.answers: dict[str, Completed] = {}
        """What a program answers instead, by its name."""
        self.images = False
        for name in ("findmnt", "df"):
            self.tool(
                name,
                "case $* in *avail*) echo; echo 107374182400 53687091200 ext4 /dev/sdb1;; "
                "*) echo ext4 rw /dev/sdb1;; esac",
            )

    def tool(self, name: str, script: str) -> None:
        command = Path(self.host._environment["PATH"].partition(os.pathsep)[0]) / name
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        text = self._printed(list(argv), stdin)
        if isinstance(text, Completed):
            return text
        if text is not None:
            return Completed(tuple(argv), 0, text, "")
        return self.host.run(argv, deadline=deadline, stdin=stdin, check=check)

    def _printed(self, argv: list[str], stdin: str | bytes | None) -> str | Completed | None:
        if stdin == offers._LIST:
            return "".join(each.listed for each in self.played.values())
        if argv[0] == "perl":
            return "".join(each.facts for each in self.played.values())
        if argv[:3] == ["sh", "-c", probes.INSPECT]:
            return self.played[argv[4].rpartition("/")[2]].evidence
        if argv[0] == "id":
            return f"{self.user}\n"
        if argv[0] == "test":
            return Completed(tuple(argv), 0 if argv[2] == offers.IMAGES and self.images else 1, "", "")
        return self._of_program(argv[4:]) if argv[:3] == ["sh", "-c", offers._IF_INSTALLED] else None

    def _of_program(self, argv: list[str]) -> str | Completed | None:
        if argv[0] in self.answers:
            return self.answers[argv[0]]
        if argv[0] == "findmnt":
            return json.dumps({"filesystems": self.mounts})
        if argv[0] == "virsh":
            return "\n".join(self.pools) if "pool-list" in argv else self.pools[argv[-1]]
        if argv[0] == "zfs" and isinstance(self.host, LvmHost):
            return ""
        if argv[0] in ("vgs", "lvs") and isinstance(self.host, ZfsHost):
            return ""
        return None

    def mount(self, target: Path | str, source: str = "/dev/sdb1", kind: str = "ext4") -> None:
        self.mounts.append({"target": str(target), "source": source, "fstype": kind})

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise AssertionError(f"init copies nothing: {source} to {target} within {deadline} s")

    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> Any:
        raise AssertionError(f"init holds nothing: {argv}, {what} within {deadline} s")

    def close(self) -> None:
        """Nothing is open."""


def failing(said: str) -> Completed:
    """A command that failed with this on standard error."""
    return Completed((), 5, "", said)


def pool_xml(kind: str, where: str) -> str:
    """A pool of libvirt of this type; `where` is an element and its value."""
    return f"<pool type='{kind}'>{where}</pool>"


def in_use(probe: str) -> Mapping[str, str]:
    return {probe: _SHOWN[probe]}
