"""Runs a user's command on a file system on the volume of a mode, by turns on the host and in the guest."""

from __future__ import annotations

import base64
import math
import random
import shlex
from collections.abc import Iterator, Sequence
from functools import partial

from harness.errors import HarnessError, Unsupported
from harness.features.commands.request import (
    MOST_OUTPUT,
    CommandFailed,
    CommandRecord,
    CommandRun,
    OwnFigure,
    PlannedCommand,
    find_obstacle,
    read_run,
    require_same_unit,
)
from harness.files import read_script
from harness.lab.pin import MARK, MOUNT_DIRECTORY
from harness.layout import BlockSource
from harness.measure.rounds import FollowingSeries, OneStepSeries, SeriesContext, follow_once
from harness.measure.series import OpenSession, PreparedGroup
from harness.model.mode import Arm
from harness.units import format_duration

_RUN = read_script("harness.features.commands", "run_command.sh")
_MKFS = {
    # Not discarded: the blocks of a thin volume stay allocated.
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
SYNCLOAD = "syncload"
"""The file in the image of fio with the program for small synchronous writes (images/fio/syncload.c)."""
_BESIDE = 30.0
"""Seconds for the mounts of one run on a slow machine. Then it is killed; after as many more, the machine hangs."""


def follow(context: SeriesContext, prepared: PreparedGroup) -> Iterator[FollowingSeries]:
    """The commands of a group that was measured, if the run has none of them yet."""
    planned = context.plan.follow_ups_of(PlannedCommand, context.group)
    limited = bool(context.spec.limits)
    series = (
        (_make_series(context, command), prepared.why_skipped(command.cell) or find_obstacle(command, limited=limited))
        for command in planned
    )
    return follow_once(context.recorder, CommandRecord, series)


def _make_series(context: SeriesContext, planned: PlannedCommand) -> OneStepSeries:
    """The series of one command on one mode: its only step has all of its runs."""
    plan, host = context.plan, context.spec.host.name
    return OneStepSeries(
        context=context,
        id=planned.id,
        title=f"run {planned.name} on {planned.cell.mode.name}, at most {format_duration(planned.most_seconds)}",
        measure=partial(run_in_turns, planned, host),
        skip=lambda why: make_record(planned, host, problem=why),
        writes={disk: planned.bytes_written(plan.write_rate, place) for place, disk in enumerate(plan.disks)},
    )


def make_record(
    planned: PlannedCommand,
    host: str,
    *,
    problem: str | None = None,
    on_host: Sequence[CommandRun] = (),
    in_guest: Sequence[CommandRun] = (),
    raw: Sequence[str] = (),
) -> CommandRecord:
    """The record of a command on one mode, with its runs."""
    command, cell = planned.command, planned.cell
    options = f" ({command.mount_options})" if command.mount_options else ""
    sides = {"host": on_host, "guest": in_guest}
    written = [run.written for runs in sides.values() for run in runs if run.written is not None]
    return CommandRecord(
        id=planned.id,
        name=planned.name,
        scenario=cell.scenario,
        host=host,
        disk=cell.disk,
        mode=cell.mode.name,
        command=command.command,
        filesystem=f"{command.filesystem}{options}",
        unit=command.figure.unit,
        better=command.figure.better,
        on_host=tuple(run.figure for run in on_host),
        in_guest=tuple(run.figure for run in in_guest),
        raw=tuple(raw),
        problem=problem,
        cpu_on_host=_list_loops(on_host),
        cpu_in_guest=_list_loops(in_guest),
        cpus={side: runs[0].cpus for side, runs in sides.items() if runs and runs[0].cpus is not None},
        most_written=max(written, default=None),
        reads={side: read for side, runs in sides.items() if (read := _sum_reads(runs)) is not None},
    )


def _list_loops(runs: Sequence[CommandRun]) -> tuple[float, ...]:
    """Those of all runs; empty if one has none."""
    loops = [run.loops for run in runs if run.loops is not None]
    return tuple(loops) if len(loops) == len(runs) else ()


def _sum_reads(runs: Sequence[CommandRun]) -> tuple[int, int] | None:
    """Bytes that the processes of all runs read, and that the volume gave; None without runs, or with unknown ones."""
    known = [(run.read, run.fetched) for run in runs if run.read is not None and run.fetched is not None]
    if not runs or len(known) < len(runs):
        return None
    return sum(read for read, _ in known), sum(fetched for _, fetched in known)


def run_in_turns(planned: PlannedCommand, host: str, opened: OpenSession) -> CommandRecord:
    """Make the file system, prepare both sides, and run the command on each of them by turns, in random order.

    The first run without a figure ends it; the pairs before count. Raises HostError, GuestError, SafetyError.
    """
    arms = [arm for arm in (planned.host, planned.guest) if arm is not None]
    runs: dict[Arm, list[CommandRun]] = {arm: [] for arm in arms}
    raw: list[str] = []
    chance = random.Random(f"command {opened.seed} {planned.id}")
    problem = None
    try:
        with opened.session.holding(planned.guest):
            _make_filesystem(planned, opened)
            turns = [("prepare", arm) for arm in arms] if planned.command.prepare else []
            for number in range(1, planned.command.runs + 1):
                turns += [(str(number), arm) for arm in chance.sample(arms, len(arms))]
            for what, arm in turns:
                printed = _run_once(planned, opened, arm, prepares=what == "prepare")
                name = f"{planned.id}-{what}-{arm.place.value}.txt"
                raw.append(opened.store.save_raw(name, printed, command=planned.command.command))
                where = f"{planned.name} {'in the guest' if arm.in_guest else 'on the host'}"
                figure, seconds, writes = planned.command.figure, planned.command.seconds, planned.command.writes
                if what == "prepare":
                    read_run(printed, OwnFigure(), f"prepare of {where}", seconds, writes)
                else:
                    command_run = read_run(printed, figure, where, seconds, writes)
                    require_same_unit(command_run, (run for several in runs.values() for run in several), where)
                    runs[arm].append(command_run)
    except CommandFailed as error:
        problem = error.message
    # A pair counts only as a whole.
    pairs = min(map(len, runs.values()))
    sides = {arm.in_guest: runs[arm][:pairs] for arm in arms}
    return make_record(
        planned, host, problem=problem, on_host=sides.get(False, ()), in_guest=sides.get(True, ()), raw=raw
    )


def _make_filesystem(planned: PlannedCommand, opened: OpenSession) -> None:
    source = _source(planned, opened)
    if source.offset:
        raise Unsupported(f"{planned.id}: its volume does not begin at the start of a device or file")
    if source.format != "raw":
        raise Unsupported(f"{planned.id}: the host cannot make a file system in an image of this format")
    argv = [*_MKFS[planned.command.filesystem], source.path]
    try:
        _run_on_source(source, argv, deadline=300)
    except HarnessError as error:
        hint = "install e2fsprogs or xfsprogs there, or set a larger `span` in the profile: xfs wants 300 MiB"
        raise Unsupported(f"{planned.id}: no {planned.command.filesystem}: {error.message}", hint=hint) from error


def _source(planned: PlannedCommand, opened: OpenSession) -> BlockSource:
    return opened.session.layouts.guest(planned.cell.mode)


def _run_on_source(source: BlockSource, argv: Sequence[str], *, deadline: float) -> str:
    """Run a command that writes to the source, on the host. Returns what it printed."""
    if source.kind == "file":
        return source.writable.run_on_file(argv, source.path, deadline=deadline).stdout
    return source.writable.run(argv, deadline=deadline).stdout


def _run_once(planned: PlannedCommand, opened: OpenSession, arm: Arm, *, prepares: bool) -> str:
    """Run the command, or its preparation, once. Returns what run_command.sh printed."""
    command, session = planned.command, opened.session
    guest, source = session.guest(arm), _source(planned, opened)
    seconds, control = math.ceil(command.seconds), 0 if prepares else planned.control_seconds
    device = source.path if guest is None else session.target(arm).path
    what = command.prepare if prepares else command.command
    within = seconds + control + _BESIDE
    where = [MARK, MOUNT_DIRECTORY, f"{within:g}", device, command.filesystem, command.mount_options]
    limits = ["guest" if arm.in_guest else "host", str(seconds), str(MOST_OUTPUT)]
    syncload = _read_syncload(opened)
    if guest is None:
        argv = ["sh", "-c", _RUN, "sh", *where, *limits, syncload, str(control), what]
        return _run_on_source(source, argv, deadline=within + _BESIDE)
    # Dropbear, the SSH server of our own guest, refuses a command of more than 9000 bytes.
    argv = ["sh", "-s", "--", *where, *limits, "", str(control), ""]
    stdin = f"export SYNCLOAD={syncload} COMMAND={shlex.quote(what)}\n{_RUN}"
    return guest.runner.run(argv, stdin=stdin, deadline=within + _BESIDE).stdout


def _read_syncload(opened: OpenSession) -> str:
    """The program `syncload` of the images in base64: some kilobytes, for which neither side needs a file."""
    return base64.b64encode((opened.session.host.guest_files.fio.parent / SYNCLOAD).read_bytes()).decode()
