"""The calls about a node's storages and the volumes on them."""

from __future__ import annotations

import hashlib
import http.client
import re
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

from pve_double.api.call import Call, Handler
from pve_double.errors import PveError, bad_parameters
from pve_double.qemu.volumes import Request, check_volume_access
from pve_double.storage.store import DEFAULT_FORMAT, QCOW2_MAGIC
from pve_double.storage.volumes import FILE_FORMATS, is_volume_id, normalized_file_name, split_volume_id
from pve_double.tasks import TaskLog

_STORAGE = "/nodes/{node}/storage"
_UPLOADS = {
    "iso": (r"[^/]+\.(?i:iso|img)", "wrong file extension"),
    "vztmpl": (r"[^/]+\.tar\.(gz|xz|zst|bz2)", "wrong file extension"),
    "import": (r"[a-zA-Z0-9.+=_-]+\.(ova|qcow2|raw|vmdk)", "invalid filename or wrong extension"),
}
_BLOCK = 512
_MAGIC = {"qcow2": QCOW2_MAGIC, "vmdk": b"KDMV"}
"""How the image files that have a header begin."""


def list_storages(call: Call) -> list[dict[str, Any]]:
    wanted, target = call.text("storage"), call.text("target", call.node.name)
    found = list(call.node.store.statuses(content=call.text("content") or None))
    if wanted and wanted not in {each["storage"] for each in found}:
        raise bad_parameters({"storage": "No such storage."})
    if target not in {call.node.name, "localhost"}:
        # No storage of the double is shared with another node.
        return []
    return [
        each | (_formats(call, each["storage"]) if call.flag("format") else {})
        for each in found
        if wanted in {"", each["storage"]}
        and (each["enabled"] or not call.flag("enabled"))
        and may_see(call, each["storage"])
    ]


def _formats(call: Call, storage: str) -> dict[str, Any]:
    formats = sorted(FILE_FORMATS) if call.node.store.config(storage).path else [DEFAULT_FORMAT]
    return {"formats": {"supported": formats, "default": DEFAULT_FORMAT}}


def may_see(call: Call, storage: str) -> bool:
    seeing = ["Datastore.Audit", "Datastore.AllocateSpace"]
    return call.node.permissions.has(call.user, f"/storage/{storage}", seeing, any_of=True)


def storage_status(call: Call) -> dict[str, Any]:
    storage = call.node.store.storages.get(call.text("storage"))
    if storage is None:
        raise bad_parameters({"storage": "No such storage."})
    shown = call.node.store.status(storage)
    return {name: value for name, value in shown.items() if name not in {"storage", "used_fraction"}}


def list_content(call: Call) -> list[dict[str, Any]]:
    store = call.node.store
    storage = store.enabled(call.text("storage"))
    vmid = call.vmid if "vmid" in call.params else None
    found = store.of(storage.id, vmid=vmid, content=call.text("content") or None)
    return [store.listing(volume) for volume in found if _may_use(call, volume.id)]


def _may_use(call: Call, volid: str) -> bool:
    try:
        check_volume_access(Request(call.node, call.user, 0), volid)
    except PveError:
        return False
    return True


def allocate(call: Call) -> str:
    name, size = call.text("filename"), call.text("size")
    format_ = call.text("format") or None
    if match := re.search(r"\.(raw|qcow2|vmdk)$", name):
        if format_ not in {None, match[1]}:
            raise bad_parameters({"format": f"different storage formats ({format_} != {match[1]})"})
        format_ = match[1]
    size_bytes = int(size.rstrip("MG")) * {"M": 1024**2, "G": 1024**3}.get(size[-1], 1024)
    return call.node.store.allocate(
        call.text("storage"), call.vmid, TaskLog(), size_bytes=size_bytes, format_=format_, name=name
    )


def _volume_id(call: Call) -> str:
    volume, storage = call.text("volume"), call.text("storage")
    if not is_volume_id(volume):
        return f"{storage}:{volume}"
    if (named := split_volume_id(volume)[0]) != storage:
        raise bad_parameters({"volume": f"storage ID mismatch ({named} != {storage})\n"})
    return volume


