"""Reads a fio file into workloads: sections that run at the same time are one job, and stonewall begins the next."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from harness.config.names import LONGEST_NAME, choices
from harness.features.fio_files.options import (
    ALIASES,
    ALLOWED,
    EQUIVALENT_ENGINES,
    INCLUDE,
    QUEUEING_ENGINES,
    STARTDELAY,
    STONEWALL,
    WAIT_FOR,
    check_option,
    find_replacement,
    find_variables,
    parse_pattern,
    replace_variables,
)
from harness.model.job import (
    DEFAULT_ENGINE,
    FioOption,
    FioSection,
    FromFile,
    Overridden,
    Rw,
    Workload,
    has_reads,
    parse_fio_seconds,
    parse_fio_size,
    parse_rates,
    read_base,
)
from harness.scenario.scenario import FioFile, WorkloadFiles
from harness.units import format_size

_SUFFIX = ".fio"
"""The usual suffix of a fio file. Others are .job and .ini."""
_GLOBAL = "global"
_HEADER = re.compile(r"\[(?P<title>.+)\]")
_INCLUDE = re.compile(rf"{INCLUDE}[\s=]\s*(?P<path>.+)")
_MOST_PROCESSES = 64
_FIO_MIX = 50
"""fio's default share of reads in a mixed pattern, in percent."""
_LARGEST = 256 * 1024
"""Bytes of one file. A file of a user has a few kilobytes."""
_MOST_FILES = 50
"""A file that is included twice counts twice."""
_ENVIRONMENT = "environment variables"
"""The name under which their values are stored beside the texts of the files."""
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
_DIGEST = 6
"""Characters of the digest that makes a shortened name unique."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file. `file` is the path relative to the scenario's folder."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.number}"

    @property
    def content(self) -> str:
        """The line without comment and blanks around it. As in fio, a comment begins at any ; or #."""
        return re.split("[;#]", self.text, maxsplit=1)[0].strip()

    @property
    def included(self) -> str | None:
        """The path of the file that the line includes; None if it is any other line."""
        match = _INCLUDE.fullmatch(self.content)
        return match["path"] if match is not None else None

    @property
    def is_header(self) -> bool:
        """Whether the line begins a section."""
        return self.content.startswith("[")


