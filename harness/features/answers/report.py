"""The answers of a disk in reports: which mode to use for what and how to set it up, and what single options do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import METRICS, Change, Relation
from harness.feature import FeatureReport, ReportPlace
from harness.features.answers.decision import (
    Answer,
    OptionEffect,
    OptionMatrix,
    Rival,
    compare_options,
    get_answers,
    select_results,
)
from harness.features.answers.responsible import yield_blame, yield_blame_sentences
from harness.model.job import Job
from harness.model.option import BUSES
from harness.report.blocks import (
    MOST_LISTED,
    Aside,
    Block,
    Code,
    Column,
    Fold,
    Heading,
    Listing,
    Mark,
    On,
    Row,
    Sentence,
    Table,
    TableCell,
    join_words,
    make_table,
)
from harness.report.numbers import (
    percent,
    percent_with_interval,
    say_loss,
    short,
    signed_percent,
    significant,
    with_interval,
)
from harness.report.section import Section
from harness.results import ArmName, CellRecord, Run, RunStore
from harness.units import format_duration, short_size

_OF_THE_RUN = ("serial", "size", "backup", "file")
"""Options of a drive that belong to the run's own guest."""
_BY_ID = "/dev/disk/by-id/"
"""A whole disk is no volume of a storage of Proxmox VE, and its /dev/sdX may be another disk after a boot."""


@dataclass(frozen=True, slots=True)
class ModeSetting:
    """What to set, and with what."""

    tool: str
    text: str


def find_setting(cells: Iterable[CellRecord], mode: str) -> ModeSetting | None:
    """How the disk of a mode was attached, as its hypervisor takes it; None if no guest was read back."""
    effective = next((cell.effective for cell in cells if cell.mode == mode), None)
    if effective is None:
        return None
    if effective.pve_drive is not None:
        return ModeSetting("qm set", _format_qm_set(effective.pve_drive, effective.guest_controller_driver))
    return ModeSetting("libvirt's XML", effective.libvirt_disk) if effective.libvirt_disk is not None else None


def _format_qm_set(drive: str, driver: str | None) -> str:
    """For example "qm set VMID --scsihw virtio-scsi-single --scsi0 STORAGE:VOLUME,cache=none,iothread=1".

    The guest's driver names the other controllers.
    """
    key, _, value = drive.partition(": ")
    volume, *options = value.split(",")
    options = [option for option in options if option.partition("=")[0] not in _OF_THE_RUN]
    kinds = (facts.scsihw for facts in BUSES.values() if facts.scsihw and facts.guest_controller_driver == driver)
    controller = f"--scsihw {next(kinds, 'virtio-scsi-single')} " if key.startswith("scsi") else ""
    return f"qm set VMID {controller}--{key} {','.join((_choose_volume(volume), *options))}"


def _choose_volume(volume: str) -> str:
    """What to give to the VM: a disk by its stable path, as it was in the run, or a volume of the user's own."""
    if not volume.startswith("/"):
        return "STORAGE:VOLUME"
    is_disk = volume.startswith(_BY_ID) and not re.search(r"-part[0-9]+$", volume)
    return volume if is_disk else f"{_BY_ID}DISK"


MOST_NAMED = 5
"""Modes that a sentence names. Of more, it gives the number of the others."""
_WITHIN = "5 %"
_MOST_JOBS = 8
"""Of a single mode, the last lines of a run show so many jobs."""
_RELATIONS = {Relation.SHOWN: "", Relation.EQUAL: " (equal)", Relation.UNDECIDED: " (undecided)", Relation.UNKNOWN: ""}
_WORSE = {"iops": ("fewer IOPS", "more IOPS"), "bw": ("fewer MB/s", "more MB/s")}
_SHORT = {"iops": "IOPS", "bw": "MB/s", "lat_mean": "mean latency", "clat_mean": "mean latency"}


