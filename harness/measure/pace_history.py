"""What the last runs on each host took: a file in the user's cache directory, from which the next run is announced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

from harness.files import write_atomically
from harness.lab.inventory import HostSpec
from harness.scenario.paces import Pace

MOST_RUNS = 15
"""Runs of a host that are stored, the newest first."""
_FILE = TypeAdapter(dict[str, tuple[Pace, ...]])


def pace_file() -> Path:
    """The file with the paces of all hosts: VIRT_OVERHEAD_PACES, or one in the user's cache directory."""
    chosen = os.environ.get("VIRT_OVERHEAD_PACES")
    return Path(chosen) if chosen else user_cache_path("virt-overhead") / "paces.json"


def host_key(host: HostSpec) -> str:
    """What identifies a host in the file: its kind, and its name and address in the lab file."""
    if host.kind == "embedded":
        return "embedded"
    address = host.ssh.address if host.ssh is not None else ""
    return f"{host.kind} {host.name} {address}".strip()


def read_paces(host: HostSpec, path: Path | None = None) -> tuple[Pace, ...]:
    """What the last runs on the host took, the newest first; empty if nothing can be read."""
    return _read(path or pace_file()).get(host_key(host), ())


def add_pace(host: HostSpec, pace: Pace, path: Path | None = None) -> None:
    """Store what a run took. A cache that cannot be written is no error: the next run is announced without it."""
    path = path or pace_file()
    known: Mapping[str, Sequence[Pace]] = _read(path)
    runs = [pace, *known.get(host_key(host), ())][:MOST_RUNS]
    document = {name: [asdict(each) for each in several] for name, several in {**known, host_key(host): runs}.items()}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(document, indent=1))


def _read(path: Path) -> dict[str, tuple[Pace, ...]]:
    try:
        return _FILE.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return {}