def volume_info(call: Call) -> dict[str, Any]:
    volid = _volume_id(call)
    check_volume_access(Request(call.node, call.user, 0), volid)
    path, named = call.node.store.path(volid), call.node.store.parse(volid)
    storage = call.node.store.config(split_volume_id(volid)[0])
    volume = call.node.store.volumes.get(volid)
    if volume is None and storage.vgname:
        raise PveError(f"can't get size of '{path}':   Failed to find logical volume \"{path.removeprefix('/dev/')}\"")
    if volume is None:
        raise PveError(f"volume_size_info on '{volid}' failed - no format")
    if not volume.size_bytes:
        raise PveError(f"volume '{volid}' has size zero")
    # What is written of a logical volume PVE does not ask for.
    size = -(-volume.size_bytes // _BLOCK) * _BLOCK
    used = call.node.store.allocated_bytes(volume) if storage.path else 0
    return {"path": path, "size": size, "used": used, "format": named.format}


def describe_volume(call: Call) -> None:
    """PUT content/{volume}: only backups, which the double has none of, have notes and can be protected."""
    volid = _volume_id(call)
    check_volume_access(Request(call.node, call.user, 0), volid)
    storage = call.node.store.config(split_volume_id(volid)[0])
    for attribute in (name for name in ("notes", "protected") if name in call.params):
        if storage.path:
            raise PveError(f"only backups support attribute '{attribute}'")
        raise PveError(f"attribute '{attribute}' is not supported for storage type '{storage.kind}'")


def delete_volume(call: Call) -> str | None:
    volid = _volume_id(call)
    named = call.node.store.parse(volid)
    storage, _ = split_volume_id(volid)
    volume = call.node.store.volumes.get(volid)
    if volume is not None and volume.content == "backup" and volume.vmid is not None:
        call.node.permissions.require(call.user, f"/storage/{storage}", ["Datastore.AllocateSpace"])
        call.node.permissions.require(call.user, f"/vms/{volume.vmid}", ["VM.Backup"])
        named = replace(named, vmid=volume.vmid)
    else:
        call.node.permissions.require(call.user, f"/storage/{storage}", ["Datastore.Allocate"])

    def work(log: TaskLog) -> None:
        call.node.store.free(volid, log)
        log.line(f"Removed volume '{volid}'")

    owner = "" if named.vmid is None else f"{named.vmid}@"
    upid = call.node.tasks.start("imgdel", f"{owner}{storage}", call.user, work)
    task = call.node.tasks.find(upid)
    if "delay" in call.params and task.done.wait(call.node.pace.real(call.number("delay", 1))):
        if task.exitstatus != "OK":
            raise PveError(str(task.exitstatus))
        return None
    return upid


def _file_name(call: Call) -> str:
    content, name = call.text("content"), normalized_file_name(call.text("filename"))
    pattern, refusal = _UPLOADS[content]
    if not re.fullmatch(pattern, name):
        raise bad_parameters({"filename": refusal})
    return name


def _check_image(file: Path, name: str) -> None:
    """An image that is uploaded has to be what its name says: PVE asks qemu-img."""
    magic = _MAGIC.get(name.rpartition(".")[2])
    with file.open("rb") as content:
        if magic is not None and content.read(len(magic)) != magic:
            kind = name.rpartition(".")[2]
            raise PveError(
                f"file_size_info: '/usr/bin/qemu-img info' failed for '{file}': Image is not in {kind} format"
            )


def upload(call: Call) -> str:
    # Not proxied: the node that is asked copies the file to the other one.
    store = call.node.peers.get(call.text("node"), call.node).store
    storage = store.enabled(call.text("storage"))
    if not storage.path:
        raise PveError(f"can't upload to storage type '{storage.kind}'")
    if call.file is None:
        raise PveError("missing temporary file name")
    name, source, content = _file_name(call), call.file, call.text("content")
    if content not in storage.content:
        raise PveError(f"storage '{storage.id}' does not support '{content}' content")
    target = storage.path_of(f"{content}/{name}")
    size = source.stat().st_size

    def work(log: TaskLog) -> None:
        log.line(f"starting file import from: {source}")
        try:
            _check_sum(call, source)
            if content == "import":
                _check_image(source, name)
        except PveError:
            source.unlink()
            raise
        log.line(f"target node: {store.node}")
        log.line(f"target file: {target}")
        log.line(f"file size is: {size}")
        log.line(f"command: cp -- {source} {target}")
        store.add_file(storage.id, content, name, size, source)
        source.unlink()
        log.line("finished file import successfully")

    return call.node.tasks.start("imgcopy", "", call.user, work)


def _check_sum(call: Call, file: Path) -> None:
    if (algorithm := call.text("checksum-algorithm")) and (expected := call.text("checksum").lower()):
        with file.open("rb") as content:
            found = hashlib.file_digest(content, algorithm).hexdigest()
        if found != expected:
            raise PveError(f"checksum mismatch: got '{found}' != expect '{expected}'")


def download_url(call: Call) -> str:
    storage, url = call.node.store.enabled(call.text("storage")), call.text("url")
    if not storage.path:
        raise PveError(f"can't upload to storage type '{storage.kind}', not a file based storage!")
    content = call.text("content")
    if content not in storage.content:
        raise PveError(f"storage '{storage.id}' is not configured for content-type '{content}'")
    name = _file_name(call)
    target = storage.path_of(f"{content}/{name}")

    def work(log: TaskLog) -> None:
        if "compression" in call.params and content != "iso":
            raise PveError(f"decompression not supported for {content}")
        log.line(f"downloading {url} to {target}")
        log.line(f"--{time.strftime('%Y-%m-%d %H:%M:%S')}--  {url}")
        with tempfile.NamedTemporaryFile(prefix="pve-double-") as file:
            path = Path(file.name)
            try:
                path.write_bytes(_fetched(url))
            except (URLError, http.client.HTTPException, OSError) as failed:
                host = re.sub(r"^https?://([^/]*).*", r"\1", url)
                reason = "Connection refused" if "refused" in str(failed) else str(failed)
                raise PveError(f"download failed: Connecting to {host}... failed: {reason}.") from None
            _check_sum(call, path)
            if content == "import":
                _check_image(path, name)
            call.node.store.add_file(storage.id, content, name, path.stat().st_size, path)

    return call.node.tasks.start("download", name, call.user, work)


def _fetched(url: str) -> bytes:
    # The schema lets only http and https through.
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: bytes = answer.read()
    return content


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", _STORAGE): list_storages,
    ("GET", f"{_STORAGE}/{{storage}}/status"): storage_status,
    ("GET", f"{_STORAGE}/{{storage}}/content"): list_content,
    ("POST", f"{_STORAGE}/{{storage}}/content"): allocate,
    ("GET", f"{_STORAGE}/{{storage}}/content/{{volume}}"): volume_info,
    ("PUT", f"{_STORAGE}/{{storage}}/content/{{volume}}"): describe_volume,
    ("DELETE", f"{_STORAGE}/{{storage}}/content/{{volume}}"): delete_volume,
    ("POST", f"{_STORAGE}/{{storage}}/upload"): upload,
    ("POST", f"{_STORAGE}/{{storage}}/download-url"): download_url,
}
