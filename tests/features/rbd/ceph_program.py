"""ceph, rbd and qemu-img for `CephHost`, on a state in a file."""

from __future__ import annotations

import marshal
import sys

# It starts for each command, so that it imports little.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_FOUND, NOT_EMPTY, BUSY = 2, 39, 16


def _to_json(value: Any) -> str:
    import json  # noqa: PLC0415 - most commands print none

    return json.dumps(value, separators=(",", ":"))


def _fail(status: int, why: str) -> None:
    sys.stderr.write(f"{why}\n")
    raise SystemExit(status)


def _dump(state: Any) -> str:
    lines = ["epoch 7", f"fsid {state['fsid']}", "created 2026-01-01T00:00:00"]
    for name, pool in state["pools"].items():
        lines.append(
            f"pool {pool['id']} '{name}' {pool.get('type', 'replicated')} size {pool.get('size', 3)} min_size 2 "
            f"crush_rule 0 flags hashpspool stripe_width 0 application {pool.get('application', 'rbd')}"
        )
    return "\n".join([*lines, *(f"osd.{number} up   in  weight 1" for number in range(state["osds"]))]) + "\n"


def _usage(state: Any) -> str:
    pools = [
        {
            "name": name,
            "id": pool["id"],
            "stats": {"stored": pool["stored"], "max_avail": pool["free"], "quota_bytes": pool.get("quota", 0)},
        }
        for name, pool in state["pools"].items()
    ]
    return _to_json({"stats": {"total_bytes": 1}, "pools": pools})


def _ceph(state: Any, words: list[str]) -> str:
    if not state["up"]:
        _fail(1, "error connecting to the cluster")
    return _dump(state) if words[:2] == ["osd", "dump"] else _usage(state)


def _rbd(state: Any, words: list[str]) -> str:  # noqa: PLR0911, PLR0912 - one line per command
    flags = [word for word in words if word.startswith("--")]
    command = " ".join(words[:2]) if words[0] in ("image-meta", "snap", "device") else words[0]
    images = state["images"]
    if command == "device list":
        mapped = [{"id": str(number), "pool": "vms", "name": name.partition("/")[2], "device": device}
                  for number, (name, device) in enumerate(state["mapped"].items())]  # fmt: skip
        return _to_json(mapped)
    if command == "unmap":
        state["mapped"] = {name: device for name, device in state["mapped"].items() if device != words[1]}
        return ""
    if not state["up"]:
        _fail(1, "rbd: couldn't connect to the cluster!")
    name, _, snapshot = next(word for word in words if word.startswith("vms/")).partition("@")
    if command == "create":
        if name in images:
            _fail(17, "rbd image already exists")
        size = words[words.index("--size") + 1]
        images[name] = {"id": f"{len(images) + 16:x}", "meta": {}, "snapshots": [], "size": size, "words": words}
        return ""
    if name not in images:
        _fail(NOT_FOUND, f"rbd: error opening image {name}")
    image = images[name]
    match command:
        case "image-meta set":
            image["meta"][words[3]] = words[4]
        case "image-meta get":
            if words[3] not in image["meta"]:
                _fail(NOT_FOUND, "failed to get metadata")
            return f"{image['meta'][words[3]]}\n"
        case "info":
            assert flags
            return _to_json({"name": name, "id": image["id"], "size": 1})
        case "snap ls":
            return _to_json(image["snapshots"])
        case "snap create":
            image["snapshots"].append({"id": 4, "name": snapshot, "size": 1, "protected": "false"})
        case "snap rm":
            image["snapshots"] = [taken for taken in image["snapshots"] if taken["name"] != snapshot]
        case "map":
            state["mapped"][name] = f"/dev/rbd{len(state['mapped'])}"
            return f"{state['mapped'][name]}\n"
        case "rm":
            if image["snapshots"]:
                _fail(NOT_EMPTY, "image has snapshots")
            if name in state["mapped"]:
                _fail(BUSY, "image still has watchers")
            del images[name]
    return ""


def main(path: str, program: str, words: list[str]) -> None:
    """Run one command of Ceph on the state in the file at `path`."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes as long as all the rest
        state = marshal.load(file)
    printed = ""
    if program == "qemu-img":
        _fail(1, "error connecting" if state["qemu"] else "Unable to load module rbd")
    else:
        printed = (_ceph if program == "ceph" else _rbd)(state, words)
    with open(path, "wb") as file:  # noqa: PTH123
        marshal.dump(state, file)
    sys.stdout.write(printed)
