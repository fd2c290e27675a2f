"""vgs, lvs, pvs, lvcreate and lvremove for `storage_doubles`, on a state in a file."""

from __future__ import annotations

import marshal
import sys

# It starts for each command, so that it imports little.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _used(state: Any) -> int:
    return sum(each["size"] for each in state["volumes"] if each["kind"] != "thin")


def _fields(state: Any, volume: Any) -> dict[str, object]:
    group, pool = state["group"], state["pool"]
    is_pool = volume["kind"] == "thin-pool"
    return {
        "vg_uuid": group["uuid"],
        "vg_name": group["name"],
        "lv_name": volume["name"],
        "lv_uuid": volume["uuid"],
        "lv_tags": volume["tags"],
        "lv_size": volume["size"],
        "origin_uuid": volume.get("origin", ""),
        "segtype": volume["kind"],
        "lv_health_status": pool["health"] if is_pool else "",
        "lv_active": "active",
        "chunk_size": pool["chunk"] if is_pool else 0,
        "data_percent": f"{pool['used'] * 100:.2f}" if is_pool else "",
        "lv_metadata_size": pool["metadata"] if is_pool else "",
        "metadata_percent": f"{pool['metadata_used'] * 100:.2f}" if is_pool else "",
    }


def _printed(state: Any, program: str, options: dict[str, str], names: list[str]) -> str:
    group = state["group"]
    wanted = options.get("-o", "").split(",")
    between = options.get("--separator", " ")
    rows: list[dict[str, object]]
    if program == "vgs":
        if names and names != [group["name"]]:
            raise SystemExit(f'  Volume group "{names[0]}" not found')
        rows = [
            {
                "vg_name": group["name"],
                "vg_uuid": group["uuid"],
                "vg_size": group["size"],
                "vg_free": group["size"] - _used(state),
                "vg_extent_size": 4 << 20,
                "vg_missing_pv_count": group["missing"],
                "vg_permissions": group["permissions"],
            }
        ]
    elif program == "pvs":
        rows = [{"pv_name": name, "pv_free": free} for name, free in state["parts"].items()]
    else:
        rows = [_fields(state, volume) for volume in state["volumes"]]
        if names:
            rows = [row for row in rows if f"{group['name']}/{row['lv_name']}" == names[0]]
            if not rows:
                raise SystemExit(f"  Failed to find logical volume {names[0]}")
        if selected := options.get("--select"):
            field, _, value = selected.partition("=")
            rows = [row for row in rows if row[field] == value]
    return "".join(f"  {between.join(str(row[name]) for name in wanted)}\n" for row in rows)


def _create(state: Any, options: dict[str, str], names: list[str]) -> None:
    name, kind = options["--name"], options["--type"]
    if any(each["name"] == name for each in state["volumes"]):
        raise SystemExit(f'  Logical Volume "{name}" already exists in volume group "{names[0]}"')
    if kind == "thin" and options["--thinpool"] != "data":
        raise SystemExit("  no such pool")
    size = int((options.get("--virtualsize") or options["--size"]).removesuffix("b"))
    uuid = f"uuid-of-{name}"
    state["volumes"].append({"name": name, "uuid": uuid, "tags": options["--addtag"], "size": size, "kind": kind})


def main(path: str, program: str, words: list[str]) -> None:
    """Run one program of LVM on the state in the file at `path`."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes as long as all the rest
        state = marshal.load(file)
    options: dict[str, str] = {}
    names = []
    rest = iter(words)
    for word in rest:
        if word in ("--noheadings", "--nosuffix", "--yes", "--quiet"):
            continue
        if word.startswith("-"):
            options[word] = next(rest)
        else:
            names.append(word)
    if program == "lvcreate":
        _create(state, options, names)
    elif program == "lvremove":
        uuid = options["--select"].removeprefix("lv_uuid=")
        state["volumes"] = [each for each in state["volumes"] if each["uuid"] != uuid]
    else:
        sys.stdout.write(_printed(state, program, options, names))
    with open(path, "wb") as file:  # noqa: PTH123
        marshal.dump(state, file)
