"""A user's own fio file as workloads: sections that run at the same time are one job, and stonewall begins the next.

A file is a sequence of lines, into which those of included files are already inserted. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.config.names import LONGEST_NAME
from harness.model.fio_options import ALIASES, INCLUDE, OVERRIDDEN, STONEWALL, check_option
from harness.model.fio_section import FioOption, FioSection, FromFile, Overridden
from harness.model.fio_values import DEFAULT_ENGINE, QUEUEING_ENGINES, pattern_of, rates_of, size_of
from harness.model.job import Rw, Workload

_GLOBAL = "global"
_HEADER = re.compile(r"\[(?P<title>.+)\]")
_INCLUDE = re.compile(rf"{INCLUDE}[\s=]\s*(?P<path>.+)")
_MOST_PROCESSES = 64
_FIO_MIX = 50
"""fio's default share of reads in a mixed pattern, in percent."""
_SUFFIX = ".fio"


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
    def waits(self) -> bool:
        """Whether it starts after the sections before it."""
        return STONEWALL in self.options and self.options[STONEWALL] != "0"

    @property
    def values(self) -> Mapping[str, str]:
        """The options for fio, the engine among them."""
        own = {key: value for key, value in self.options.items() if value and key not in (STONEWALL, *OVERRIDDEN)}
        return {"ioengine": DEFAULT_ENGINE} | own

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
        read, write = rates_of(self.values.get("rate_iops", "0"))
        return (read if self.rw.endswith("read") else write) * self.processes or None

    @property
    def read_share(self) -> float | None:
        """The share of reads of a mixed pattern, 0 to 1."""
        if not self.rw.endswith("rw"):
            return None
        if "rwmixwrite" in self.values:
            return 1 - int(self.values["rwmixwrite"]) / 100
        return int(self.values.get("rwmixread", _FIO_MIX)) / 100

    def to_model(self) -> FioSection:
        values = self.values
        return FioSection(
            self.title,
            tuple(FioOption(name, value) for name, value in values.items()),
            processes=self.processes,
            iodepth=int(values.get("iodepth", 1)) if values["ioengine"] in QUEUEING_ENGINES else 1,
            overridden=tuple(
                Overridden(name, value or "", OVERRIDDEN[name])
                for name, value in self.options.items()
                if name in OVERRIDDEN
            ),
        )


def workloads_of(file: str, lines: Sequence[Line]) -> tuple[Workload, ...]:
    """The workloads of the file, in its order. `file` is its path relative to the scenario's folder.

    Raises ValueError, which lists every problem, one per line: `FILE, line N: [SECTION] OPTION = VALUE: what is wrong`.
    """
    problems: list[str] = []
    sections = _sections(lines, problems)
    if not problems:
        problems += [problem for each in sections for problem in _conflicts(each)]
    if not sections:
        problems.append(f"{file}: has no section; add for example [reader] and its options")
    if problems:
        raise ValueError("\n".join(problems))
    together: list[list[_Section]] = []
    for each in sections:
        if each.waits or not together:
            together.append([])
        together[-1].append(each)
    found = tuple(_workload(file, each) for each in together)
    _require_different_names(file, found)
    return found


def _sections(lines: Sequence[Line], problems: list[str]) -> list[_Section]:
    """The sections without [global]. Lines that cannot be used are added to `problems`."""
    common: dict[str, str | None] = {}
    found: list[_Section] = []
    here: _Section | None = None
    for line in lines:
        if not line.content:
            continue
        if line.is_header:
            match = _HEADER.fullmatch(line.content)
            title = match["title"].strip() if match is not None else ""
            if not title or not title.isprintable():
                problems.append(f"{line}: {line.content}: not a section; allowed: a name in brackets, [reader]")
            if title == _GLOBAL:
                here = _Section(title, line, common)
            else:
                here = _Section(title, line, dict(common))
                found.append(here)
        elif here is None:
            problems.append(f"{line}: {line.content}: is before the first section; write [global] above it")
        else:
            problems += _option(here, line)
    return found


def _option(section: _Section, line: Line) -> Iterator[str]:
    """Adds the option in the line to the section, or yields what is wrong with it."""
    name, equals, value = (part.strip() for part in line.content.partition("="))
    known = ALIASES.get(name, name)
    try:
        check_option(known, value if equals else None)
    except ValueError as error:
        yield f"{line}: [{section.title}] {name}{f' = {value}' if equals else ''}: {error}"
    else:
        # The value replaces an earlier one, at the place of this line.
        section.options.pop(known, None)
        section.options[known] = value if equals else None


def _conflicts(section: _Section) -> Iterator[str]:
    for pair in (("bs", "bsrange"), ("bsrange", "bssplit"), ("rwmixread", "rwmixwrite")):
        if section.options.keys() >= set(pair):
            one, other = pair
            yield f"{section.at}: [{section.title}] {one}: conflicts with {other}; remove one of them"


def _workload(file: str, sections: Sequence[_Section]) -> Workload:
    """The sections that run at the same time, as one workload."""
    own = tuple(each.to_model() for each in sections)
    processes = sum(each.processes for each in own)
    if processes > _MOST_PROCESSES:
        first = sections[0]
        raise ValueError(
            f"{first.at}: [{first.title}] numjobs: {processes} processes would run at the same time; "
            f"allowed: at most {_MOST_PROCESSES}, or stonewall between the sections"
        )
    from_file = FromFile(
        file,
        own,
        saturating=not any(each.is_paced or each.flushes for each in sections),
        paced=all(each.is_paced for each in sections),
        flushes=any(each.flushes for each in sections),
    )
    rates = [each.rate for each in sections]
    rate = sum(each for each in rates if each is not None) if None not in rates else None
    return Workload(
        _rw(sections),
        max(from_file.block_sizes),
        processes,
        sections[0].read_share if len(sections) == 1 else None,
        rate,
        label=_label(file, sections),
        iodepths=(max(each.iodepth for each in own),),
        syncs=all(each.syncs_each_write for each in sections),
        poisson=rate is not None and any(each.values.get("rate_process") == "poisson" for each in sections),
        from_file=from_file,
    )


def _rw(sections: Sequence[_Section]) -> Rw:
    """What the sections do together. It is random if one of them is."""
    patterns = {each.rw.removeprefix("rand") for each in sections}
    random = any(each.rw.startswith("rand") for each in sections)
    if patterns == {"read"}:
        return "randread" if random else "read"
    if patterns == {"write"}:
        return "randwrite" if random else "write"
    return "randrw" if random else "rw"


def _label(file: str, sections: Sequence[_Section]) -> str:
    """FILE-SECTION, and the number of the other sections: `my-database-reader-and-1`."""
    first = sections[0]
    parts = [_plain(file.removesuffix(_SUFFIX)), _plain(first.title)]
    if not all(parts):
        raise ValueError(f"{first.at}: [{first.title}]: the names of file and section need a letter or digit each")
    label = "-".join((*parts, *([f"and-{len(sections) - 1}"] if len(sections) > 1 else [])))
    if len(label) > LONGEST_NAME:
        raise ValueError(
            f'{first.at}: [{first.title}]: the workload\'s name "{label}" has {len(label)} characters; '
            f"allowed: at most {LONGEST_NAME}, so shorten the name of the section or of the file"
        )
    return label


def _plain(name: str) -> str:
    """The name in lower case letters, digits and single hyphens."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def _require_different_names(file: str, workloads: Sequence[Workload]) -> None:
    names = [each.name for each in workloads]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f'{file}: two jobs have the name "{twice}"; rename one of their sections')