@dataclass(frozen=True, slots=True)
class _Section:
    """A section with what [global] said before it. An option without a value has None."""

    title: str
    at: Line
    options: dict[str, str | None] = field(default_factory=dict)

    @property
    def delay(self) -> float:
        """When it starts, in seconds after the sections that start together with it. The beginning of a range."""
        return parse_fio_seconds((self.options.get(STARTDELAY) or "0").partition("-")[0])

    @property
    def end(self) -> float:
        """When it ends at the latest, in seconds after the same moment. Infinite if the file does not say it."""
        try:
            return self.delay + (parse_fio_seconds(self.options.get("runtime") or "0") or math.inf)
        except ValueError:
            return math.inf

    @property
    def engine(self) -> str:
        """fio's engine on Linux."""
        engine = self.options.get("ioengine") or DEFAULT_ENGINE
        return EQUIVALENT_ENGINES.get(engine, engine)

    @property
    def values(self) -> Mapping[str, str]:
        """The options for fio, the engine among them. A flag without a value has "1"."""
        options = {
            name: "1" if value is None else value
            for name, value in self.options.items()
            if name in ALLOWED and find_replacement(name, self.engine) is None
        }
        return {"ioengine": DEFAULT_ENGINE} | options | {"ioengine": self.engine}

    @property
    def overridden(self) -> Iterator[Overridden]:
        """The options that fio does not get, with what applies instead."""
        for name, value in self.options.items():
            shown = "".join(char if char.isprintable() else " " for char in value or "")
            if name == "ioengine" and value in EQUIVALENT_ENGINES:
                yield Overridden(name, shown, f"{self.engine}, and windowsaio in a guest with Windows")
            elif (instead := find_replacement(name, self.engine)) is not None:
                yield Overridden(name, shown, instead)

    @property
    def rw(self) -> str:
        return parse_pattern(self.values.get("rw", "read"))

    @property
    def processes(self) -> int:
        return int(self.values.get("numjobs", 1))

    @property
    def is_paced(self) -> bool:
        """Whether a rate or pauses limit its IOPS."""
        limits = (self.values.get(name, "") for name in ("rate", "rate_iops", "thinktime"))
        return any(re.search("[1-9]", limit) for limit in limits)

    @property
    def flushes(self) -> bool:
        return any(parse_fio_size(self.values.get(name, "0")) for name in ("fsync", "fdatasync"))

    @property
    def syncs_each_write(self) -> bool:
        return self.rw in ("write", "randwrite") and parse_fio_size(self.values.get("fdatasync", "0")) == 1

    @property
    def rate(self) -> int | None:
        """I/Os per second of all its processes; None if there is no such limit, or another one as well."""
        if "thinktime" in self.values or "rate" in self.values or self.rw.endswith("rw"):
            return None
        read, write = parse_rates(self.values.get("rate_iops", "0"), read_base(self.values))
        return (read if self.rw.endswith("read") else write) * self.processes or None

    @property
    def read_share(self) -> float | None:
        """The share of reads of a mixed pattern, 0 to 1."""
        if not self.rw.endswith("rw"):
            return None
        # As in fio, the later one of the two counts.
        share = _FIO_MIX
        for name, value in self.values.items():
            if name in ("rwmixread", "rwmixwrite"):
                share = int(value) if name == "rwmixread" else 100 - int(value)
        return share / 100

    def to_model(self) -> FioSection:
        values = self.values
        return FioSection(
            self.title,
            tuple(FioOption(name, value) for name, value in values.items()),
            processes=self.processes,
            iodepth=int(values.get("iodepth", 1)) if self.engine in QUEUEING_ENGINES else 1,
            overridden=tuple(self.overridden),
        )


def make_workloads(
    file: str, lines: Sequence[Line], environment: Mapping[str, str] = _NO_VARIABLES
) -> tuple[Workload, ...]:
    """The workloads of the file, in its order. `file` is its path relative to the scenario's folder.

    `environment` has the values of variables such as `${NUMJOBS}`.

    Raises ValueError, which lists every problem, one per line: `FILE, line N: [SECTION] OPTION = VALUE: what is wrong`.
    """
    problems: list[str] = []
    sections = _parse_sections(lines, environment, problems)
    if not sections:
        problems.append(f"{file}: has no section; add for example [reader] and its options")
    if problems:
        raise ValueError("\n".join(problems))
    workloads: dict[str, Workload] = {}
    for group in _group_sections(sections):
        label = _make_label(file, group)
        while label in workloads:
            # fio allows several jobs with the same name.
            label = f"{label}-{1 + sum(name.startswith(label) for name in workloads)}"
        workloads[label] = _make_workload(file, group, label)
    return tuple(replace(workload, label=_shorten(file, label)) for label, workload in workloads.items())


def _group_sections(sections: Sequence[_Section]) -> list[list[_Section]]:
    """The sections in groups that run at the same time. Raises ValueError."""
    groups: list[list[_Section]] = []
    for section in sections:
        before = groups[-1] if groups else []
        if not before or _starts_after(section, before, [earlier.title for group in groups[:-1] for earlier in group]):
            groups.append([])
        groups[-1].append(section)
    return groups


def _starts_after(section: _Section, before: Sequence[_Section], ended: Sequence[str]) -> bool:
    """Whether it starts after the end of the sections `before` it, which run at the same time.

    `ended` are the titles of those that have ended already. Raises ValueError if it waits for only some sections.
    """
    options = section.options
    if STONEWALL in options and options[STONEWALL] != "0":
        return True
    name = options.get(WAIT_FOR)
    if name is not None and name not in ended:
        if [other.title for other in before] != [name]:
            raise ValueError(
                f"{section.at}: [{section.title}] {WAIT_FOR} = {name}: is not the only section that runs before this "
                f"one; use {STONEWALL}, which waits for all of them"
            )
        return True
    return section.delay > 0 and section.delay >= max(other.end for other in before)


