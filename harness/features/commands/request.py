"""What a scenario may ask of a command, how its figure is read, and the record."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict

from harness.analysis import (
    CONFIDENCE,
    Better,
    Change,
    Estimate,
    estimate_overhead,
    estimate_paired_change,
    mean_interval,
)
from harness.config.names import choices, one_line
from harness.config.problems import shown
from harness.errors import MeasurementError
from harness.model.attach import CACHES, Attach
from harness.model.mode import Arm, Cell, Place
from harness.model.values import (
    Count,
    Counted,
    FileValue,
    Flag,
    Measured,
    MountOptions,
    Name,
    Number,
    RecordValue,
    Size,
    SomeSeconds,
)
from harness.scenario.load import ModeName
from harness.scenario.plan import FollowUp
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.units import format_size
from harness.untrusted import LARGEST

if TYPE_CHECKING:
    from harness.results.journal import Measurement

IGNORED = "QEMU ignores the flushes of this guest (cache unsafe), so what it calls synced is in the host's memory"
MOST_OUTPUT = 256 << 10
"""Bytes of a command's output that are stored and searched."""
_LAST_LINES = 5
_MOST_TRIES = 100
"""How many lines are tried that may be the beginning of JSON."""
_TIMED_OUT = 137
_NOTHING_RUN = 125
_SETUP_SECONDS = 2.0
"""For the mounts of one run."""
_LEAST_READ = 16 << 20
"""Bytes that a command has to read on each side before its caches are judged: less is programs and metadata."""
CONTROL_SECONDS = 1
"""How long the loop of the CPU alone runs after each run."""
_MOUNTS = 8 << 20
"""What mounting and unmounting a file system may write, beside what a command declares."""