def answer_blocks(section: Section) -> Iterator[Block]:
    """Which mode to use for what on a disk, and how to set it up; nothing without a result."""
    given = get_answers(section)
    if not given:
        return
    yield Table(
        (
            Column("for", "head"),
            Column("use", "strong_code"),
            Column("because", "sentence"),
            Column("against the host", "sentence"),
            Column("CPU of the host per I/O", "sentence"),
            Column("undecided", "sentence"),
        ),
        tuple(map(_answer_row, given)),
        f"Which mode to use for what, on {section.name}. Modes that cannot be told apart are called equal, and the one "
        "that suits the use best is named first: it shares the disk, has snapshots where they matter, and is simple.",
        on=On.PAGE,
        style="facts answers",
        caption_shown=True,
        narrow=True,
    )
    for answer in given:
        yield Sentence(answer_sentence(answer), on=On.TEXT)
        yield Listing(answer_details(answer), on=On.TEXT, indent=2)
    for mode in dict.fromkeys(answer.mode for answer in given if answer.mode):
        setting = find_setting(section.cells, mode)
        if setting is not None:
            yield Fold((f"Set up `{mode}` with {setting.tool}",), (Code(setting.text),))
            if "\n" not in setting.text:
                yield Sentence(f"set up `{mode}`: {setting.text}", on=On.TEXT)
    never = tuple(dict.fromkeys(f"{sentence}." for answer in given for sentence in explain_never(answer)))
    if never:
        yield Aside(" ".join(never))
        yield Listing(never, on=On.TEXT, most=MOST_LISTED)


def yield_brief(section: Section) -> Iterator[Block]:
    """A small table with the mode for each use that was measured; of a single mode, with its few jobs instead."""
    guests = [cell for cell in section.cells if not cell.is_baseline]
    shown = guests or section.cells
    if len({cell.mode for cell in shown}) == 1 and len(shown) <= _MOST_JOBS:
        yield from _yield_jobs(section, [cell for cell in shown if cell.usable or cell.is_baseline])
        return
    measured = [answer for answer in get_answers(section) if answer.judge is not None]
    if measured:
        one_boot = not section.run.lab.imported and all(cell.boot_count == 1 for cell in guests if cell.measured)
        yield make_table(
            measured,
            f"Which mode to use for what on {section.name}",
            (Column(section.name, "head"), lambda answer: answer.use.title),
            (Column("attach as", "mode"), lambda answer: answer.mode or "no recommendation"),
            (Column("guest against its host", "name"), lambda answer: _say_loss(answer) or answer.why),
            (Column("other modes", "name"), lambda answer: _say_rivals(answer, one_boot=one_boot)),
            on=On.BRIEF,
        )


def _yield_jobs(section: Section, cells: Sequence[CellRecord]) -> Iterator[Block]:
    """What host and guest do in each job, in the figure that people quote for it; without a guest, the host alone."""
    measured = [cell for cell in cells if cell.measured]
    if not measured:
        return
    columns = [
        (Column(section.name, "head"), lambda cell: _name_job(cell.job)),
        (Column("host"), lambda cell: _quote(cell, "host")),
    ]
    if not measured[0].is_baseline:
        columns += [
            (Column(f"guest ({measured[0].mode})"), lambda cell: _quote(cell, "guest")),
            (Column("lost"), lambda cell: percent_with_interval(cell.metrics[_choose_quoted(cell)].overhead, " %")),
        ]
    yield make_table(measured, f"What {section.name} does", *columns, on=On.BRIEF)


def _choose_quoted(cell: CellRecord) -> str:
    """The metric that people quote: that of the cell, or how many flushes there were."""
    return "iops" if cell.job.flushes else cell.headline_name


def _quote(cell: CellRecord, place: ArmName) -> str:
    name = _choose_quoted(cell)
    metric = METRICS[name]
    unit = "fsync/s" if cell.job.flushes else metric.shown.unit
    value = cell.mean(cell.metrics[name], place)
    return f"{with_interval(value, lambda number: short(number / metric.shown.scale))} {unit}" if value else "-"


def _name_job(job: Job) -> str:
    """For example "read 4k, random, 32 at a time"."""
    what = "read and write" if job.reads and job.writes else "read" if job.reads else "write"
    if job.trims:
        what = "trim" if job.only_trims else "trim and write"
    order = "fsync after each" if job.flushes else "random" if job.is_random else "sequential"
    pace = f"{job.depth} at a time" if job.rate is None else f"{job.rate} per second"
    how = ", in bursts" * (job.bursts is not None) + ", through the page cache" * job.buffered
    return f"{what} {short_size(job.bs)}, {order}, {pace}{how}"


