"""How each group was measured: order of arms, looks, the reason to stop, drift of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.feature import find_conditioner
from harness.report.blocks import Aside, Block, Cell, Column, Fold, Heading, Inline, Mark, Row, Sentence, Table
from harness.report.numbers import count, percent_interval, signed_percent
from harness.results import ConditioningRecord, DriftRecord, GroupRecord, Run

_IMPORTED = (
    "Round n has the n-th result of each arm and job, in the order of time. The results were measured one after the "
    "other; how is not known."
)
_MEASURED = (
    "The cells of a group are measured together: a round has some blocks of every job, and a block has one short slice "
    "of every arm, in a new random order. Writes of arms that use the host's page cache, and all arms of a disk that "
    "the guest has for itself, are measured one arm after the other."
)


def group_blocks(run: Run) -> Iterator[Block]:
    """The groups that were started, in the order of the plan."""
    if not run.groups:
        return
    yield Heading("Group by group")
    yield Aside(_IMPORTED if run.lab.imported else _MEASURED)
    for group in run.groups:
        yield Heading(group.id, level=4)
        yield Sentence(course_sentence(group))
        if orders := orders_of(group):
            rows = tuple(Row((str(number), ", ".join(order))) for number, order in orders)
            columns = (Column("round", "head"), Column("arms in the order of their first slices", "text"))
            table = Table(columns, rows, f"Order of arms of {group.id}", style="facts")
            yield Fold("Order of arms", (table,))
        if group.drift:
            yield _drift_fold(group)
        else:
            yield Aside("There are fewer than three values of the host, so its drift is not known.")


def _drift_fold(group: GroupRecord) -> Fold:
    too_much = any(drift.too_much for drift in group.drift)
    mark: tuple[Inline, ...] = (" ", Mark("too much", "verdict", "void")) if too_much else ()
    table = Table(
        (
            Column("job", "head"),
            Column("throughput, first to last, %", "sentence"),
            Column("values", "text"),
            Column("verdict", "text", hidden=True),
        ),
        tuple(map(_drift_row, group.drift)),
        f"Drift of the host in {group.id}",
        style="facts",
    )
    return Fold(("Drift of the bare host", *mark), (table,), open=too_much)


def _drift_row(drift: DriftRecord) -> Row:
    verdict = Cell("ok", tone="within")
    if drift.too_much:
        verdict = Cell("too much: cells without alternating arms are void", tone="void")
    return Row((drift.job, change_words(drift), str(drift.change.n), verdict))


def change_words(drift: DriftRecord) -> str:
    """In percent, with its sign and interval: "+3.1 [-1.2, 7.6]"."""
    return f"{signed_percent(drift.change.point)} {percent_interval(drift.change)}".rstrip()


def orders_of(record: GroupRecord) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The number of each whole round, and its arms in the order of their first slices."""
    return tuple(zip(record.rounds or range(1, len(record.orders) + 1), record.orders, strict=True))


def course_sentence(record: GroupRecord) -> str:
    """For example "5 rounds, with looks at 3 and 5 rounds (planned: 3, 5, 8, 12). Ended by: budget decided.".

    Abandoned rounds are named before the end.
    """
    done = len(record.orders)
    looks = [str(look) for look in record.looks if look <= done]
    words = count(done, "round")
    if looks:
        words += f", with looks at {_listed(looks)} rounds"
    else:
        words += ", without an interim look"
    if len(record.looks) > 1:
        words += f" (planned: {', '.join(map(str, record.looks))})"
    if abandoned := record.abandoned:
        numbers = _listed([*map(str, abandoned)])
        words += f". Abandoned and not counted: round{'s' * (len(abandoned) > 1)} {numbers}"
    return f"{words}. {f'Ended by: {record.stopped}' if record.stopped else 'The group was not finished'}."


def _listed(words: Sequence[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def conditioning_blocks(run: Run) -> Iterator[Block]:
    """How each disk was conditioned; nothing if none was."""
    conditionings = find_conditionings(run)
    if conditionings:
        yield Heading("Conditioning")
    for number, (disk, record, groups) in enumerate(conditionings, start=1):
        unsteady: tuple[Inline, ...] = (" ", Mark("not steady", "verdict", "exceeds")) if record.steady is False else ()
        group_names = Mark(f"({', '.join(groups)})", "small")
        yield Sentence((Mark(disk, "bold"), *unsteady, f": {_describe_conditioning(record)} ", group_names))
        if record.regions:
            yield from find_conditioner(record.method).contents(disk, record, f"conditioning{number}")


def find_conditionings(run: Run) -> list[tuple[str, ConditioningRecord, list[str]]]:
    """Each conditioning of a disk once: the disk, the record, and the groups that were measured after it."""
    shared: list[tuple[str, ConditioningRecord, list[str]]] = []
    for group in run.groups:
        if group.conditioning is None:
            continue
        for disk, record, names in shared:
            if (disk, record) == (group.disk, group.conditioning):
                names.append(group.id)
                break
        else:
            shared.append((group.disk, group.conditioning, [group.id]))
    return shared


def find_unsteady_disks(run: Run) -> frozenset[str]:
    """The disks that did not reach a steady state before they were measured."""
    return frozenset(disk for disk, record, _ in find_conditionings(run) if record.steady is False)


def _describe_conditioning(record: ConditioningRecord) -> str:
    """What was written before the disk was measured, and whether it became steady."""
    if record.method == "fill":
        return (
            "Every region was written once only. A new SSD writes faster than it will later, so compare modes with "
            "each other and not with data sheets."
        )
    steady = sum(region.steady for region in record.regions)
    reached = f"{steady} of {count(len(record.regions), 'region')} reached a steady state"
    return f"Purged, written twice at 128 KiB, then {record.job or 'a job'} was repeated: {reached}."
