"""A user's own fio file as workloads: sections that run at the same time are one job, and stonewall begins the next.

A file is a sequence of lines, into which those of included files are already inserted. Pure.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType

from harness.config.names import LONGEST_NAME
from harness.model.fio_options import (
    ALIASES,
    ALLOWED,
    INCLUDE,
    STARTDELAY,
    STONEWALL,
    WAIT_FOR,
    check_option,
    variables_in,
    what_replaces,
    with_variables,
)
from harness.model.fio_section import FioOption, FioSection, FromFile, Overridden
from harness.model.fio_values import (
    DEFAULT_ENGINE,
    EQUIVALENT_ENGINES,
    QUEUEING_ENGINES,
    base_of,
    pattern_of,
    rates_of,
    seconds_of,
    size_of,
)
from harness.model.job import Rw, Workload

_GLOBAL = "global"
_HEADER = re.compile(r"\[(?P<title>.+)\]")
_INCLUDE = re.compile(rf"{INCLUDE}[\s=]\s*(?P<path>.+)")
_MOST_PROCESSES = 64
_FIO_MIX = 50
"""fio's default share of reads in a mixed pattern, in percent."""
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
        return seconds_of((self.options.get(STARTDELAY) or "0").partition("-")[0])

    @property
    def end(self) -> float:
        """When it ends at the latest, in seconds after the same moment. Infinite if the file does not say it."""
        try:
            return self.delay + (seconds_of(self.options.get("runtime") or "0") or math.inf)
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
            if name in ALLOWED and what_replaces(name, self.engine) is None
        }
        return {"ioengine": DEFAULT_ENGINE} | options | {"ioengine": self.engine}

    @property
    def overridden(self) -> Iterator[Overridden]:
        """The options that fio does not get, with what applies instead."""
        for name, value in self.options.items():
            shown = "".join(char if char.isprintable() else " " for char in value or "")
            if name == "ioengine" and value in EQUIVALENT_ENGINES:
                yield Overridden(name, shown, f"{self.engine}, and windowsaio in a guest with Windows")
            elif (instead := what_replaces(name, self.engine)) is not None:
                yield Overridden(name, shown, instead)

    @property
    def rw(self) -> str:
        return pattern_of(self.values.get("rw", "read"))

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
        return any(size_of(self.values.get(name, "0")) for name in ("fsync", "fdatasync"))

    @property
    def syncs_each_write(self) -> bool:
        return self.rw in ("write", "randwrite") and size_of(self.values.get("fdatasync", "0")) == 1

    @property
    def rate(self) -> int | None:
        """I/Os per second of all its processes; None if there is no such limit, or another one as well."""
        if "thinktime" in self.values or "rate" in self.values or self.rw.endswith("rw"):
            return None
        read, write = rates_of(self.values.get("rate_iops", "0"), base_of(self.values))
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


def workloads_of(
    file: str, lines: Sequence[Line], environment: Mapping[str, str] = _NO_VARIABLES
) -> tuple[Workload, ...]:
    """The workloads of the file, in its order. `file` is its path relative to the scenario's folder.

    `environment` has the values of variables such as `${NUMJOBS}`.

    Raises ValueError, which lists every problem, one per line: `FILE, line N: [SECTION] OPTION = VALUE: what is wrong`.
    """
    problems: list[str] = []
    sections = _sections(lines, environment, problems)
    if not sections:
        problems.append(f"{file}: has no section; add for example [reader] and its options")
    if problems:
        raise ValueError("\n".join(problems))
    workloads: dict[str, Workload] = {}
    for group in _together(sections):
        label = _label(file, group)
        while label in workloads:
            label = _numbered(label, 1 + sum(name.startswith(label) for name in workloads))
        workloads[label] = _workload(file, group, label)
    return tuple(replace(workload, label=_shortened(file, label)) for label, workload in workloads.items())


def _together(sections: Sequence[_Section]) -> list[list[_Section]]:
    """The sections in groups that run at the same time. Raises ValueError."""
    groups: list[list[_Section]] = []
    for section in sections:
        before = groups[-1] if groups else []
        if not before or _follows(section, before, [each.title for group in groups[:-1] for each in group]):
            groups.append([])
        groups[-1].append(section)
    return groups