def yield_rest_in_brief(section: Section) -> Iterator[Block]:
    """The cause, what to do next, and which uses were not measured."""
    yield from yield_blame(section)
    absent = [answer.use for answer in get_answers(section) if answer.judge is None]
    if absent:
        is_one_of_several = len({(cell.host, cell.disk, cell.scenario) for cell in section.run.cells}) > 1
        of = f" on {section.name}" if is_one_of_several else ""
        uses = ", ".join(f"{use.title} (workload {use.to_measure})" for use in absent)
        yield Sentence(f"Not measured{of}: {uses}.", on=On.BRIEF)


def _say_rivals(answer: Answer, *, one_boot: bool) -> str:
    """For example "raw may be as good: 12 min more would tell", or "4.1 % more IOPS than raw in this boot".

    The interval of one boot does not say what another boot would give.
    """
    if answer.mode is None or not (answer.equals or answer.worse):
        return "none to compare with" if answer.mode else ""
    if not answer.equals:
        change, rival = answer.worse[0].than.change.inverse, answer.worse[0].mode
        better = "more" if answer.higher_is_better else "less"
        boot = " in this boot" if one_boot else ""
        return f"{percent(abs(change.share.point))} % {better} {_name_metric(answer)} than {rival}{boot}"
    undecided = open_rivals(answer)
    modes = join_names([rival.mode for rival in undecided or answer.equals])
    verb = "are" if len(undecided or answer.equals) > 1 else "is"
    if not undecided:
        return f"{modes} {verb} as good (within {_WITHIN})"
    seconds = [rival.seconds for rival in undecided if rival.seconds is not None]
    more = f": {format_duration(max(60, sum(seconds)))} more would tell" if len(seconds) == len(undecided) else ""
    return f"{modes} may be as good{more}"


def join_names(modes: Sequence[str]) -> str:
    """ "a, b and c" as `named` has it, without backquotes."""
    return named(modes).replace("`", "")


def yield_matrix(section: Section) -> Iterator[Block]:
    """What single options of a disk's modes do; nothing if no two modes differ in one option only."""
    matrix = section.once(_compare_options_of)
    if matrix is None:
        return
    yield Heading("One option at a time")
    yield make_table(
        matrix.effects,
        join_words(
            "Throughput of the guest against the guest of the mode that differs in this option only, in the same "
            f"blocks. Most are compared with `{matrix.default}`. ",
            Mark("undecided"),
            ": the interval, or chance among so many options, allows both directions.",
        ),
        (Column("option", "mode"), lambda effect: effect.factor.words),
        (Column("mode", "name"), lambda effect: effect.mode),
        (Column("against", "name"), lambda effect: effect.reference),
        (Column("throughput", "strong"), lambda effect: change_percent(effect.effect.change)),
        (Column("jobs"), lambda effect: str(effect.jobs)),
        (Column("result", "name"), _effect_result),
        on=On.PAGE,
        style="cells matrix",
        caption_shown=True,
    )
    if matrix.apart:
        yield Aside(
            "These differ from every other mode in more than one option, so they are only compared with the host: "
            f"{', '.join(matrix.apart)}."
        )


def yield_matrix_lines(section: Section) -> Iterator[Block]:
    """The same for text: first what is shown, then what is not, each in the order of the plan."""
    matrix = section.once(_compare_options_of)
    if matrix is not None:
        effects = sorted(matrix.effects, key=lambda effect: effect.relation is not Relation.SHOWN)
        yield Sentence("one option at a time, guest against guest:", on=On.TEXT)
        yield Listing(tuple(map(describe_effect, effects)), on=On.TEXT, indent=2, most=MOST_LISTED)


def _compare_options_of(section: Section) -> OptionMatrix | None:
    return compare_options(select_results(section))


def _answer_row(answer: Answer) -> Row:
    basis = describe_basis(answer)
    title = TableCell(answer.use.title, notes=(f"judged by {basis}",) if basis else ())
    if answer.mode is None:
        return Row((title, "", describe_verdict(answer)))
    notes = [describe_rivals(answer)] if answer.equals else []
    notes += [*list_cautions(answer), *([f"change {change}"] if (change := change_words(answer)) else [])]
    return Row(
        (
            title,
            answer.mode,
            TableCell(describe_verdict(answer), notes=tuple(notes)),
            _say_loss(answer),
            describe_cpu(answer) or "not counted",
            describe_undecided(answer) or "nothing",
        )
    )


