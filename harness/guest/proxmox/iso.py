"""The guest's ISO on a storage of the node: uploaded once per image, and never booted if somebody else may have put it.

The API shows name, size and time of a file, but not its content. Whoever may upload ISOs could put another one there.
So this machine records the change time of what it has uploaded, which no upload can set. Anything else is left alone,
and the ISO is uploaded under another name.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.errors import LabUnavailable
from harness.events import Events, Note
from harness.files import write_stored
from harness.guest.proxmox.client import Client, Expected
from harness.lab.hosts import GuestFiles
from harness.lab.pin import TAG
from harness.signals import wait_until
from harness.untrusted import read_stored

UPLOAD_SECONDS = 600.0
CLOCK_SECONDS = 1.1
"""PVE shows times in whole seconds. After this time, another upload has another time."""
_DIGITS = 16
_RECORD = "uploaded.json"


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as PVE lists it: its size in bytes, and the time of its last change."""

    size: int
    changed: int


def ensure_iso(client: Client, storage: str, files: GuestFiles, events: Events) -> str:
    """The volume of the ISO on `storage`, with the content that this machine has uploaded.

    Raises LabUnavailable if the storage accepts no ISOs, PveError if the upload fails.
    """
    _require_isos(client, storage)
    record = files.iso.with_name(_RECORD)
    at = f"{client.spec.host}:{client.spec.port}/{client.spec.node}/{files.digest}"
    known, present = _read(record), _list_isos(client, storage)
    name = f"{TAG}-{files.digest[:_DIGITS]}"
    prefix = f"{storage}:iso/{name}"
    for volid, listed in present.items():
        if volid.startswith(prefix) and known.get(f"{at}/{volid}") == listed:
            return volid
    file = f"{name}.iso" if f"{prefix}.iso" not in present else f"{name}-{secrets.token_hex(4)}.iso"
    volid = f"{storage}:iso/{file}"
    events(Note(f"host {client.host}: uploading the guest's ISO to storage {storage}"))
    if (uploaded := _upload(client, storage, files, file)) is not None:
        others = {key: value for key, value in _read(record).items() if not key.startswith(f"{at}/{prefix}")}
        _write(record, {**others, f"{at}/{volid}": uploaded})
    return volid


def _upload(client: Client, storage: str, files: GuestFiles, name: str) -> Listed | None:
    """Upload the ISO under a name that no file has. Returns how PVE lists it once another upload would show."""
    volid = f"{storage}:iso/{name}"
    size = files.iso.stat().st_size

    def is_whole() -> bool:
        listed = _list_isos(client, storage).get(volid)
        return listed is not None and listed.size == size

    with tempfile.TemporaryDirectory(prefix="virt-overhead-") as directory:
        # PVE gives the volume the name of the file, which proxmoxer takes from the file object.
        link = Path(directory) / name
        link.symlink_to(files.iso)
        with link.open("rb") as content:
            client.task(
                "post",
                f"{client.node}/storage/{storage}/upload",
                # pveproxy accepts the fields only in this order: it refuses an algorithm after its checksum.
                {
                    "content": "iso",
                    "checksum-algorithm": "sha256",
                    "checksum": files.iso_sha256,
                    "filename": content,
                },
                is_done=is_whole,
                expected=Expected("imgcopy", ""),
                deadline=UPLOAD_SECONDS,
            )
    listed = _list_isos(client, storage).get(volid)
    end = time.monotonic() + CLOCK_SECONDS
    wait_until(lambda: time.monotonic() >= end, deadline=2 * CLOCK_SECONDS, every=CLOCK_SECONDS / 4)
    return listed if listed == _list_isos(client, storage).get(volid) else None


def _list_isos(client: Client, storage: str) -> dict[str, Listed]:
    listed = client.get(f"{client.node}/storage/{storage}/content", {"content": "iso"})
    return {str(volume["volid"]): Listed(int(volume["size"]), int(volume.get("ctime", 0))) for volume in listed}


def _read(record: Path) -> Mapping[str, Listed]:
    """What this machine has uploaded. A record that is missing or damaged only costs another upload."""
    return read_stored(record, dict[str, Listed]) or {}


def _write(record: Path, uploads: Mapping[str, Listed]) -> None:
    with suppress(OSError):  # of a cache that cannot be written
        write_stored(record, {key: asdict(listed) for key, listed in uploads.items()})


def _require_isos(client: Client, storage: str) -> None:
    entry = {str(listed["storage"]): listed for listed in client.get(f"{client.node}/storage")}.get(storage)
    if entry is None or "iso" not in str(entry.get("content", "")).split(","):
        raise LabUnavailable(
            f"host {client.host}: storage {storage} {'does not accept ISOs' if entry else 'does not exist'}",
            hint=f"set host.{client.host}.guest.iso_storage to a storage for ISOs; `pvesm status` lists storages",
        )
