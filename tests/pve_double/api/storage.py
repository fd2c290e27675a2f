"""The calls about storages, volumes and the node's disks."""

from __future__ import annotations

import hashlib
import http.client
import re
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.pve_double.api.call import Call, Handler
from tests.pve_double.api.cluster import index
from tests.pve_double.errors import PveError, bad_parameters
from tests.pve_double.qemu.volumes import Request, check_volume_access
from tests.pve_double.schema import split_list
from tests.pve_double.storage.volumes import Storage, is_volume_id, normalized_file_name, split_volume_id
from tests.pve_double.tasks import TaskLog

_STORAGE = "/nodes/{node}/storage"
_UPLOADS = {
    "iso": (r"[^/]+\.(?i:iso|img)", "wrong file extension"),
    "vztmpl": (r"[^/]+\.tar\.(gz|xz|zst|bz2)", "wrong file extension"),
    "import": (r"[a-zA-Z0-9.+=_-]+\.(ova|qcow2|raw|vmdk)", "invalid filename or wrong extension"),
}
_BLOCK = 512


def list_storages(call: Call) -> list[dict[str, Any]]:
    wanted = call.text("storage")
    return [
        each
        for each in call.node.store.statuses(content=call.text("content") or None)
        if wanted in {"", each["storage"]}
        and (each["enabled"] or not call.flag("enabled"))
        and _may_see(call, each["storage"])
    ]


def _may_see(call: Call, storage: str) -> bool:
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
    return [store.listing(volume) for volume in found]


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
    path = call.node.store.path(volid)
    volume = call.node.store.volumes.get(volid)
    if volume is None:
        raise PveError(f"volume_size_info on '{volid}' failed - no format")
    size = -(-volume.size_bytes // _BLOCK) * _BLOCK
    return {"path": path, "size": size, "used": size, "format": call.node.store.parse(volid).format}


def delete_volume(call: Call) -> str | None:
    volid = _volume_id(call)
    named = call.node.store.parse(volid)
    storage, _ = split_volume_id(volid)
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


def _file_name(call: Call, storage: Storage) -> str:
    content, name = call.text("content"), normalized_file_name(call.text("filename"))
    pattern, refusal = _UPLOADS[content]
    if not re.fullmatch(pattern, name):
        raise bad_parameters({"filename": refusal})
    if content not in storage.content:
        raise PveError(f"storage '{storage.id}' does not support '{content}' content")
    return name


def upload(call: Call) -> str:
    storage = call.node.store.enabled(call.text("storage"))
    if not storage.path:
        raise PveError(f"can't upload to storage type '{storage.kind}'")
    if call.file is None:
        raise PveError("missing temporary file name")
    name, source = _file_name(call, storage), call.file
    target = storage.path_of(f"{call.text('content')}/{name}")
    size = source.stat().st_size

    def work(log: TaskLog) -> None:
        log.line(f"starting file import from: {source}")
        _check_sum(call, source)
        log.line(f"target node: {call.node.name}")
        log.line(f"target file: {target}")
        log.line(f"file size is: {size}")
        log.line(f"command: cp -- {source} {target}")
        call.node.store.add_file(storage.id, call.text("content"), name, size, source)
        source.unlink()
        log.line("finished file import successfully")

    return call.node.tasks.start("imgcopy", "", call.user, work)


def _check_sum(call: Call, file: Path) -> None:
    if (algorithm := call.text("checksum-algorithm")) and (expected := call.text("checksum").lower()):
        with file.open("rb") as content:
            found = hashlib.file_digest(content, algorithm).hexdigest()
        if found != expected:
            file.unlink()
            raise PveError(f"checksum mismatch: got '{found}' != expect '{expected}'")


def download_url(call: Call) -> str:
    storage, url = call.node.store.enabled(call.text("storage")), call.text("url")
    if not storage.path:
        raise PveError(f"can't upload to storage type '{storage.kind}', not a file based storage!")
    name = _file_name(call, storage)
    target = storage.path_of(f"{call.text('content')}/{name}")

    def work(log: TaskLog) -> None:
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
            call.node.store.add_file(storage.id, call.text("content"), name, path.stat().st_size, path)

    return call.node.tasks.start("download", name, call.user, work)


def _fetched(url: str) -> bytes:
    # The schema lets only http and https through.
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: bytes = answer.read()
    return content


# Storage configuration


def list_configured(call: Call) -> list[dict[str, Any]]:
    wanted = call.text("type")
    storages = list(call.node.store.storages.values())
    return [dict(each.config()) for each in storages if wanted in {"", each.kind} and _may_see(call, each.id)]


def get_configured(call: Call) -> dict[str, Any]:
    return dict(call.node.store.config(call.text("storage")).config())


def configure(call: Call) -> dict[str, Any]:
    name, kind = call.text("storage"), call.text("type")
    if name in call.node.store.storages:
        raise PveError(f"create storage failed: storage ID '{name}' already defined")
    needed = {"dir": "path", "lvm": "vgname", "lvmthin": "thinpool", "zfspool": "pool"}.get(kind)
    if needed is None:
        raise PveError(f"create storage failed: the double has no storages of type '{kind}'")
    if needed not in call.params:
        raise bad_parameters({needed: "property is missing and it is not optional"})
    where = call.texts.get("vgname") or call.texts.get("pool") or Path(call.text("path")).name
    pool = next((each for each in call.node.disks.pools if each.name == where), None)
    storage = Storage(name, kind, frozenset(), pool.disk.size_bytes if pool else 2**40)
    storage.content = frozenset(call.text("content", "images,rootdir").split(","))
    for field in ("path", "vgname", "thinpool", "pool"):
        setattr(storage, field, call.text(field))
    call.node.store.storages[name] = storage
    return {"storage": name, "type": kind}


def reconfigure(call: Call) -> dict[str, Any]:
    storage = call.node.store.config(call.text("storage"))
    changed = {name: value for name, value in call.texts.items() if name not in {"storage", "delete", "digest"}}
    if "content" in changed:
        storage.content = frozenset(split_list(changed.pop("content")))
    storage.disabled = changed.pop("disable", str(int(storage.disabled))) == "1"
    storage.options |= changed
    for name in split_list(call.text("delete")):
        storage.options.pop(name, None)
    return {"storage": storage.id, "type": storage.kind}


def unconfigure(call: Call) -> None:
    name = call.text("storage")
    call.node.store.config(name)
    del call.node.store.storages[name]


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", _STORAGE): list_storages,
    ("GET", f"{_STORAGE}/{{storage}}"): index("content", "download-url", "status", "upload"),
    ("GET", f"{_STORAGE}/{{storage}}/status"): storage_status,
    ("GET", f"{_STORAGE}/{{storage}}/content"): list_content,
    ("POST", f"{_STORAGE}/{{storage}}/content"): allocate,
    ("GET", f"{_STORAGE}/{{storage}}/content/{{volume}}"): volume_info,
    ("DELETE", f"{_STORAGE}/{{storage}}/content/{{volume}}"): delete_volume,
    ("POST", f"{_STORAGE}/{{storage}}/upload"): upload,
    ("POST", f"{_STORAGE}/{{storage}}/download-url"): download_url,
    ("GET", "/storage"): list_configured,
    ("POST", "/storage"): configure,
    ("GET", "/storage/{storage}"): get_configured,
    ("PUT", "/storage/{storage}"): reconfigure,
    ("DELETE", "/storage/{storage}"): unconfigure,
}