def _effect_result(effect: OptionEffect) -> TableCell:
    """How the two were compared, if not in the same blocks, is below the result."""
    notes = () if effect.effect.paired else ("by way of their hosts, as they had different guests",)
    return TableCell(_judge_effect(effect), notes=notes)


def describe_effect(effect: OptionEffect) -> str:
    """For a line of text: "iothread off: -4.0 % [-9.1, 1.2] against `passthrough`, undecided"."""
    change = change_percent(effect.effect.change)
    return f"{effect.factor.words}: {change} against `{effect.reference}`, {_judge_effect(effect)}"


def _judge_effect(effect: OptionEffect) -> str:
    """Whether the option changes the throughput."""
    if effect.relation is Relation.SHOWN:
        return "faster" if effect.effect.change.ratio > 1 else "slower"
    return str(effect.relation)


def describe_verdict(answer: Answer) -> str:
    """What to do and why, as the end of a sentence."""
    if answer.judge is None:
        return f"not measured: add the workload `{answer.use.to_measure}`"
    if answer.mode is None:
        return f"no recommendation: {answer.why}"
    if not answer.equals and not answer.worse:
        return f"`{answer.mode}` is the only mode to choose from"
    if not answer.equals:
        return f"use `{answer.mode}`: {describe_rivals(answer)}"
    equals = f"{named((answer.mode, *(equal.mode for equal in answer.equals)))} {_describe_equality(answer)}"
    if not answer.why:
        return f"{equals}; use any of them"
    return f"{equals}; use {named((answer.mode, *answer.alike), 'or')}: {answer.why}"


def _describe_equality(answer: Answer) -> str:
    return "cannot be told apart" if open_rivals(answer) else f"are equal within {_WITHIN}"


def describe_rivals(answer: Answer) -> str:
    """The mode against the runner-up: the best of the modes that are worse, or else the equal ones."""
    if answer.mode is None:
        return ""
    return "; ".join(_describe_rival(answer, equal) for equal in (answer.equals or answer.worse[:1])[:MOST_NAMED])


def describe_loss(answer: Answer) -> str:
    """The guest of the mode against the host: "-38.2 % [-41.0, -35.2] IOPS"."""
    loss = answer.loss
    if loss is None:
        return ""
    sign = -1 if answer.higher_is_better else 1
    ends = () if loss.low is None or loss.high is None else sorted((sign * loss.low, sign * loss.high))
    interval = f" [{', '.join(map(percent, ends))}]" if ends else ""
    return f"{signed_percent(sign * loss.point)} %{interval} {_name_metric(answer)}"


def _say_loss(answer: Answer) -> str:
    """The same in words that can be read aloud (`say_loss`); empty without a figure."""
    if answer.loss is None:
        return ""
    name = _name_metric(answer)
    return say_loss(answer.loss, *_WORSE.get(answer.metric, (f"higher {name}", f"lower {name}")))


def describe_cpu(answer: Answer) -> str:
    """CPU time of the host for an I/O of the guest: "34.1 us [33.9, 34.3]"."""
    cost = answer.cpu
    if cost is None:
        return ""
    return with_interval(cost, lambda seconds: significant(seconds * 1e6), " us")


def open_rivals(answer: Answer) -> tuple[Rival, ...]:
    """The equal modes of which it is not proven that they are equal."""
    return tuple(equal for equal in answer.equals if equal.shown is not Relation.EQUAL)


def describe_undecided(answer: Answer) -> str:
    """What is undecided, and how much more measuring would decide it; empty if nothing is."""
    if not open_rivals(answer):
        return ""
    known = [rival.seconds for rival in open_rivals(answer) if rival.seconds is not None]
    words = f"`{answer.mode}` or {named([rival.mode for rival in open_rivals(answer)], 'or')}"
    if len(known) < len(open_rivals(answer)):
        return f"{words}: their blocks differ too much, so more time would not decide"
    return f"{words}: about {format_duration(max(60, sum(known)))} more of measuring these modes would decide"


