"""What a report says of a run and of each disk, and where: warnings, the answer, the disks, and what features add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from harness.feature import ReportPlace, features, find_conditioner
from harness.model.disk import Controller, DiskFacts, DiskHealth, DiskRecord
from harness.model.guest import describe_guest
from harness.report.blocks import (
    Banner,
    Block,
    Chart,
    Column,
    Fold,
    Listing,
    On,
    Row,
    Sentence,
    Table,
    first,
)
from harness.report.modes import Headline, headline
from harness.report.numbers import count, percent, significant
from harness.report.section import Section, WorkloadCells
from harness.results import CellRecord, Run
from harness.results.records import IMPORTED
from harness.units import format_size

NO_MODEL = "its host reports no model"


def disk_blocks(section: Section) -> Iterator[Block]:
    """What the disks of a section are, what a reader must know about them, and the size of its guests."""
    disks = disks_of(section.run, section.all_cells[0].scenario, section.all_cells[0].disk)
    notes = disk_notes(disks)
    for names, record in disks:
        named = ", ".join(names)
        yield Sentence(disk_sentence(names, record), on=On.PAGE, style="basis")
        rows = tuple(Row(row) for row in _fact_rows(record))
        facts = Table((Column("", "head"), Column("", "text")), rows, f"Facts of {named}", style="facts")
        yield Fold(f"All facts of {named}", (facts,))
    yield Listing(notes, on=On.PAGE)
    sentences = first([disk_sentence(*disk) for disk in disks])
    guests = guest_sentences(section)
    yield Listing((*(f"disk {line}" for line in (*sentences, *notes)), *guests), on=On.TEXT)
    for sentence in guests:
        yield Sentence(sentence, on=On.PAGE, style="basis")


def guest_sentences(section: Section) -> tuple[str, ...]:
    """Size and placement of the guests, as read back: a sentence for all modes with the same."""
    guests = guests_of(section.all_cells)
    return tuple(f"{what[0].upper()}{what[1:]}: {words}." for what, words in guests)


def guests_of(cells: Iterable[CellRecord]) -> Iterator[tuple[str, str]]:
    """The size and placement of the guests, as they were read back: one row for all modes with the same."""
    modes: dict[str, dict[str, None]] = {}
    for cell in cells:
        if words := describe_guest(cell.effective):
            modes.setdefault(words, {})[cell.mode] = None
    for words, names in modes.items():
        yield "guest" if len(modes) == 1 else f"guest of {', '.join(names)}", words


def disk_sentence(names: Sequence[str], record: DiskRecord) -> str:
    """For example "fast: Samsung SSD 990 PRO 2TB, firmware 4B2QJXD7, 2000 GB, ...; 41 to 45 C"."""
    health = list(_health(record.before, record.after))
    return f"{', '.join(names)}: {', '.join(_parts(record))}" + (f"; {', '.join(health)}" if health else "")


def disks_of(run: Run, scenario: str, disk: str) -> tuple[tuple[tuple[str, ...], DiskRecord], ...]:
    """The disks of a scenario, `disk` first: the names of those that are alike, with the record of the first one.

    Disks are alike if they have the same facts and no notes of their own, for example the members of an array.
    """
    alike: dict[DiskRecord, list[str]] = {}
    for record in _of_scenario(run, scenario, disk):
        shared = replace(record, name="", facts=replace(record.facts, device=""), before=None, after=None)
        alike.setdefault(record if record.before or record.after else shared, []).append(record.name)
    return tuple((tuple(names), record) for record, names in alike.items())


def disk_notes(disks: Sequence[tuple[Sequence[str], DiskRecord]]) -> tuple[str, ...]:
    """What a reader must know about the disks: each note once, with the disks that it applies to."""
    notes: dict[str, list[str]] = {}
    for names, record in disks:
        for note in record.notes:
            notes.setdefault(note, []).extend(names)
    return tuple(f"{', '.join(names)}: {note}" for note, names in notes.items())


def _of_scenario(run: Run, scenario: str, disk: str) -> Iterator[DiskRecord]:
    asked = run.provenance.get("asked")
    prefix = f"{scenario}.disk."
    others = [key.removeprefix(prefix) for key in asked if key.startswith(prefix)] if isinstance(asked, dict) else []
    by_name = {disk.name: disk for disk in run.disks}
    return (by_name[name] for name in dict.fromkeys((disk, *others)) if name in by_name)


def _parts(record: DiskRecord) -> Iterator[str]:
    facts = record.facts
    yield facts.name or NO_MODEL
    if facts.firmware:
        yield f"firmware {facts.firmware}"
    if facts.size_bytes:
        yield _capacity(facts.size_bytes)
    if blocks := _blocks(facts):
        yield f"blocks of {blocks}"
    if facts.array is not None:
        yield _array(facts)
    if facts.link is not None:
        yield str(facts.link)
    if facts.network is not None:
        yield f"by {facts.network}"
    if facts.scheduler:
        yield f"scheduler {facts.scheduler}"
    if facts.write_cache:
        yield facts.write_cache
    if facts.numa_node is not None:
        yield f"NUMA node {facts.numa_node}"
    if facts.controller is not None:
        yield f"behind {_controller(facts.controller)}"
    if record.below:
        models = list(dict.fromkeys(disk_facts.name or disk_facts.device for disk_facts in record.below))
        yield f"on {len(record.below)} x {' and '.join(models)}"


def _fact_rows(record: DiskRecord) -> Iterator[tuple[str, str]]:
    facts = record.facts
    yield "device", facts.device
    yield "class", facts.disk_class or "not known"
    yield "model", facts.name or NO_MODEL
    known = {
        "firmware": facts.firmware,
        "capacity": _capacity(facts.size_bytes) if facts.size_bytes else None,
        "logical and physical block": _blocks(facts),
        "link": str(facts.link) if facts.link else None,
        "network": str(facts.network) if facts.network else None,
        "scheduler": facts.scheduler,
        "write cache": facts.write_cache,
        "NUMA node": str(facts.numa_node) if facts.numa_node is not None else None,
        "PCI address": facts.path,
        "controller": _controller(facts.controller) if facts.controller else None,
        "array": _array(facts) if facts.array else None,
        "on": ", ".join(
            f"{disk.device} ({', '.join(filter(None, (disk.name, disk.firmware, str(disk.link or ''))))})"
            for disk in record.below
        ),
        "before": ", ".join(_health(record.before, None)),
        "afterwards": ", ".join(_health(record.after, None)),
    }
    yield from ((what, text) for what, text in known.items() if text)


def _capacity(size_bytes: int) -> str:
    """As on the label, and in the unit of the scenarios: "280 GB (260.8 GiB)"."""
    return f"{significant(size_bytes / 1e9)} GB ({format_size(size_bytes)})"


def _blocks(facts: DiskFacts) -> str:
    sizes = (facts.logical_block_bytes, facts.physical_block_bytes)
    return "/".join(str(size) for size in sizes if size) + " B" if any(sizes) else ""


def _array(facts: DiskFacts) -> str:
    array = facts.array
    if array is None:
        return ""
    parts = [f"{array.level or 'array'}{f' of {array.disks} disks' if array.disks else ''}"]
    if array.chunk_bytes:
        parts.append(f"strips of {format_size(array.chunk_bytes)}")
    if array.legs and array.legs > 1:
        parts.append(f"a stripe over {array.legs} of them")
    if array.cache_policy:
        parts.append(f"cache policy {array.cache_policy}")
    if array.controller:
        parts.append(f"provided by {array.controller}")
    if array.source == "the lab file":
        parts.append("by the lab file")
    return ", ".join(parts)


def _controller(controller: Controller) -> str:
    names = [name for name in (controller.vendor, controller.model) if name]
    parts = [" ".join(names) or "a controller"]
    if controller.firmware:
        parts.append(f"firmware {controller.firmware}")
    if controller.driver:
        parts.append(f"driver {controller.driver}")
    if controller.link is not None:
        parts.append(str(controller.link))
    return ", ".join(parts)


def _health(before: DiskHealth | None, after: DiskHealth | None) -> Iterator[str]:
    """Temperature and wear, as "41 to 45 C" if it changed, and what was written in between."""
    known = [disk_health for disk_health in (before, after) if disk_health is not None]
    if celsius := _from_to([health.celsius for health in known]):
        yield f"{celsius} C"
    if used := _from_to([health.used_percent for health in known]):
        yield f"{used} % of its rated endurance used"
    written = [health.written_bytes for health in known if health.written_bytes is not None]
    if len(written) == 2:
        yield f"{format_size(max(written[1] - written[0], 0))} written meanwhile by its own count"
    elif written:
        yield f"{format_size(written[0])} written in its life"
    errors = [health.errors or 0 for health in known]
    if errors and errors[-1]:
        yield f"{errors[-1]} media errors, {errors[-1] - errors[0]} of them new"


def _from_to(values: Sequence[float | None]) -> str:
    return " to ".join(dict.fromkeys(f"{value:g}" for value in values if value is not None))


def find_banners(run: Run) -> tuple[Banner, ...]:
    """Warnings if the run is incomplete, has results that nothing here reads, judged nothing, had a limit of bytes
    written, its lab is not real hardware, or it has no interval, and those of features."""
    of_kernel = (_status_banner, _unknown_banner, _judged_banner, _writes_banner, _lab_banner, _blocks_banner)
    methods = dict.fromkeys(group.conditioning.method for group in run.groups if group.conditioning is not None)
    finders = (*of_kernel, *(find_conditioner(method).banners for method in methods))
    return tuple(banner for find in finders for banner in find(run))


def _status_banner(run: Run) -> Iterator[Banner]:
    if run.run.status == "complete":
        return
    titles = {
        "running": "This run has not finished yet",
        "interrupted": "This run was interrupted",
        "failed": "This run failed",
    }
    measured = sum(record.measured for record in run.cells)
    so_far = f"{measured} of {count(len(run.cells), 'cell')} measured; the report shows these."
    if measured == 0 and run.cells:
        so_far = f"None of its {count(len(run.cells), 'cell')} was measured, so there is nothing to compare."
    elif not run.cells:
        so_far = "No cell was measured, so there is nothing to compare."
    cause = f"{' '.join(run.run.cause.split()).rstrip('.')}. " if run.run.cause else ""
    yield Banner("status", titles[run.run.status], cause + so_far)


def _unknown_banner(run: Run) -> Iterator[Banner]:
    if run.unknown:
        yield Banner(
            "unknown",
            "Left out",
            f"results.json has also {', '.join(run.unknown)}, which this installation of virt-overhead cannot show.",
        )


def _judged_banner(run: Run) -> Iterator[Banner]:
    if run.judged is not None and run.judged.why is not None and run.run.status != "running":
        yield Banner("judged", "Nothing was judged", run.judged.why)


def _writes_banner(run: Run) -> Iterator[Banner]:
    for write in run.writes:
        share = f", {percent(write.written / write.endurance)} % of its endurance" if write.endurance else ""
        left_out = f" Left out: {'; '.join(write.left_out)}." if write.left_out else " Nothing was left out."
        yield Banner(
            "writes",
            "Limited writes",
            f"{write.disk}: {format_size(write.written)} written by the disk's own counter{share}; --max-writes="
            f"{run.run.max_writes} allows {format_size(write.limit)}.{left_out}",
        )


def _lab_banner(run: Run) -> Iterator[Banner]:
    if run.lab.imported:
        yield Banner("lab", "Imported", f"{_imported(run)} Host and guest were not measured in alternation.")
    elif not run.lab.representative and any(record.measured for record in run.cells):
        yield Banner(
            "lab",
            "Relative only",
            f"{run.lab.why.rstrip('.')}. Figures compare modes with the host of this lab; "
            "they say nothing about real hardware.",
        )


def _imported(run: Run) -> str:
    """Where the figures of an imported run are from, and which files were left out."""
    origin = run.provenance.get(IMPORTED)
    files = [file for file in origin.values() if isinstance(file, dict)] if isinstance(origin, dict) else []
    left_out = [str(file.get("from")) for file in files if "left out" in file]
    words = f"The figures are from {count(len(files) - len(left_out), 'file')} of another tool ({run.lab.why})."
    return f"{words} Left out, because they cannot be read: {', '.join(left_out)}." if left_out else words


def _blocks_banner(run: Run) -> Iterator[Banner]:
    blocks = [len(record.rounds) for record in run.cells if record.measured]
    if blocks and max(blocks) == 1:
        more = "Import" if run.lab.imported else "Measure"
        yield Banner(
            "blocks",
            "One block",
            "A block is a sample, and the spread of one sample is unknown: no value has an interval, and no "
            f"budget can be judged. {more} at least ten {'results of each arm' if run.lab.imported else 'blocks'}.",
        )


def headline_of(section: Section) -> Headline:
    """The answer for a disk, with all details."""
    answer = section.special or headline(section.name, section.comparison)
    details = (sentence for report in section.reports for sentence in report.details(section))
    return Headline(answer.sentence, (*lead_sentences(section), *answer.details, *details))


def lead_sentences(section: Section) -> tuple[str, ...]:
    """The first details below the headline of a disk."""
    return tuple(sentence for report in section.reports for sentence in report.leads(section))


def lab_sentences(run: Run) -> tuple[str, ...]:
    """What is known about the smallest overhead that the lab can show."""
    return tuple(sentence for feature in features() for sentence in feature.about_lab(run))


def blocks_at(place: ReportPlace, section: Section) -> Iterator[Block]:
    """What is there of a disk: first that of the kernel, then that of each feature."""
    if place is ReportPlace.FINDINGS:
        yield from blocks_at(ReportPlace.PARTS, section)
    if place is ReportPlace.FACTS:
        yield from disk_blocks(section)
    for report in section.reports:
        if place in report.contents:
            yield from report.contents[place](section)


def further_charts(section: Section, workload: WorkloadCells, key: str) -> Iterator[Chart]:
    """The charts of features of a workload."""
    for report in section.reports:
        yield from report.workload_charts(section, workload, key)


def further_tables(section: Section, workload: WorkloadCells, key: str) -> Iterator[Block]:
    """What features say of a workload below its cells."""
    for report in section.reports:
        yield from report.workload_tables(section, workload, key)
