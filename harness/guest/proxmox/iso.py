"""The guest's ISO on a storage of the node: uploaded once per image, and checked there against its checksum."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.errors import LabUnavailable
from harness.events import Events, Note
from harness.guest.proxmox.client import Client, Expected
from harness.lab.hosts import GuestFiles
from harness.lab.paths import TAG

UPLOAD_SECONDS = 600.0
_DIGITS = 16


def ensure_iso(client: Client, storage: str, files: GuestFiles, events: Events) -> str:
    """The volume of the ISO on `storage`. Raises LabUnavailable where that takes none, PveError where it fails."""
    name = f"{TAG}-{files.digest[:_DIGITS]}.iso"
    volid = f"{storage}:iso/{name}"
    path = f"{client.node}/storage/{storage}"
    size = files.iso.stat().st_size

    def is_whole() -> bool:
        listed = client.get(f"{path}/content", {"content": "iso"})
        return any(each["volid"] == volid and int(each["size"]) == size for each in listed)

    _require_isos(client, storage)
    if is_whole():
        return volid
    events(Note(f"host {client.host}: uploading the guest's ISO to storage {storage}"))
    with tempfile.TemporaryDirectory(prefix="virt-overhead-") as directory:
        # PVE calls the volume as the file is called, and proxmoxer asks the file for its name.
        link = Path(directory) / name
        link.symlink_to(files.iso)
        with link.open("rb") as content:
            client.task(
                "post",
                f"{path}/upload",
                # pveproxy reads the fields in this order alone: an algorithm after its checksum is refused.
                {
                    "content": "iso",
                    "checksum-algorithm": "sha256",
                    "checksum": files.iso_sha256,
                    "filename": content,
                },
                seen=is_whole,
                expected=Expected("imgcopy", ""),
                deadline=UPLOAD_SECONDS,
            )
    return volid


def _require_isos(client: Client, storage: str) -> None:
    found = {str(each["storage"]): each for each in client.get(f"{client.node}/storage")}.get(storage)
    if found is None or "iso" not in str(found.get("content", "")).split(","):
        raise LabUnavailable(
            f"host {client.host}: storage {storage} {'takes no ISOs' if found else 'is not there'}",
            hint=f"name one with the content iso as host.{client.host}.guest.iso_storage; `pvesm status` lists them",
        )
