"""zfs and zpool for `storage_doubles`, on a state in a file."""

from __future__ import annotations

import marshal
import os
import sys

# It starts for each command, so that it imports little.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _options(words: list[str], flags: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The options that take a value, and the other words. `flags` have no value."""
    options, names = [], []
    rest = iter(words)
    for word in rest:
        if word.startswith("-") and word.strip("-") in flags.split():
            continue
        if word.startswith("-"):
            options.append((word, next(rest)))
        else:
            names.append(word)
    return options, names


def _create(state: Any, words: list[str]) -> None:
    options, (name,) = _options(words, "")
    if name in state["datasets"]:
        raise SystemExit(f"cannot create '{name}': dataset already exists")
    values = dict(value.split("=", 1) for option, value in options if option == "-o")
    size = dict(options).get("-V")
    own = {"type": "volume" if size else "filesystem", "guid": str(1000 + len(state["datasets"])), "local": values}
    state["datasets"][name] = own | {"size": int(size or 0), "readonly": "off"}
    if size is None:
        os.mkdir(values["mountpoint"])  # noqa: PTH102 - as above


def _get(dataset: Any, words: list[str]) -> str:
    options, (names, _) = _options(words, "Hp")
    local = dataset.get("local", {})
    lines = []
    for name in names.split(","):
        value, source = (local[name], "local") if name in local else (dataset.get(name, "-"), "-")
        columns = {"property": name, "value": value, "source": source}
        lines.append("\t".join(columns[column] for column in dict(options)["-o"].split(",")))
    return "\n".join(lines)


def _destroy(state: Any, name: str) -> None:
    if state["datasets"][name].get("snapshot"):
        raise SystemExit(f"cannot destroy '{name}': filesystem has children")
    point = state["datasets"].pop(name).get("local", {}).get("mountpoint")
    for file in os.scandir(point) if point else ():
        os.unlink(file)  # noqa: PTH108


def main(path: str, program: str, words: list[str]) -> None:
    """Run one command of ZFS on the state in the file at `path`."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes as long as all the rest
        state = marshal.load(file)
    if program == "zpool":
        if not state["pool"]["imported"]:
            raise SystemExit(f"cannot open '{words[-1]}': no such pool")
        printed = "status" if words[0] == "status" else "listed" if "-v" in words else "ashift"
        sys.stdout.write("".join(f"{line}\n" for line in state["pool"].get(printed, [])))
    elif program == "zfs":
        if words[:4] == ["list", "-H", "-t", "filesystem,volume"]:
            sys.stdout.write("".join(f"{name}\t{each['type']}\n" for name, each in state["datasets"].items()))
            return
        if words[0] != "create" and words[-1] not in state["datasets"]:
            raise SystemExit(f"cannot open '{words[-1]}': dataset does not exist")
        match words[0]:
            case "create":
                _create(state, words[1:])
            case "destroy":
                _destroy(state, words[-1])
            case "get":
                sys.stdout.write(_get(state["datasets"][words[-1]], words[1:]) + "\n")
            case "list":
                used = sum(each.get("size", 0) for each in state["datasets"].values())
                sys.stdout.write(f"{used}\t{state['pool']['size'] - used}\n")
    with open(path, "wb") as file:  # noqa: PTH123
        marshal.dump(state, file)
