"""The guest's ISO on a storage of Proxmox VE: only what this machine has uploaded is booted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.events import Event, Events, Note
from harness.features.proxmox.backend import ensure_iso
from harness.features.proxmox.client import Client
from harness.image.manifest import sha256_of
from harness.lab.hosts import GuestFiles
from pve_double.server import serve
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_nodes import connected

NAME = "voh-0123456789abcdef"


@pytest.fixture
def client() -> Iterator[Client]:
    with serve(memory_node(cpus=4)) as serving, connected(serving) as connection:
        yield connection


@pytest.fixture
def files(tmp_path: Path) -> GuestFiles:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"G" * 65536)
    return GuestFiles("", "", tmp_path / "key", "", iso, sha256_of(iso), "0123456789abcdef0123")


def ensured(client: Client, files: GuestFiles) -> tuple[str, int]:
    """The volume, and how often it was uploaded."""
    heard: list[Event] = []
    volid = ensure_iso(client, "local", files, Events(heard.append))
    return volid, len([event for event in heard if isinstance(event, Note)])


def put(client: Client, directory: Path, name: str) -> None:
    """Another user uploads a file of the same size."""
    other = directory / "other" / name
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(b"E" * 65536)
    with other.open("rb") as content:
        parameters = {"content": "iso", "filename": content}
        client.task("post", "nodes/pve/storage/local/upload", parameters, is_done=lambda: True, deadline=60)


def test_an_iso_is_uploaded_once_per_image(client: Client, files: GuestFiles) -> None:
    assert ensured(client, files) == (f"local:iso/{NAME}.iso", 1)
    assert ensured(client, files) == (f"local:iso/{NAME}.iso", 0)


def test_an_iso_that_somebody_else_put_there_is_not_booted(client: Client, files: GuestFiles, tmp_path: Path) -> None:
    put(client, tmp_path, f"{NAME}.iso")
    volid, uploads = ensured(client, files)
    assert (volid.startswith(f"local:iso/{NAME}-"), uploads) == (True, 1)
    assert ensured(client, files) == (volid, 0)


def test_an_iso_that_was_replaced_after_the_upload_is_not_booted(
    client: Client, files: GuestFiles, tmp_path: Path
) -> None:
    volid, _ = ensured(client, files)
    put(client, tmp_path, volid.rpartition("/")[2])
    again, uploads = ensured(client, files)
    assert (again != volid, uploads) == (True, 1)


def test_what_another_machine_has_uploaded_is_not_trusted(client: Client, files: GuestFiles) -> None:
    volid, _ = ensured(client, files)
    files.iso.with_name("uploaded.json").write_text("{")
    again, uploads = ensured(client, files)
    assert (again != volid, uploads) == (True, 1)