def _check_regex(text: str) -> str:
    try:
        compiled = re.compile(text, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if compiled.groups != 1:
        raise ValueError("allowed: exactly one group in parentheses, which is the number")
    return text


def _check_path(text: str) -> str:
    if not all(_split_path(text)):
        raise ValueError("allowed: keys and indexes with points or slashes between them, for example jobs.0.read.iops")
    return text


def _check_script(text: str) -> str:
    if text and not text.strip():
        raise ValueError("must not be blank")
    if "\0" in text:
        raise ValueError("allowed: text without NUL")
    return text


_Script = Annotated[str, Field(max_length=64 << 10), AfterValidator(_check_script)]
"""Linux starts no program with an argument of more than 128 KiB."""


@dataclass(frozen=True, slots=True)
class OwnFigure(FileValue):
    """How the figure of a run is read: the group of the last match of `regex`, the number at the path `json`, or time.

    With neither, it is the time that the command takes.
    """

    regex: Annotated[str, AfterValidator(_check_regex)] | None = None
    json: Annotated[str, AfterValidator(_check_path)] | None = None
    """Keys and indexes with points or, if a key has one, slashes between them: `jobs.0.read.iops`."""
    unit: Annotated[str, Field(max_length=20), AfterValidator(one_line)] = "s"
    better: Literal["higher", "lower"] = "lower"

    def read(self, output: str, seconds: float) -> float:
        """The figure. Raises ValueError, which says what is wrong."""
        text: Any = seconds
        if self.regex is not None:
            begin, end = self._find_group(output)
            text = output[begin:end] if begin >= 0 else None
        elif self.json is not None:
            text = _find_in_json(output, self.json)
        try:
            value = float(text) if not isinstance(text, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{shown(str(text)[:60])} is not a number") from None
        if not 1 / LARGEST <= value <= LARGEST:
            raise ValueError(f"{shown(str(text)[:60])} is not a number above 0 and up to {LARGEST:g}")
        return value

    def read_suffix(self, output: str) -> str:
        """What follows the number of the last match, perhaps after a blank: `k` of "12.5k", `MB/s`; may be empty."""
        if self.regex is None:
            return ""
        follows = _SUFFIX.match(output, self._find_group(output)[1])
        return follows[0].strip() if follows is not None else ""

    def _find_group(self, output: str) -> tuple[int, int]:
        """Where the group of the last match is. Raises ValueError without one, or if it is only a part of a number.

        `([0-9.]+) MB/s` takes 234.5 of "1,234.5 MB/s": the rest of the number is outside of the match.
        """
        last = _find_last_match(self.regex or "", output)
        if last is None:
            raise ValueError(f"nothing in the output matches {shown(self.regex)}")
        (start, stop), (begin, end) = last
        before = _PART_BEFORE.search(output, max(begin - _LONGEST_NUMBER, 0), begin) if begin == start else None
        after = _PART_AFTER.match(output, end, end + _LONGEST_NUMBER) if end == stop else None
        if 0 <= begin < end and (before or after):
            part = output[begin:end]
            whole = f"{before[0] if before else ''}{part}{after[0] if after else ''}"
            raise ValueError(
                f"{shown(part[:60])} is only a part of {shown(whole[:60])}; let the regular expression match what "
                "is around its group, too"
            )
        return begin, end


_SEARCH_SECONDS = 20
_SEARCH = """
import json, re, sys
regex, output = json.load(sys.stdin)
last = None
for match in re.finditer(regex, output, re.MULTILINE):
    last = match.span(), match.span(1)
print(json.dumps(last))
"""


@lru_cache(maxsize=1)
def _find_last_match(regex: str, output: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Where the last match and its group are; None without one. Raises ValueError if the search does not end.

    It is a process of its own: some expressions take longer than anyone waits, and nothing else can end them.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _SEARCH],
            input=json.dumps([regex, output]),
            capture_output=True,
            text=True,
            timeout=_SEARCH_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{shown(regex)} takes more than {_SEARCH_SECONDS} s to search the output: avoid a repetition within a "
            "repetition, as in `(?:a+)+`"
        ) from None
    last = json.loads(done.stdout)
    return None if last is None else (tuple(last[0]), tuple(last[1]))


_LONGEST_NUMBER = 40
_PART_BEFORE = re.compile(r"(?:[0-9][0-9.,'_]*|(?<![\w)\]])-)$")
"""What belongs to a number that follows: digits with points or commas between them, or a sign."""
_PART_AFTER = re.compile(r"[.,'_]?[0-9][0-9.,'_]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+")
_SUFFIX = re.compile(r"[ \t]?[A-Za-z\u00b5\u03bc/%]{0,20}")


def _find_in_json(output: str, path: str) -> Any:
    """The value at the path, of the last object or list in the output that has it. Raises ValueError without one.

    Words beside it may have braces, so it begins a line if one can.
    """
    lines = [match.start(1) for match in re.finditer(r"^[ \t]*([{\[])", output, re.MULTILINE)]
    anywhere = sorted(at for at in (output.find("{"), output.find("[")) if at >= 0)
    documents = [*_decode_at(output, anywhere), *_decode_at(output, lines)]
    if not documents:
        raise ValueError("the output has no JSON")
    for document in reversed(documents):
        with suppress(KeyError, IndexError, TypeError, ValueError):
            return _follow_path(document, path)
    raise ValueError(f"the JSON of the output has no {shown(path)}")


def _decode_at(output: str, begins: Sequence[int]) -> Iterator[Any]:
    """The JSON that begins at these places, except for what is within another."""
    end, failures = 0, 0
    for begin in begins:
        if begin < end or failures > _MOST_TRIES:
            continue
        try:
            document, end = json.JSONDecoder().raw_decode(output, begin)
        except (ValueError, RecursionError):
            failures += 1
        else:
            yield document


def _split_path(path: str) -> list[str]:
    return path.split("/" if "/" in path else ".")


def _follow_path(value: Any, path: str) -> Any:
    for key in _split_path(path):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@dataclass(frozen=True, slots=True)
class OwnCommand(FileValue):
    """Runs `command` with sh in a directory of a new file system on the volume of each mode, in the guest.

    With `on_host`, it also runs on the host, on the same volume by turns, and the figures are compared. `prepare` runs
    before the first run of each side. A run may take `seconds`, and write so many bytes to the disk as `writes` says:
    one that writes more ends the command. If `modes` is None, all modes of the scenario are measured. `runs` is how
    often each side runs it. With `cpu_control`, a loop without a disk follows each run, which shows how much of a loss
    is that of the CPU.
    """

    command: Annotated[_Script, Field(min_length=1)]
    """What `sh` runs, in a directory on the volume."""
    figure: OwnFigure = OwnFigure()
    """The figure: `regex` with one group (the last match counts) or `json`, a path such as `jobs.0.read.iops`; its
    `unit`, and which is `better`. Without it, the seconds of a run."""
    prepare: _Script = ""
    """Runs before the first run, once on each side."""
    seconds: SomeSeconds = 30.0
    """A run that takes longer is ended, and so is the command."""
    filesystem: Literal["ext4", "xfs"] = "ext4"
    """The new file system on the volume."""
    mount_options: MountOptions = ""
    """As `mount -o` takes them, for example `noatime`."""
    runs: Annotated[Count, Field(ge=2, le=10_000)] = 10
    """The runs on each side."""
    on_host: Flag = False
    """Whether it may run on the host, too. Without it, there is only the guest's figure."""
    writes: Size | None = None
    """The most bytes that a run writes to the disk. One that writes more ends the command. With it, the announcement
    of a run has this figure, and the command takes part in runs with `--max-writes`."""
    cpu_control: Flag = True
    """Whether a loop without a disk follows each run for a second, with `on_host`."""
    modes: Annotated[tuple[ModeName, ...], Field(min_length=1), Strict(False)] | None = None
    """Names from `modes`; without them, every mode with one guest."""

    def covers(self, cell: Cell) -> bool:
        """Whether it runs in the guest of this cell."""
        mode = cell.mode
        if mode.attach is None or mode.runs_with_others or mode.in_container:
            return False
        return self.modes is None or any(name in self.modes for name in mode.names)


@dataclass(frozen=True, kw_only=True)
class PlannedCommand(FollowUp):
    """A command on the volume of one mode: that of its only cell."""

    command: OwnCommand

    kind = "command"
    title = "command"
    description = "a command of yours"
    writes = True

    @property
    def id(self) -> str:
        return f"{self.group}-{self.kind}-{self.name}-{self.cell.mode.name}"

    @property
    def cell(self) -> Cell:
        return self.cells[0]

    @property
    def guest(self) -> Arm:
        return self.cell.by_role[Place.GUEST]

    @property
    def host(self) -> Arm | None:
        """The host on the mode's own volume; None without one, or if the command may not run there.

        With the host's cache between guest and volume, host and guest would see different data.
        """
        twin, attach = self.cell.by_role.get(Place.TWIN), self.cell.mode.attach
        direct = isinstance(attach, Attach) and attach.direct
        return twin if self.command.on_host and direct else None

    @property
    def control_seconds(self) -> int:
        """How long the loop of the CPU alone runs after each run; 0 without one, or with nothing to compare it with."""
        return CONTROL_SECONDS if self.command.cpu_control and self.host is not None else 0

    @property
    def number_of_runs(self) -> int:
        """On all sides together, with the preparations."""
        return (1 + self.command.on_host) * (self.command.runs + bool(self.command.prepare))

    @property
    def usual_seconds(self) -> float:
        return self.most_seconds / 2

    @property
    def most_seconds(self) -> float:
        return self.number_of_runs * (self.command.seconds + self.control_seconds + _SETUP_SECONDS)

    def bytes_written(self, write_rate: int, place: int | None = None) -> float:
        if place is not None and place not in self.guest.places:
            return 0.0
        if self.command.writes is not None:
            return float(self.number_of_runs * (self.command.writes + _MOUNTS))
        return self.number_of_runs * self.command.seconds * write_rate


def plan_commands(scenario: Scenario, group: Group) -> Iterator[PlannedCommand]:
    """Each command on each mode of this group."""
    for name, command in scenario.requests_of(OwnCommand).items():
        cells = {cell.mode.name: cell for cell in reversed(group.cells) if command.covers(cell)}
        for mode in dict.fromkeys(cell.mode.name for cell in group.cells if cell.mode.name in cells):
            yield PlannedCommand(group=group.id, name=name, cells=(cells[mode],), command=command)


def find_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each command that cannot be run, in the form of the schema's messages."""
    modes = {mode.name: mode for mode in scenario.modes}
    for name, command in scenario.requests_of(OwnCommand).items():
        key = f"workload.{name}"
        if command.figure.regex is not None and command.figure.json is not None:
            yield f"{key}.figure: has regex and json; allowed: one of them, or neither for the time of a run"
        for number, mode in enumerate(command.modes or ()):
            if mode not in modes:
                yield f"{key}.modes[{number}] = {shown(mode)}: not a mode of this scenario; {choices(mode, modes)}"
            elif modes[mode].attach is None:
                yield f"{key}.modes[{number}] = {shown(mode)}: has no guest; allowed: modes with a guest"


@dataclass(frozen=True, slots=True)
class CommandRecord(RecordValue):
    """What a command gave on the volume of one mode."""

    id: str
    """`GROUP-command-NAME-MODE`."""
    name: str
    """Name of the command in the scenario."""
    scenario: Name
    """Name of the scenario."""
    host: Name
    """Name of the host in the lab file."""
    disk: Name
    """Name of the disk under test."""
    mode: Name
    """Name of the attach mode."""
    command: str
    """What sh ran."""
    filesystem: str
    """The file system on the volume, with its mount options."""
    unit: str
    """The unit of the figures."""
    better: Better
    """`higher` or `lower`: which figure is better."""
    on_host: tuple[Measured, ...]
    """The figures of the host by run; empty if it did not run there."""
    in_guest: tuple[Measured, ...]
    """The figures of the guest by run, in the same order of pairs."""
    raw: tuple[str, ...]
    """The outputs of all runs, as paths relative to the run's directory."""
    problem: str | None
    """Why it ended early, or was not run; null if it ran as often as planned."""
    cpu_on_host: tuple[Measured, ...] = ()
    """Loops per second of the CPU alone after each run on the host; empty without this control."""
    cpu_in_guest: tuple[Measured, ...] = ()
    """The same in the guest."""
    cpus: dict[str, Number] = field(default_factory=dict)
    """The CPUs of `host` and `guest`."""
    most_written: Counted | None = None
    """The most bytes that a run wrote to the volume; null if it is not known."""
    reads: dict[str, tuple[Counted, Counted]] = field(default_factory=dict)
    """By side (`host`, `guest`): the bytes that the processes of all runs read, also from pipes and memory, and those
    that the volume gave. A side of which a run is not known is left out."""

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        return tuple(zip(self.on_host, self.in_guest, strict=False))

    @property
    def cached_side(self) -> str | None:
        """`host` or `guest`, if memory served there what came from the volume on the other side; else None.

        Both run the same command, so pipes and the like take part on both. The volume gave more than half of what was
        read on one side, and less than half of this share on the other.
        """
        shares = {side: min(given / read, 1.0) for side, (read, given) in self.reads.items() if read >= _LEAST_READ}
        if len(shares) < 2:
            return None
        low, high = sorted(shares, key=lambda side: shares[side])
        return low if shares[high] > 0.5 and shares[low] < shares[high] / 2 else None

    @property
    def host_mean(self) -> Estimate | None:
        """The host's figure (`mean`); None if only its memory served the reads."""
        return self.mean(self.on_host) if self.cached_side != "host" else None

    @property
    def guest_mean(self) -> Estimate | None:
        """The guest's figure (`mean`); None if only its memory served the reads."""
        return self.mean(self.in_guest) if self.cached_side != "guest" else None

    @property
    def loss(self) -> Estimate | None:
        """How much worse the guest is, as a share of the host, by pairs of runs (`estimate_overhead`).

        None without pairs, and if memory served only one of the sides.
        """
        if not self.pairs or self.cached_side:
            return None
        return self._estimate_loss(*zip(*self.pairs, strict=True))

    @property
    def times(self) -> Change | None:
        """How many times as long the guest takes as the host, by pairs of runs (`estimate_paired_change`).

        None without pairs, and if memory served only one of the sides.
        """
        if not self.pairs or self.cached_side:
            return None
        change = estimate_paired_change(*zip(*self.pairs, strict=True), confidence=CONFIDENCE)
        return change.inverse if self.better == "higher" else change

    @property
    def cpu_loss(self) -> Estimate | None:
        """How much slower the loop of the CPU alone is in the guest, as a share of the host."""
        if not self.cpu_on_host or len(self.cpu_on_host) != len(self.cpu_in_guest):
            return None
        return estimate_overhead(self.cpu_on_host, self.cpu_in_guest, higher_is_better=True, confidence=CONFIDENCE)

    @property
    def loss_beside_cpu(self) -> Estimate | None:
        """The loss that is left if a run does nothing but compute, so that the slower CPU explains as much as it can.

        Each figure is divided by the loops per second after it: what slows down both in the same second cancels.
        """
        if self.cpu_loss is None or len(self.pairs) != len(self.cpu_on_host) or self.cached_side:
            return None
        power = -1 if self.better == "higher" else 1
        host, guest = zip(*self.pairs, strict=True)
        return self._estimate_loss(
            [figure * loops**power for figure, loops in zip(host, self.cpu_on_host, strict=True)],
            [figure * loops**power for figure, loops in zip(guest, self.cpu_in_guest, strict=True)],
        )

    def _estimate_loss(self, host: Sequence[float], guest: Sequence[float]) -> Estimate:
        return estimate_overhead(host, guest, higher_is_better=self.better == "higher", confidence=CONFIDENCE)

    def mean(self, values: Sequence[float]) -> Estimate | None:
        """Geometric mean with its interval, in the unit."""
        return mean_interval(values, confidence=CONFIDENCE) if values else None


def note_ignored_flushes(_slices: Sequence[Measurement], cell: Cell) -> Iterator[str]:
    """That latencies of flushes are not the disk's, if QEMU ignores them."""
    attach = cell.mode.attach
    if cell.job.flushes and isinstance(attach, Attach) and CACHES[attach.cache].no_flush:
        yield f"{IGNORED}: its latencies of fdatasync say nothing about the disk"


class CommandFailed(MeasurementError):
    """A run of a command gave no figure. The message has the reason and the end of the output."""


@dataclass(frozen=True, slots=True)
class CommandRun:
    """One run: its figure in the unit, and what was counted beside it; None for what is not known."""

    figure: float
    loops: float | None = None
    """Loops per second of the CPU alone after it."""
    cpus: int | None = None
    written: int | None = None
    """Bytes that it wrote to the volume, with those of mounting."""
    suffix: str = ""
    """What follows the number in the output: its unit, if the command prints one there."""
    fetched: int | None = None
    """Bytes that the volume gave."""
    read: int | None = None
    """Bytes that its processes read, from wherever."""


def require_same_unit(run: CommandRun, earlier: Iterable[CommandRun], where: str) -> None:
    """Raise CommandFailed if the output has another unit than that of an earlier run: 856 MB/s and 1.2 GB/s."""
    for other in earlier:
        if other.suffix != run.suffix:
            raise CommandFailed(
                f"{where}: after the number is {shown(run.suffix)}, and {shown(other.suffix)} in an earlier run, so "
                "the figures may have different units; let the command print one unit, or match more than the number"
            )


def read_run(printed: str, figure: OwnFigure, where: str, seconds: float, writes: int | None = None) -> CommandRun:
    """A run, from what run_command.sh printed. It may have written `writes` bytes. Raises CommandFailed."""
    head, _, output = printed.partition("\n")
    words = [*head.split(), *["-"] * 6]
    try:
        status, taken = int(words[0]), float(words[1])
        loops = None if words[2] == "-" else float(words[2])
        cpus, size, written, fetched, read = (None if word == "-" else int(word) for word in words[3:8])
    except ValueError:
        raise CommandFailed(f"{where}: it could not be started: {_quote_end(printed)}") from None
    if status == _NOTHING_RUN and taken == 0:
        raise CommandFailed(f"{where}: it was not run: {_quote_end(output)}")
    if status == _TIMED_OUT and taken >= seconds:
        raise CommandFailed(f"{where}: it did not end within {seconds:g} s and was ended: {_quote_end(output)}")
    if status != 0:
        raise CommandFailed(f"{where}: exit status {status}: {_quote_end(output)}")
    if writes is not None and written is not None and written > writes + _MOUNTS:
        raise CommandFailed(f"{where}: it wrote {format_size(written)}, and `writes` allows {format_size(writes)}")
    if size is not None and size > MOST_OUTPUT and (figure.regex or figure.json):
        raise CommandFailed(
            f"{where}: it printed more than {format_size(MOST_OUTPUT)}, so its figure may be missing; let it print less"
        )
    try:
        value, suffix = figure.read(output, taken), figure.read_suffix(output)
    except ValueError as error:
        raise CommandFailed(f"{where}: {error}; it printed: {_quote_end(output)}") from None
    return CommandRun(value, loops or None, cpus, written, suffix, fetched, read)


def _quote_end(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(line[:200] for line in lines[-_LAST_LINES:]) or "nothing"


def find_obstacle(planned: PlannedCommand, *, limited: bool) -> str | None:
    """Why nothing can run on the volume; None if it can. `limited`: the run may write only so many bytes."""
    mode = planned.cell.mode
    attach = mode.attach
    if limited and planned.command.writes is None:
        return "nothing limits what a command writes, and this run has a limit: add `writes` to it"
    if not isinstance(attach, Attach):
        return "the guest has the disk itself, so the host cannot make a file system on it"
    obstacles = {
        "the guest cannot write": attach.read_only,
        "the mode has a file system already, which the guest has mounted: choose a mode without `filesystem`": (
            mode.filesystem is not None
        ),
        "the host has no volume of this mode for itself: choose a mode with a layout, or leave out on_host": (
            planned.command.on_host and attach.direct and planned.host is None
        ),
    }
    return next((why for why, applies in obstacles.items() if applies), None)
