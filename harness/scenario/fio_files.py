"""Reads the fio files that a scenario names, with the files that they include. All of them are in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.config.names import choices
from harness.model.fio_file import Line, variables_of, workloads_of
from harness.model.job import Workload
from harness.model.workloads import FIO_SUFFIX, FioFiles, is_fio_file
from harness.scenario.scenario import FioFile
from harness.units import format_size

_LARGEST = 256 * 1024
"""Bytes of one file. A file of a user has a few kilobytes."""
_MOST_FILES = 50
"""A file that is included twice counts twice."""
_ENVIRONMENT = "environment variables"
"""The name under which their values are stored beside the texts of the files."""


@dataclass(frozen=True, slots=True)
class FilesOfScenario:
    """What the fio files of a scenario say. `workloads` also has what is wrong with a file; `read` has the others."""

    workloads: FioFiles
    read: tuple[FioFile, ...]


def read_fio_files(folder: Path, names: object) -> FilesOfScenario:
    """The fio files among `names`, the value of `workloads` in a scenario in `folder`."""
    found: dict[str, FioFile] = {}
    workloads: dict[str, tuple[Workload, ...] | ValueError] = {}
    paths = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    for path in filter(is_fio_file, paths):
        texts: list[tuple[str, str]] = []
        try:
            lines = list(_lines(folder, path, texts))
            variables = {name: os.environ[name] for name in variables_of(lines) if name in os.environ}
            workloads[path] = workloads_of(path, lines, variables)
        except ValueError as error:
            workloads[path] = error
        else:
            if variables:
                texts.append((_ENVIRONMENT, "".join(f"{name}={value}\n" for name, value in variables.items())))
            found[path] = FioFile(path, tuple(dict.fromkeys(texts)))
    return FilesOfScenario(workloads, tuple(found.values()))


def _lines(folder: Path, path: str, texts: list[tuple[str, str]], of: Line | None = None) -> Iterator[Line]:
    """The lines of the file at `path`, relative to `folder`, with those of included files in their places.

    `of` is the line that includes it. Adds path and text of each file to `texts`. Raises ValueError.
    """
    where = f"{of}: include {of.included}: " if of is not None else ""
    try:
        text = _text(folder, path)
        if len(texts) >= _MOST_FILES:
            raise ValueError(f"is file number {_MOST_FILES + 1}; allowed: {_MOST_FILES}, and no file includes itself")
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None
    texts.append((path, text))
    for number, content in enumerate(text.split("\n"), start=1):
        line = Line(path, number, content)
        if of is not None and line.is_header:
            raise ValueError(f"{line}: {line.content}: included files have no sections; move it to {of.file}")
        if line.included is None:
            yield line
        else:
            yield from _lines(folder, str(PurePosixPath(path).parent / line.included), texts, line)


def _text(folder: Path, path: str) -> str:
    """The text of a file in the folder. Raises ValueError."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError("allowed: a file in the scenario's folder, without ..")
    file = folder / pure
    try:
        if not file.resolve(strict=True).is_relative_to(folder.resolve()):
            raise ValueError("leads out of the scenario's folder; copy the file into it")
        if not file.is_file():
            raise ValueError("is not a file")
        with file.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError(f"is too large; allowed: at most {format_size(_LARGEST)}")
        return _decoded(content)
    except FileNotFoundError:
        others = sorted(each.name for each in file.parent.glob(f"*{FIO_SUFFIX}"))
        raise ValueError(f"no such file{f'; {choices(file.name, others)}' if others else ''}") from None
    except (OSError, RuntimeError) as error:  # a loop of symbolic links is a RuntimeError before Python 3.13
        raise ValueError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _decoded(content: bytes) -> str:
    """The text of a file. Like fio, it does not mind other letters in comments and names. Raises ValueError."""
    if b"\0" in content:
        raise ValueError("is not a text in UTF-8; save the file as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
