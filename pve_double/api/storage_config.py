"""The calls about storage.cfg, after PVE::API2::Storage::Config and PVE::SectionConfig."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.api.storage import may_see
from pve_double.errors import PveError
from pve_double.schema import split_list
from pve_double.storage.volumes import Storage

_STORAGE = "/storage/{storage}"
_OF_ALL = frozenset({"content", "disable", "nodes", "bwlimit"})
_SIZE_OF_A_PATH = 2**40
"""What the double says of a directory that it was not told about, in bytes."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a type of storage needs, may have besides, and can hold; `default` is its content where nobody says."""

    required: tuple[str, ...]
    optional: frozenset[str]
    contents: frozenset[str]
    default: frozenset[str]


def _kind(required: str, optional: str, contents: str, default: str) -> _Kind:
    return _Kind(
        tuple(required.split()),
        _OF_ALL | set(optional.split()),
        frozenset(contents.split()),
        frozenset(default.split()),
    )


_KINDS: Mapping[str, _Kind] = {
    "dir": _kind(
        "path",
        "prune-backups max-protected-backups shared is_mountpoint mkdir create-base-path create-subdirs format "
        "preallocation content-dirs snapshot-as-volume-chain",
        "backup images import iso none rootdir snippets vztmpl",
        "images",
    ),
    "lvm": _kind(
        "vgname",
        "shared base saferemove saferemove_throughput saferemove-stepsize tagged_only snapshot-as-volume-chain",
        "images rootdir",
        "images",
    ),
    "lvmthin": _kind("vgname thinpool", "", "images rootdir", "images rootdir"),
    "rbd": _kind("", "monhost pool data-pool namespace username krbd keyring", "images rootdir", "images"),
    "zfspool": _kind("pool", "blocksize sparse mountpoint", "images rootdir", "images rootdir"),
}
"""The types that the double has."""


def list_storages(call: Call) -> list[dict[str, Any]]:
    wanted = call.text("type")
    storages = list(call.node.store.storages.values())
    return [_shown(call, each) for each in storages if wanted in {"", each.kind} and may_see(call, each.id)]


def get_storage(call: Call) -> dict[str, Any]:
    return _shown(call, call.node.store.config(call.text("storage")))


def _shown(call: Call, storage: Storage) -> dict[str, Any]:
    return storage.config() | {"digest": _digest(call)}


def _digest(call: Call) -> str:
    held = [each.config() for each in call.node.store.storages.values()]
    return hashlib.sha1(json.dumps(held, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


def create_storage(call: Call) -> dict[str, Any]:
    name, kind = call.text("storage"), call.text("type")
    if kind not in _KINDS:
        raise PveError(f"create storage failed: the double has no storages of type '{kind}'")
    settings = {key: value for key, value in call.texts.items() if key not in {"storage", "type"}}
    if not settings.get("nodes"):
        settings.pop("nodes", None)
    content = _checked(kind, settings)
    for needed in _KINDS[kind].required:
        if needed not in settings:
            raise PveError(f"missing value for required option '{needed}'")
    call.node.store.locks.take_config("create")
    if name in call.node.store.storages:
        raise PveError(f"create storage failed: storage ID '{name}' already defined")
    storage = Storage(name, kind, _KINDS[kind].default if content is None else content, _SIZE_OF_A_PATH)
    _apply(storage, settings)
    _activate(call, storage)
    call.node.store.storages[name] = storage
    return {"storage": name, "type": kind}


def _checked(kind: str, settings: Mapping[str, str]) -> frozenset[str] | None:
    """The content types among `settings`, if there are any; in PVE's words where one of them does not go."""
    for key in sorted(settings):
        if key not in {*_KINDS[kind].required, *_KINDS[kind].optional}:
            raise PveError(f"unexpected property '{key}'")
    if "content" not in settings:
        return None
    content = frozenset(split_list(settings["content"])) & _KINDS[kind].contents
    if "none" in content and len(content) > 1:
        raise PveError("unable to combine 'none' with other content types")
    if not content and "none" not in _KINDS[kind].contents:
        raise PveError("storage needs at least one content type")
    return content


def _apply(storage: Storage, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        if key == "disable":
            storage.disabled = value == "1"
        elif key in {"path", "vgname", "thinpool", "pool"}:
            setattr(storage, key, value)
        elif key not in {"content", "keyring"}:
            storage.options[key] = value


def _activate(call: Call, storage: Storage) -> None:
    """Find what the storage names. PVE takes a volume group on trust, but neither a mount point nor a ZFS pool."""
    pools = call.node.disks.pools
    if storage.kind == "rbd":
        # RBDPlugin::activate_storage does nothing.
        return
    if storage.path:
        expected = storage.options.get("is_mountpoint", "no") not in {"no", "0"}
        if expected and not storage.disabled and storage.path not in {each.path for each in pools}:
            raise PveError(
                f"create storage failed: unable to activate storage '{storage.id}' - directory is expected to be a "
                f"mount point but is not mounted: '{storage.path}'"
            )
        return
    named = storage.vgname or storage.pool.partition("/")[0]
    known = next((each for each in pools if each.name == named), None)
    if known is not None:
        storage.total_bytes = known.storage().total_bytes
        if storage.pool:
            # ZFSPoolPlugin::on_add_hook.
            storage.options.setdefault("mountpoint", f"/{storage.pool}")
    elif storage.vgname:
        storage.offline = storage.vgname not in {each.vgname for each in call.node.store.storages.values()}
    elif not storage.disabled and storage.is_on(call.node.name):
        raise PveError(
            f"create storage failed: could not activate storage '{storage.id}', zfs error: cannot import '{named}': "
            "no such pool available"
        )


def update_storage(call: Call) -> dict[str, Any]:
    failed = "update storage failed"
    call.node.store.locks.take_config("update")
    if (digest := call.text("digest")) and digest != _digest(call):
        raise PveError(f"{failed}: detected modified configuration - file changed by other user? Try again.")
    storage = _existing(call, failed)
    settings = {key: value for key, value in call.texts.items() if key not in {"storage", "delete", "digest"}}
    try:
        content = _checked(storage.kind, settings)
    except PveError as refused:
        raise PveError(f"{failed}: {refused}") from None
    removed = split_list(call.text("delete"))
    kind = _KINDS[storage.kind]
    for key in removed:
        if key in kind.required:
            raise PveError(f"{failed}: unable to delete required option '{key}'")
        if key not in kind.optional:
            raise PveError(f"{failed}: no such option '{key}'")
        if key in settings:
            raise PveError(f"{failed}: cannot set and delete property '{key}' at the same time!")
    for key in removed:
        storage.options.pop(key, None)
    if "disable" in removed:
        storage.disabled = False
    storage.content = content if content is not None else kind.default if "content" in removed else storage.content
    _apply(storage, settings)
    return {"storage": storage.id, "type": storage.kind}


def delete_storage(call: Call) -> None:
    call.node.store.locks.take_config("delete")
    storage = _existing(call, "delete storage failed")
    del call.node.store.storages[storage.id]
    call.node.permissions.forget_path(f"/storage/{storage.id}")


def _existing(call: Call, failed: str) -> Storage:
    try:
        return call.node.store.config(call.text("storage"))
    except PveError as missing:
        raise PveError(f"{failed}: {missing}") from None


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/storage"): list_storages,
    ("POST", "/storage"): create_storage,
    ("GET", _STORAGE): get_storage,
    ("PUT", _STORAGE): update_storage,
    ("DELETE", _STORAGE): delete_storage,
}
