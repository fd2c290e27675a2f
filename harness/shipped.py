"""What comes with the project: scenarios, recipes of images, scripts for hosts, names of distributions' packages."""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent
_COMMENTS = re.compile(r"^[ \t]*#( .*)?\n", re.MULTILINE)


def shipped(name: Literal["scenarios", "images"]) -> Path:
    """The directory `name` of the project. A wheel has it as harness/data/NAME (`force-include` in pyproject.toml)."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def read_script(package: str, name: str, **values: object) -> str:
    """The script `name` for hosts or guests in the directory of `package`, without its lines of comment.

    Each of `values` replaces its name, a word in capitals, in the script.
    """
    text = _COMMENTS.sub("", files(package).joinpath(name).read_text(encoding="utf-8"))
    for word, value in values.items():
        text = text.replace(word, str(value))
    return text


Family = Literal["debian", "fedora", "rhel", "arch"]

_INSTALL: dict[Family, str] = {
    "debian": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "arch": "pacman -S --needed",
}
_FAMILIES: dict[str, Family] = {
    "debian": "debian",
    "ubuntu": "debian",
    "fedora": "fedora",
    "rhel": "rhel",
    "centos": "rhel",
    "arch": "arch",
}
_TABLE = Path(__file__).with_name("packages.txt")
OS_RELEASE = Path("/etc/os-release")


def os_ids(path: Path = OS_RELEASE) -> str:
    """`ID` and `ID_LIKE` of an os-release file: its distribution, and those that it is made from. Empty if unknown."""
    try:
        lines = [line.partition("=") for line in path.read_text(errors="replace").splitlines()]
        values = {key: " ".join(shlex.split(value)) for key, _, value in lines if key in ("ID", "ID_LIKE")}
    except (OSError, ValueError):
        return ""
    return " ".join(values[key] for key in ("ID", "ID_LIKE") if key in values)


def family_of(ids: str) -> Family | None:
    """The first known distribution among `ids` (the words of `ID` and `ID_LIKE`). None if none is known."""
    return next((_FAMILIES[name] for name in ids.split() if name in _FAMILIES), None)


def install_command(ids: str, *packages: str) -> str:
    """How to install `packages`, which have Debian's names, on the distribution `ids`.

    Says so if its archive lacks one of them. On an unknown distribution, Debian's names. Empty `ids`, of a host that
    did not say what it is, count as Debian.
    """
    family = family_of(ids) if ids else "debian"
    if family is None:
        return f"install what Debian has in {' '.join(packages)}"
    names = {package: _names()[package][family] for package in packages}
    there = list(dict.fromkeys(name for name in names.values() if name != "-"))
    lacking = [package for package, name in names.items() if name == "-"]
    command = f"{_INSTALL[family]} {' '.join(there)}" if there else ""
    missing = f"{', '.join(lacking)} (Debian's name) is not in this distribution's own archive" if lacking else ""
    return "; ".join(filter(None, (command, missing)))


@cache
def _names() -> dict[str, dict[Family, str]]:
    rows = [line.split() for line in _TABLE.read_text().splitlines() if not line.startswith("#")]
    return {row[0]: dict(zip(_INSTALL, row, strict=True)) for row in rows}
