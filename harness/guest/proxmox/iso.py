"""The guest's ISO on a storage of the node: uploaded once per image, and checked by its checksum."""

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
    """The volume of the ISO on `storage`. Raises LabUnavailable if it accepts no ISOs, PveError if the upload fails."""
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
        # PVE gives the volume the name of the file, which proxmoxer takes from the file object.
        link = Path(directory) / name
        link.symlink_to(files.iso)
        with link.open("rb") as content:
            client.task(
                "post",
                f"{path}/upload",
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
    return volid


def _require_isos(client: Client, storage: str) -> None:
    found = {str(each["storage"]): each for each in client.get(f"{client.node}/storage")}.get(storage)
    if found is None or "iso" not in str(found.get("content", "")).split(","):
        raise LabUnavailable(
            f"host {client.host}: storage {storage} {'does not accept ISOs' if found else 'does not exist'}",
            hint=f"set host.{client.host}.guest.iso_storage to a storage for ISOs; `pvesm status` lists storages",
        )
