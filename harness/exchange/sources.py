"""The files to import: which ones, of which arm, and whether they belong together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError
from harness.exchange.places import disk_of
from harness.exchange.reader import Point
from harness.exchange.request import ImportRequest
from harness.model.cell import Arm, Place
from harness.units import format_size
from harness.untrusted import JSON_BYTES


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of an arm, as it is. `written` is when, in seconds since 1970-01-01 UTC."""

    arm: Arm
    path: Path
    data: bytes
    written: float


def source_files(request: ImportRequest) -> list[SourceFile]:
    """Every file of the request with its content. Raises ConfigError if one cannot be read, or is given twice."""
    arms = [(Arm(Place.HOST), request.host)]
    arms += [(Arm(Place.GUEST, mode), request.guests[mode.name]) for mode in request.modes if mode.attach]
    found: dict[Path, SourceFile] = {}
    for arm, paths in arms:
        for path in (each for given in paths for each in _expanded(given)):
            real = path.resolve()
            if real in found:
                raise ConfigError(
                    f"{path} is given twice: for {found[real].arm.id} and for {arm.id}",
                    hint="each file is one measurement of one arm; name each directory once",
                )
            found[real] = SourceFile(arm, path, *_content(path))
    return list(found.values())


def _content(path: Path) -> tuple[bytes, float]:
    try:
        with path.open("rb") as file:
            data = file.read(JSON_BYTES + 1)
            written = os.fstat(file.fileno()).st_mtime
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from None
    if len(data) > JSON_BYTES:
        raise ConfigError(
            f"{path} is larger than {format_size(JSON_BYTES)}, which no output of fio is", hint="move it away"
        )
    return data, written


def _expanded(given: Path) -> list[Path]:
    """The file itself, or every .json file below the directory."""
    if given.is_file():
        return [given]
    if not given.is_dir():
        raise ConfigError(f"{given} does not exist", hint="give files of fio's output, or directories with its JSON")
    found = sorted(each for each in given.rglob("*.json") if each.is_file())
    if not found:
        raise ConfigError(
            f"{given} has no file whose name ends in .json", hint="give a directory with fio's JSON output"
        )
    return found


def check_belonging(request: ImportRequest, points: Sequence[tuple[SourceFile, Point]]) -> None:
    """Raises ConfigError if an arm has several disks or different jobs of one id, or a guest has no job of the host."""
    places: dict[Arm, dict[str, tuple[str, Path]]] = {}
    jobs: dict[tuple[Arm, str], tuple[SourceFile, Point]] = {}
    for file, point in points:
        if point.place:
            places.setdefault(file.arm, {}).setdefault(disk_of(point.place), (point.place, file.path))
        first_file, first = jobs.setdefault((file.arm, point.job_id), (file, point))
        known = first.options_known and point.options_known
        if known and (first.way, first.further) != (point.way, point.further):
            one, other = (
                (first.way, point.way) if first.way != point.way else map(_shown, (first.further, point.further))
            )
            raise ConfigError(
                f"{first_file.path} and {file.path} have the same job {point.job_id} with different options of "
                f"fio: {one} and {other}",
                hint="import them one after the other, as two runs",
            )
    for arm, of_arm in places.items():
        if len(of_arm) > 1:
            raise ConfigError(
                f"{arm.id} has files of several disks: "
                + ", ".join(f"{place} ({path})" for place, path in of_arm.values()),
                hint="give the files of one disk; in a tree of bench-fio, the directory of the disk",
            )
    own = {arm: {job for each, job in jobs if each == arm} for arm, _ in jobs}
    of_host = own.get(Arm(Place.HOST), set())
    for mode in request.modes[1:]:
        of_guest = own.get(Arm(Place.GUEST, mode), set())
        if not of_host & of_guest:
            raise ConfigError(
                f"host and guest {mode.name} have no job in common: the host has {_listed(of_host)}, the guest has "
                f"{_listed(of_guest)}",
                hint="measure the same jobs on both",
            )


def _shown(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" if value else name for name, value in options.items()) or "none"


def _listed(jobs: set[str]) -> str:
    return ", ".join(sorted(jobs)) or "no job that could be read"