def find_needed_variables(lines: Sequence[Line]) -> tuple[str, ...]:
    """The environment variables that the lines need: those in options that fio gets."""
    options = (line.content.partition("=") for line in lines)
    values = (value for name, _, value in options if ALIASES.get(name.strip(), name.strip()) in ALLOWED)
    return tuple(dict.fromkeys(name for value in values for name in find_variables(value)))


def _parse_sections(lines: Sequence[Line], environment: Mapping[str, str], problems: list[str]) -> list[_Section]:
    """The sections without [global]. Lines that cannot be used are added to `problems`."""
    common: dict[str, str | None] = {}
    sections: list[_Section] = []
    here: _Section | None = None
    for line in lines:
        if not line.content:
            continue
        if line.is_header:
            match = _HEADER.fullmatch(line.content)
            title = match["title"].strip() if match is not None else ""
            if not title or not title.isprintable():
                problems.append(f"{line}: {line.content}: not a section; allowed: a name in brackets, [reader]")
            if title.startswith(_GLOBAL):  # fio compares only the beginning
                here = _Section(title, line, common)
            else:
                here = _Section(title, line, dict(common))
                sections.append(here)
        elif here is None:
            problems.append(f"{line}: {line.content}: is before the first section; write [global] above it")
        else:
            problems += _add_option(here, line, environment)
    return sections


def _add_option(section: _Section, line: Line, environment: Mapping[str, str]) -> Iterator[str]:
    """Adds the option in the line to the section, or yields what is wrong with it."""
    name, equals, text = (part.strip() for part in line.content.partition("="))
    known = ALIASES.get(name, name)
    value = text if equals else None
    try:
        if value is not None and known in ALLOWED:
            value = replace_variables(value, environment)
        check_option(known, value)
    except ValueError as error:
        yield f"{line}: [{section.title}] {name}{f' = {text}' if equals else ''}: {error}"
    else:
        # The value replaces an earlier one, at the place of this line.
        section.options.pop(known, None)
        section.options[known] = value


def _make_workload(file: str, sections: Sequence[_Section], label: str) -> Workload:
    """The sections that run at the same time, as one workload."""
    fio_sections = tuple(section.to_model() for section in sections)
    processes = sum(fio_section.processes for fio_section in fio_sections)
    if processes > _MOST_PROCESSES:
        first = sections[0]
        raise ValueError(
            f"{first.at}: [{first.title}] numjobs: {processes} processes would run at the same time; "
            f"allowed: at most {_MOST_PROCESSES}, or stonewall between the sections"
        )
    from_file = FromFile(
        file,
        fio_sections,
        saturating=not any(section.is_paced or section.flushes for section in sections),
        paced=all(section.is_paced for section in sections),
        flushes=any(section.flushes for section in sections),
    )
    rates = [section.rate for section in sections]
    rate = sum(rate for rate in rates if rate is not None) if None not in rates else None
    return Workload(
        _combine_patterns(sections),
        max(from_file.block_sizes),
        processes,
        sections[0].read_share if len(sections) == 1 else None,
        rate,
        label=label,
        iodepths=(max(section.iodepth for section in fio_sections),),
        syncs=all(section.syncs_each_write for section in sections),
        poisson=rate is not None and any(section.values.get("rate_process") == "poisson" for section in sections),
        from_file=from_file,
    )


