"""What the disks of a section are, as their host reports it, and how the run changed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.model.disk import Controller, DiskFacts, DiskHealth, DiskRecord
from harness.report.background import guests_of
from harness.report.blocks import Block, Column, Fold, Listing, On, Row, Sentence, Table
from harness.report.lines import first
from harness.report.numbers import significant
from harness.report.section import Section
from harness.results import Run
from harness.units import format_size

NO_MODEL = "its host reports no model"


def disk_blocks(section: Section) -> Iterator[Block]:
    """What the disks of a section are, what a reader must know about them, and the size of its guests."""
    disks = disks_of(section.run, section.cells[0].scenario, section.cells[0].disk)
    notes = disk_notes(disks)
    for names, record in disks:
        named = ", ".join(names)
        yield Sentence(disk_sentence(names, record), on=On.PAGE, style="basis")
        rows = tuple(Row(row) for row in _rows(record))
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
    guests = guests_of(section.cells)
    return tuple(f"{what[0].upper()}{what[1:]}: {words}." for what, words in guests)


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
    by_name = {each.name: each for each in run.disks}
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


def _rows(record: DiskRecord) -> Iterator[tuple[str, str]]:
    facts = record.facts
    yield "device", facts.device
    yield "class", facts.disk_class or "not known"
    yield "model", facts.name or NO_MODEL
    known = {
        "firmware": facts.firmware,
        "capacity": _capacity(facts.size_bytes) if facts.size_bytes else None,
        "logical and physical block": _blocks(facts),
        "link": str(facts.link) if facts.link else None,
        "scheduler": facts.scheduler,
        "write cache": facts.write_cache,
        "NUMA node": str(facts.numa_node) if facts.numa_node is not None else None,
        "PCI address": facts.path,
        "controller": _controller(facts.controller) if facts.controller else None,
        "array": _array(facts) if facts.array else None,
        "on": ", ".join(f"{each.device} ({', '.join(_parts_below(each))})" for each in record.below),
        "before": ", ".join(_health(record.before, None)),
        "afterwards": ", ".join(_health(record.after, None)),
    }
    yield from ((what, text) for what, text in known.items() if text)


def _parts_below(facts: DiskFacts) -> Iterator[str]:
    return (text for text in (facts.name, facts.firmware, str(facts.link) if facts.link else None) if text)


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
    if celsius := _from_to([each.celsius for each in known]):
        yield f"{celsius} C"
    if used := _from_to([each.used_percent for each in known]):
        yield f"{used} % of its rated endurance used"
    written = [each.written_bytes for each in known if each.written_bytes is not None]
    if len(written) == 2:
        yield f"{format_size(max(written[1] - written[0], 0))} written meanwhile by its own count"
    elif written:
        yield f"{format_size(written[0])} written in its life"
    errors = [each.errors or 0 for each in known]
    if errors and errors[-1]:
        yield f"{errors[-1]} media errors, {errors[-1] - errors[0]} of them new"


def _from_to(values: Sequence[float | None]) -> str:
    return " to ".join(dict.fromkeys(f"{value:g}" for value in values if value is not None))