def change_words(answer: Answer) -> str:
    """The one option to change, with the gain that was measured; empty if no such change is shown."""
    step = answer.step if answer.mode is not None else None
    if step is None:
        return ""
    return f"{step.factors[0].words} (`{step.mode}` to `{answer.mode}`): {_format_gain(answer, step)}"


def describe_basis(answer: Answer) -> str:
    """By what it was judged."""
    judge, jobs = answer.judge, [job.id for job in answer.jobs]
    if judge is None or not jobs:
        return ""
    shown = ", ".join(jobs[:MOST_NAMED]) + (f" and {len(jobs) - MOST_NAMED} more" * (len(jobs) > MOST_NAMED))
    return f"{judge.words} ({shown}), by {METRICS[answer.metric].label}"


def explain_never(answer: Answer) -> tuple[str, ...]:
    """The modes that are never recommended, with the reason."""
    return tuple(f"`{rival.mode}` is never recommended: {rival.unfit}" for rival in answer.never)


def list_cautions(answer: Answer) -> tuple[str, ...]:
    """What to know before using the mode, or one of its equals."""
    return tuple(f"`{mode}`: {words}" for mode, words in answer.cautions)


def answer_sentence(answer: Answer) -> str:
    """For a line of text."""
    parts = [f"{answer.use.title}: {describe_verdict(answer)}"]
    if answer.mode and answer.equals:
        parts.append(describe_rivals(answer))
    if answer.mode:
        parts.append(f"{describe_loss(answer)} against the host")
        parts += [f"CPU {cpu} per I/O"] if (cpu := describe_cpu(answer)) else []
    return "; ".join(part for part in parts if part)


def answer_details(answer: Answer) -> tuple[str, ...]:
    """What else there is to say, each in a sentence."""
    change, undecided, basis = change_words(answer), describe_undecided(answer), describe_basis(answer)
    return (
        *list_cautions(answer),
        *([f"change {change}"] if change else []),
        *([f"undecided: {undecided}"] if undecided else []),
        *([f"judged by {basis}"] if basis else []),
    )


def _describe_rival(answer: Answer, rival: Rival) -> str:
    return f"{_format_gain(answer, rival)} against `{rival.mode}`{_RELATIONS[rival.shown]}"


def _format_gain(answer: Answer, rival: Rival) -> str:
    return f"{change_percent(rival.than.change.inverse)} {_name_metric(answer)}"


def _name_metric(answer: Answer) -> str:
    return _SHORT.get(answer.metric, METRICS[answer.metric].label)


def named(modes: Sequence[str], word: str = "and") -> str:
    """ "`a`, `b` and `c`"; of many, the first ones and the number of the others."""
    quoted = [f"`{mode}`" for mode in modes]
    if len(quoted) > MOST_NAMED:
        return f"{', '.join(quoted[: MOST_NAMED - 1])} {word} {len(quoted) - MOST_NAMED + 1} others"
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


def change_percent(change: Change) -> str:
    """A change with its interval: "+38.0 % [31.2, 45.1]"."""
    return percent_with_interval(change.share, " %", signed=True)


def to_json(section: Section) -> dict[str, object]:
    """The answers of a disk for programs that need no figures of single cells."""
    answers = [
        {
            "use": answer.use.title,
            "mode": answer.mode,
            "equal": [equal.mode for equal in answer.equals],
            "undecided": [rival.mode for rival in open_rivals(answer)],
            "sentence": answer_sentence(answer),
        }
        for answer in get_answers(section)
    ]
    return {"answers": answers}


def _answer(section: Section) -> Iterator[Block]:
    yield from answer_blocks(section)
    yield from yield_matrix_lines(section)
    yield from yield_brief(section)


def _draw_card(store: RunStore, run: Run) -> tuple[Path, str]:
    from harness.features.answers.card import write_card  # noqa: PLC0415 - it imports what draws pictures

    return write_card(store, run)


REPORT = FeatureReport(
    contents={
        ReportPlace.ANSWERS: _answer,
        ReportPlace.DIFFERENCES: yield_matrix,
        ReportPlace.FINDINGS: yield_rest_in_brief,
    },
    leads=yield_blame_sentences,
    section_json=to_json,
    draw_card=_draw_card,
)