def _combine_patterns(sections: Sequence[_Section]) -> Rw:
    """What the sections do together. It is random if one of them is. Raises ValueError for reads beside trims."""
    patterns = {section.rw.removeprefix("rand") for section in sections}
    random = any(section.rw.startswith("rand") for section in sections)
    if patterns & {"trim", "trimwrite"}:
        if reader := next((section for section in sections if has_reads(section.rw)), None):
            raise ValueError(
                f"{reader.at}: [{reader.title}] reads while another section trims, and trimmed blocks are not read "
                "from the disk; allowed: stonewall between them, or sections that only write"
            )
        if "trim" in patterns:
            return "randtrim" if random else "trim"
        return "trimwrite"
    if patterns == {"read"}:
        return "randread" if random else "read"
    if patterns == {"write"}:
        return "randwrite" if random else "write"
    return "randrw" if random else "rw"


def _make_label(file: str, sections: Sequence[_Section]) -> str:
    """FILE-SECTION, and the number of the other sections: `my-database-reader-and-1`. It may be long."""
    section = _simplify(sections[0].title) or f"line-{sections[0].at.number}"
    return "-".join((_strip_suffix(file), section, *([f"and-{len(sections) - 1}"] if len(sections) > 1 else [])))


def _shorten(file: str, label: str) -> str:
    """The label, or its most telling part and a digest of the whole: always the same for the same names.

    The name of the section stays as long as possible, because that of the file is the same for all of its jobs.
    """
    if len(label) <= LONGEST_NAME:
        return label
    digest = hashlib.sha256(label.encode()).hexdigest()[:_DIGEST]
    room = LONGEST_NAME - _DIGEST - 1
    stem = _strip_suffix(file)
    section = label.removeprefix(f"{stem}-")
    begin = stem[: max(room - 1 - len(section), _DIGEST)].strip("-")
    return f"{f'{begin}-{section}'[:room].strip('-')}-{digest}"


def _strip_suffix(file: str) -> str:
    """The file's name as part of an id."""
    return _simplify(str(PurePosixPath(file).with_suffix(""))) or "fio"


def _simplify(name: str) -> str:
    """The name in lower case letters, digits and single hyphens."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def read_fio_files(folder: Path, paths: Iterable[str]) -> WorkloadFiles:
    """The fio files at these paths, relative to the `folder` of a scenario."""
    files: dict[str, FioFile] = {}
    workloads: dict[str, tuple[Workload, ...] | ValueError] = {}
    for path in paths:
        texts: list[tuple[str, str]] = []
        try:
            lines = list(_read_lines(folder, path, texts))
            variables = {name: os.environ[name] for name in find_needed_variables(lines) if name in os.environ}
            workloads[path] = make_workloads(path, lines, variables)
        except ValueError as error:
            workloads[path] = error
        else:
            if variables:
                texts.append((_ENVIRONMENT, "".join(f"{name}={value}\n" for name, value in variables.items())))
            files[path] = FioFile(path, tuple(dict.fromkeys(texts)))
    return WorkloadFiles(workloads, tuple(files.values()))


def _read_lines(folder: Path, path: str, texts: list[tuple[str, str]], of: Line | None = None) -> Iterator[Line]:
    """The lines of the file at `path`, relative to `folder`, with those of included files in their places.

    `of` is the line that includes it. Adds path and text of each file to `texts`. Raises ValueError.
    """
    where = f"{of}: include {of.included}: " if of is not None else ""
    try:
        text = _read_text(folder, path)
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
            yield from _read_lines(folder, str(PurePosixPath(path).parent / line.included), texts, line)


def _read_text(folder: Path, path: str) -> str:
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
        return _decode(content)
    except FileNotFoundError:
        others = sorted(other.name for other in file.parent.glob(f"*{_SUFFIX}"))
        raise ValueError(f"no such file{f'; {choices(file.name, others)}' if others else ''}") from None
    except (OSError, RuntimeError) as error:  # a loop of symbolic links is a RuntimeError before Python 3.13
        raise ValueError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _decode(content: bytes) -> str:
    """The text of a file. Like fio, it does not mind other letters in comments and names. Raises ValueError."""
    if b"\0" in content:
        raise ValueError("is not a text in UTF-8; save the file as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