def _follows(section: _Section, before: Sequence[_Section], ended: Sequence[str]) -> bool:
    """Whether it starts after the end of the sections `before` it, which run at the same time.

    `ended` are the titles of those that have ended already. Raises ValueError if it waits for only some sections.
    """
    options = section.options
    if STONEWALL in options and options[STONEWALL] != "0":
        return True
    name = options.get(WAIT_FOR)
    if name is not None and name not in ended:
        if [each.title for each in before] != [name]:
            raise ValueError(
                f"{section.at}: [{section.title}] {WAIT_FOR} = {name}: is not the only section that runs before this "
                f"one; use {STONEWALL}, which waits for all of them"
            )
        return True
    return section.delay > 0 and section.delay >= max(each.end for each in before)


def variables_of(lines: Sequence[Line]) -> tuple[str, ...]:
    """The environment variables that the lines need: those in options that fio gets."""
    options = (line.content.partition("=") for line in lines)
    values = (value for name, _, value in options if ALIASES.get(name.strip(), name.strip()) in ALLOWED)
    return tuple(dict.fromkeys(name for value in values for name in variables_in(value)))


def _sections(lines: Sequence[Line], environment: Mapping[str, str], problems: list[str]) -> list[_Section]:
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
            problems += _option(here, line, environment)
    return sections


def _option(section: _Section, line: Line, environment: Mapping[str, str]) -> Iterator[str]:
    """Adds the option in the line to the section, or yields what is wrong with it."""
    name, equals, text = (part.strip() for part in line.content.partition("="))
    known = ALIASES.get(name, name)
    value = text if equals else None
    try:
        if value is not None and known in ALLOWED:
            value = with_variables(value, environment)
        check_option(known, value)
    except ValueError as error:
        yield f"{line}: [{section.title}] {name}{f' = {text}' if equals else ''}: {error}"
    else:
        # The value replaces an earlier one, at the place of this line.
        section.options.pop(known, None)
        section.options[known] = value


def _workload(file: str, sections: Sequence[_Section], label: str) -> Workload:
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
        _rw(sections),
        max(from_file.block_sizes),
        processes,
        sections[0].read_share if len(sections) == 1 else None,
        rate,
        label=label,
        iodepths=(max(each.iodepth for each in fio_sections),),
        syncs=all(section.syncs_each_write for section in sections),
        poisson=rate is not None and any(section.values.get("rate_process") == "poisson" for section in sections),
        from_file=from_file,
    )


def _rw(sections: Sequence[_Section]) -> Rw:
    """What the sections do together. It is random if one of them is."""
    patterns = {section.rw.removeprefix("rand") for section in sections}
    random = any(section.rw.startswith("rand") for section in sections)
    if patterns == {"read"}:
        return "randread" if random else "read"
    if patterns == {"write"}:
        return "randwrite" if random else "write"
    return "randrw" if random else "rw"


def _label(file: str, sections: Sequence[_Section]) -> str:
    """FILE-SECTION, and the number of the other sections: `my-database-reader-and-1`. It may be long."""
    section = _plain(sections[0].title) or f"line-{sections[0].at.number}"
    return "-".join((_stem(file), section, *([f"and-{len(sections) - 1}"] if len(sections) > 1 else [])))


def _numbered(label: str, number: int) -> str:
    """The label of another job with the same name: fio allows several."""
    return f"{label}-{number}"


def _shortened(file: str, label: str) -> str:
    """The label, or its most telling part and a digest of the whole: always the same for the same names.

    The name of the section stays as long as possible, because that of the file is the same for all of its jobs.
    """
    if len(label) <= LONGEST_NAME:
        return label
    digest = hashlib.sha256(label.encode()).hexdigest()[:_DIGEST]
    room = LONGEST_NAME - _DIGEST - 1
    stem = _stem(file)
    section = label.removeprefix(f"{stem}-")
    begin = stem[: max(room - 1 - len(section), _DIGEST)].strip("-")
    return f"{f'{begin}-{section}'[:room].strip('-')}-{digest}"


def _stem(file: str) -> str:
    """The file's name as part of an id."""
    return _plain(str(PurePosixPath(file).with_suffix(""))) or "fio"


def _plain(name: str) -> str:
    """The name in lower case letters, digits and single hyphens."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
