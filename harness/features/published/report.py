"""Published figures beside the results of a disk. For comparison only: no verdict and no exit status depends on them.

Absolute values are shown only if the lab represents real hardware. Otherwise only ratios within one machine are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from harness.analysis import METRICS, Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.features.published.figures import (
    Band,
    Counterpart,
    Gain,
    PublishedLink,
    Study,
    find_counterparts,
    links,
    list_class_links,
)
from harness.model.base import Shape
from harness.model.mode import Place
from harness.model.workloads import shows_best
from harness.report.blocks import (
    Aside,
    Block,
    Chart,
    Column,
    Heading,
    Link,
    Listing,
    Mark,
    On,
    Row,
    Sentence,
    Table,
    TableCell,
    Words,
    first,
    make_table,
)
from harness.report.draw import (
    HOST,
    Figure,
    list_categories,
    mode_colours,
    mode_symbols,
    safe,
    scatter,
    set_labelled_rows,
    set_scalable_axis,
    whiskers,
)
from harness.report.numbers import count, percent, significant, with_interval
from harness.report.section import Section
from harness.results import CellRecord, MetricRecord, Run
from harness.results.contrasts import contrast

FAR = 1.5
"""A difference by more than this factor is noted. Losses of 0 and of 33 % differ by it: guest/host is 1 and 0.67."""

_MANY_TIMES = 10.0
"""A whisker does not widen the chart's axis beyond this multiple of its point."""

SAME_CLASS = "The disk is another one of the same class, with the same job."
NO_GATE = "For comparison only: no verdict, budget or exit status depends on published figures."


@dataclass(frozen=True, slots=True)
class Own:
    """What this run measured at one depth: the value in the metric's unit, and its ratio to the reference."""

    iodepth: int
    value: float | None
    ratio: Estimate | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a measured number is from the published one: `factor` times more or less, 1 or more."""

    factor: float
    more: bool
    what: str

    @property
    def far(self) -> bool:
        return self.factor > FAR

    @property
    def sentence(self) -> str:
        """For example "our guest/host is lower by a factor of 3.20"."""
        return f"our {self.what} is {'higher' if self.more else 'lower'} by a factor of {significant(self.factor)}"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published figure beside the cells of a mode that it belongs to, one cell for each depth."""

    counterpart: Counterpart
    cells: tuple[CellRecord, ...]
    absolute: bool
    """Whether absolute values may be compared."""

    @property
    def workload(self) -> str:
        return self.cells[0].workload

    @property
    def mode(self) -> str:
        """The mode, and where it was measured if that is not the guest."""
        return f"{self.cells[0].mode}, on the host" if self.counterpart.place is Place.TWIN else self.cells[0].mode

    @property
    def metric(self) -> str:
        return self.counterpart.figure.metric

    @property
    def depth(self) -> str:
        """The depths of the published figure, or that the source does not state them."""
        depths = self.counterpart.figure.iodepth
        return ", ".join(map(str, depths)) if depths else "not stated"

    @property
    def relation(self) -> str:
        """What the ratio divides: guest/host, guest/array or array/disk."""
        if self.counterpart.place is Place.TWIN:
            return "array/disk"
        if self.cells[0].is_cached:
            return "guest from memory/disk"
        return "guest/array" if self.cells[0].mode_detail.on_array else "guest/host"

    @property
    def comparable(self) -> bool:
        """Whether there is something to show in this lab: a ratio, words, or a value that may be shown."""
        return bool(self.published_value) or self.counterpart.ratio is not None

    @property
    def published_value(self) -> str:
        """For example "about 35 000 IOPS", or the source's words; empty if values may not be compared."""
        figure, arm = self.counterpart.figure, self.counterpart.arm
        value = figure.value(arm)
        if value is None or not self.absolute:
            return figure.words(arm) or ""
        return f"{'about ' if figure.about else ''}{self._format_value(value)}"

    @property
    def published_ratio(self) -> str:
        """For example "0.175 (82.5 % lost)"; empty if the source has no ratio."""
        band = self.counterpart.ratio
        return self._format_ratio(band) if band else ""

    @property
    def own_value(self) -> str:
        """The measured value in the shown unit; empty if values may not be compared."""
        own = self.own
        return self._format_value(own.value) if own and own.value is not None and self.absolute else ""

    @property
    def own_ratio(self) -> str:
        """The measured ratio, also if the source has none."""
        own = self.own
        return self._format_ratio(Band(own.ratio.point, own.ratio.point)) if own and own.ratio else ""

    @property
    def own(self) -> Own | None:
        """The depth that is compared: the nearest to the figure if the source states no depth, else the farthest.

        None if no cell is a result: all are void, or faster than their host.
        """
        found = [own for cell in self.cells if (own := self._measure_own(cell))]
        if not found:
            return None
        choose = max if self.counterpart.figure.iodepth else min
        return choose(
            found, key=lambda own: max((difference.factor for difference in self._list_differences(own)), default=1.0)
        )

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences that are far."""
        return (
            tuple(difference for difference in self._list_differences(self.own) if difference.far) if self.own else ()
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What differs a lot, which depth is compared, or why there is no comparison, one clause each."""
        figure = self.counterpart.figure
        found = [difference.sentence for difference in self.differences]
        if self.own is None:
            found.append(f"ours is not a result ({', '.join(dict.fromkeys(cell.doubt for cell in self.cells))})")
        elif self.compared and figure.iodepth is None and len(self.cells) > 1:
            found.append(f"the nearest of our {count(len(self.cells), 'depth')}")
        return tuple(found)

    @property
    def note(self) -> str:
        """What the source adds; empty if nothing."""
        return self.counterpart.figure.note or ""

    @property
    def compared(self) -> bool:
        """Whether a number of this run is compared with a published one."""
        return self.own is not None and any(True for _ in self._list_differences(self.own))

    @property
    def sentence(self) -> str:
        """For a line of text."""
        published = [self.published_value, f"{self.relation} {self.published_ratio}" if self.published_ratio else ""]
        ours = [self.own_value, f"{self.relation} {self.own_ratio}" if self.own_ratio else ""]
        depth = "iodepth not stated" if self.counterpart.figure.iodepth is None else f"iodepth {self.depth}"
        parts = [f"published {', '.join([*filter(None, published), depth])}"]
        if self.own:
            parts.append(f"ours {', '.join([*filter(None, ours), f'iodepth {self.own.iodepth}'])}")
        return f"{self.workload} {self.mode}: {'; '.join([*parts, *self.remarks])}"

    def _measure_own(self, cell: CellRecord) -> Own | None:
        metric = cell.metrics.get(self.metric)
        if not cell.usable or metric is None or (cell.is_cached and self.counterpart.place is not Place.GUEST):
            return None
        value = cell.mean(metric, self.counterpart.place.value)
        return Own(cell.iodepth, value.point if value else None, self._estimate_ratio(cell, metric))

    def _estimate_ratio(self, cell: CellRecord, metric: MetricRecord) -> Estimate | None:
        """The place of the figure divided by its reference in the same cell."""
        loss = metric.virtualisation if cell.mode_detail.on_array else metric.overhead
        if cell.is_cached:
            cached = cell.cached
            loss = cached.against_direct if cached is not None and cached.metric == self.metric else None
        if self.counterpart.place is Place.TWIN:
            loss = metric.layer
        if loss is None or self.counterpart.place is Place.HOST:
            return None
        ends = (loss.low, loss.high)
        if METRICS[self.metric].higher_is_better:
            low, high = (None if end is None else 1 - end for end in reversed(ends))
            return Estimate(1 - loss.point, low, high, loss.n)
        low, high = (None if end is None else 1 + end for end in ends)
        return Estimate(1 + loss.point, low, high, loss.n)

    def _list_differences(self, own: Own) -> Iterator[Difference]:
        """How far the ratio is from the published one, and the value if values may be compared."""
        if (band := self.counterpart.ratio) and own.ratio and (ratio := own.ratio.point):
            yield Difference(band.factor(ratio), ratio > band.high, self.relation)
        value = self.counterpart.figure.value(self.counterpart.arm)
        if self.absolute and value and own.value:
            what = f"value ({METRICS[self.metric].shown.unit})"
            yield Difference(Band(value, value).factor(own.value), own.value > value, what)

    def _format_value(self, value: float) -> str:
        shown = METRICS[self.metric].shown
        return f"{significant(value / shown.scale)} {shown.unit}"

    def _format_ratio(self, band: Band) -> str:
        """The ratio, and for the throughput of a guest what it loses: "0.500 to 0.550 (45.0 to 50.0 % lost)"."""
        ends = list(dict.fromkeys((band.low, band.high)))
        words = " to ".join(map(significant, ends))
        if self.relation == "array/disk" or self.cells[0].is_cached or not METRICS[self.metric].higher_is_better:
            return words
        if band.low > 1:
            return f"{words} ({' to '.join(percent(end - 1) for end in ends)} % faster)"
        return f"{words} ({' to '.join(percent(1 - end) for end in reversed(ends))} % lost)"


@dataclass(frozen=True, slots=True)
class PublishedFigures:
    """The published figures of one disk and scenario. `link` is None if this version does not have them."""

    name: str
    link: PublishedLink | None
    rows: tuple[PublishedRow, ...]
    basis: tuple[str, ...]
    """What is compared, and what is not and why, one sentence each."""

    @property
    def heading(self) -> str:
        """The study and its source."""
        if self.link is None:
            return f'The figures "{self.name}"'
        return f"{self.link.study.title} ({self.link.study.source})"

    @property
    def measured_by_the_study(self) -> str:
        """What the published figures are of. It stands below them, because the run's figures are of another disk."""
        return f"The published figures are of: {self.link.models}." if self.link and self.rows else ""

    @property
    def drawn(self) -> tuple[PublishedRow, ...]:
        """The rows with a published ratio and one of this run."""
        return tuple(row for row in self.rows if row.counterpart.ratio and row.own and row.own.ratio)

    @property
    def far_first(self) -> tuple[PublishedRow, ...]:
        """The rows: those that differ a lot, the other compared ones, then those without a comparison."""
        return tuple(sorted(self.rows, key=lambda row: (not row.differences, not row.compared)))


def _yield_findings(section: Section) -> Iterator[Block]:
    yield from best_blocks(section)
    yield from yield_published(section)


_BASIS = "CrystalDiskMark shows the best of its passes: here it is beside the mean. Overheads are of means."


def best_blocks(section: Section) -> Iterator[Block]:
    """The best slices of a disk, as published results of CrystalDiskMark are; nothing without its tests."""
    rows = tuple(_best_rows(section.cells))
    if not rows:
        return
    yield Heading("CrystalDiskMark")
    yield Aside((f"{_BASIS} MB/s are 10", Mark("6", "raised"), " bytes per second."))
    yield Sentence(_BASIS, on=On.TEXT)
    figures = ("slices", "host, mean", "host, best", "guest, mean", "guest, best")
    yield Table(
        (Column("test", "head"), Column("mode", "mode"), *map(Column, figures)),
        rows,
        f"Mean and best slice of CrystalDiskMark's tests on {section.name}",
        listed=True,
    )


def _best_rows(cells: Sequence[CellRecord]) -> Iterator[Row]:
    """A row for each measured cell of CrystalDiskMark that is not void. The host alone has no guest."""
    for cell in cells:
        metric = cell.metrics.get("bw")
        if metric is None or not metric.host or not shows_best(cell.job) or not cell.usable:
            continue
        arms = [("host", metric.host), *([("guest", metric.guest)] if metric.guest else [])]
        figures = [figure for _, values in arms for figure in _mean_and_best(values)]
        words = ", ".join(f"{arm} {{}} (best {{}})".format(*_mean_and_best(values)) for arm, values in arms)
        yield Row(
            (cell.workload, cell.mode, str(len(metric.host)), *figures, *[""] * (4 - len(figures))),
            sentence=f"  {cell.workload}, {cell.mode}: {words} MB/s in {len(metric.host)} slices",
        )


def _mean_and_best(values: Sequence[float]) -> tuple[str, str]:
    """In MB/s of 10^6 bytes."""
    scale = METRICS["bw"].shown.scale
    return significant(fmean(values) / scale), significant(max(values) / scale)


def yield_published(section: Section) -> Iterator[Block]:
    """Published figures beside those of a disk: what its scenario names, and what is of other disks of its class."""
    published = [figures for figures in (find_published(section), *find_of_class(section)) if figures is not None]
    if published:
        yield Heading("Published figures")
    for number, figures in enumerate(published):
        yield from _yield_study(section, figures, f"{section.key}-published{number or ''}")


def _yield_study(section: Section, figures: PublishedFigures, key: str) -> Iterator[Block]:
    study = figures.link.study if figures.link else None
    source: Words = (Link("Source", study.url),) if study and study.url else ()
    yield Aside((f"{figures.heading}. {''.join(f'{sentence} ' for sentence in figures.basis)}", *source))
    if drawn := figures.drawn:
        yield Chart(
            key,
            lambda: draw_published(drawn, section.modes),
            "Ratios: open diamonds are published, filled markers ours with their interval; dotted: guest as fast as "
            "host",
            "Published ratios and ours, as in the table",
        )
    if figures.rows:
        yield _make_table(section, figures)
    if study is not None:
        setup = (f"The study's setup: {study.setup}.",) if study.setup else ()
        yield Listing((figures.measured_by_the_study, *setup, *study.notes), on=On.PAGE)
    # In text, first the rows that differ a lot.
    yield Sentence(" ".join((f"published: {figures.heading.rstrip('.')}.", *figures.basis)), on=On.TEXT)
    sentences = first([row.sentence for row in figures.far_first])
    yield Listing((*sentences, *filter(None, [figures.measured_by_the_study])), on=On.TEXT, indent=2)


def _make_table(section: Section, figures: PublishedFigures) -> Table:
    measured = ((Column("ours"), lambda row: row.own_value),) if section.run.lab.representative else ()
    return make_table(
        figures.rows,
        f"Published figures beside those of {section.name}",
        (Column("workload", "head"), lambda row: row.workload),
        (Column("mode", "mode"), lambda row: row.mode),
        (Column("published at iodepth"), lambda row: row.depth),
        (Column("published"), lambda row: row.published_value),
        (Column("published ratio"), lambda row: row.published_ratio),
        (Column("our iodepth"), lambda row: str(row.own.iodepth) if row.own else ""),
        *measured,
        (Column("our ratio"), lambda row: row.own_ratio),
        (Column("the ratio is"), lambda row: row.relation if row.published_ratio or row.own_ratio else ""),
        (Column("remarks", "reason"), lambda row: TableCell(_format_remark(row))),
        on=On.PAGE,
        style="cells published",
    )


def _format_remark(row: PublishedRow) -> Words:
    words = "; ".join(filter(None, (*row.remarks, row.note)))
    return (Mark("differs a lot", "strong"), f": {words}") if row.differences else words


def find_published(section: Section) -> PublishedFigures | None:
    """What was published about the modes and jobs of a disk; None if its scenario names no figures."""
    run = section.run
    name = run.run.published.get(section.all_cells[0].scenario)
    if name is None:
        return None
    link = links().get(name)
    if link is None:
        return PublishedFigures(name, None, (), ("This version of virt-overhead does not have them.",))
    return _select_rows(section, link)


def find_of_class(section: Section) -> Iterator[PublishedFigures]:
    """What was published about other disks of the disk's class with the same jobs; without what the scenario names."""
    name = section.all_cells[0].disk
    known = [disk.facts.disk_class for disk in section.run.disks if disk.name == name and disk.facts.array is None]
    named = section.run.run.published.get(section.all_cells[0].scenario, "")
    for link in list_class_links(known[0] if known else None):
        figures = _select_rows(section, link)
        if figures.rows and link.name != named:
            yield replace(figures, basis=(SAME_CLASS, *figures.basis))


def _select_rows(section: Section, link: PublishedLink) -> PublishedFigures:
    """The figures of the link that belong to modes and jobs of the disk."""
    run = section.run
    arrays = {disk.name: disk.facts.array.shape for disk in run.disks if disk.facts.array is not None}
    cached = (cell for cell in section.all_cells if cell.is_cached)
    all_rows = _make_rows(link, (*section.alone, *cached), arrays, absolute=run.lab.representative)
    rows = tuple(row for row in all_rows if row.comparable)
    return PublishedFigures(
        link.name, link, rows, tuple(_describe_basis(run, rows, left_out=len(all_rows) - len(rows)))
    )


def _make_rows(
    link: PublishedLink, cells: Sequence[CellRecord], arrays: Mapping[str, Shape | None], *, absolute: bool
) -> list[PublishedRow]:
    """A row for each figure and mode, with the measured cells of all depths that it belongs to.

    `arrays` has the shape of each disk that is an array.
    """
    by_figure: dict[tuple[int, str, str], tuple[Counterpart, list[CellRecord]]] = {}
    for cell in cells:
        if not cell.measured:
            continue
        existing = arrays.get(cell.disk)
        for counterpart in find_counterparts(link, cell.mode_detail, cell.job, existing):
            key = (id(counterpart.figure), counterpart.arm, cell.mode)
            by_figure.setdefault(key, (counterpart, []))[1].append(cell)
    return [PublishedRow(each, tuple(own), absolute) for each, own in by_figure.values()]


def _describe_basis(run: Run, rows: Sequence[PublishedRow], left_out: int) -> Iterator[str]:
    yield NO_GATE
    if not rows and not left_out:
        yield "None of these figures is for a mode and job of this run."
    if not run.lab.representative:
        yield (
            "This lab does not represent real hardware, so its absolute values cannot be compared with the published "
            "ones. Only ratios within one machine are compared."
        )
        if left_out:
            yield f"Left out, because no ratio is published: {count(left_out, 'figure')}."


def draw_published(rows: Sequence[PublishedRow], modes: Sequence[str]) -> Figure:
    """For each row with both ratios: the published one as an open diamond, ours as a dot with its interval.

    A published range is a line between two diamonds.
    """
    labels = _label_rows(rows)
    figure = Figure()
    reached = [1.0]
    for label, row in zip(labels, rows, strict=True):
        band, own = row.counterpart.ratio, row.own
        if band is None or own is None or own.ratio is None:
            continue
        mode = row.cells[0].mode
        colour = mode_colours(modes).get(mode, HOST)
        ends = list(dict.fromkeys((band.low, band.high)))
        ratio = own.ratio.point
        low, high = own.ratio.low or ratio, own.ratio.high or ratio
        reached += [*ends, ratio, max(low, ratio / _MANY_TIMES), min(high, ratio * _MANY_TIMES)]
        figure.add_trace(
            scatter(
                x=ends,
                y=[label] * len(ends),
                mode="lines+markers",
                name="published",
                line={"color": HOST, "width": 2},
                marker={"symbol": "diamond-open", "size": 9, "color": HOST, "line": {"width": 2}},
                customdata=[f"{label}, published: {row.relation} {row.published_ratio}"] * len(ends),
            )
        )
        figure.add_trace(
            scatter(
                x=[ratio],
                y=[label],
                error_x=whiskers([own.ratio], 1, color=colour, thickness=1.4, width=4),
                mode="markers",
                name="ours",
                marker={"symbol": mode_symbols(modes).get(mode, "circle"), "size": 8, "color": colour},
                customdata=[f"{label}, ours at iodepth {own.iodepth}: {significant(ratio)}"],
                meta=f"{row.counterpart.place}:{mode}",
            )
        )
    set_labelled_rows(figure, labels, height=26)
    figure.update_layout(hovermode="closest")
    set_scalable_axis(figure, "xaxis", reached, log=True)
    figure.update_xaxes(title="ratio")
    figure.add_shape(
        type="line", x0=1, x1=1, y0=0, y1=1, yref="paper", line={"width": 1.4, "dash": "dot", "color": HOST}
    )
    list_categories(figure, labels)
    return figure


def _label_rows(rows: Sequence[PublishedRow]) -> list[str]:
    """A label for each row, with a number behind what is there several times."""
    seen: Counter[str] = Counter()
    labels = []
    for row in rows:
        label = safe(f"{row.workload} {row.mode}")
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return labels


def describe_gains(published: str | None, scalings: Iterable[Any], cells: Sequence[CellRecord]) -> Iterator[str]:
    """One sentence for each two arrays that the scenario's study compares. `published` is what the scenario names.

    `scalings` are the records of this name in results.json: another feature makes them, for arrays that the run built.

    For example "`raid0-16-paths` against `raid0-16`: 1.98 times [1.95, 2.01] in randread-4k-qd32 (published: 2) ...".
    """
    link = links().get(published or "")
    if link is None:
        return
    usable = (array for array in scalings if not array.doubt and not array.reference)
    shapes = {array.cell: Shape(array.level, array.disks, array.legs) for array in usable}
    built = [(cell, shapes[cell.id]) for cell in cells if cell.id in shapes and cell.mode_detail.layout.is_base]
    times: dict[tuple[str, str], list[str]] = {}
    for gain in link.study.gain:
        for modes, words in _compare_arrays(gain, link.study, built):
            times.setdefault(modes, []).append(words)
    yield from (f"`{wide}` against `{narrow}`: {'; '.join(words)}." for (wide, narrow), words in times.items())


def _compare_arrays(
    gain: Gain, study: Study, built: Sequence[tuple[CellRecord, Shape]]
) -> Iterator[tuple[tuple[str, str], str]]:
    """The modes, and what one delivers against the other in each job of the gain."""
    wide, narrow = (
        [cell for cell, shape in built if (array := study.disk[name].array) is not None and array.is_like(shape)]
        for name in (gain.disk, gain.over)
    )
    for one in wide:
        job = one.job
        for other in (cell for cell in narrow if cell.job == job and gain.covers(job)):
            if times := _estimate_times(one, other):
                yield (
                    (one.mode, other.mode),
                    f"{with_interval(times, unit=' times')} in {job.id} (published: {gain.times:g})",
                )


def _estimate_times(one: CellRecord, other: CellRecord) -> Estimate | None:
    """The ratio of their throughput on the host, in the blocks that both have; None without such blocks."""
    cells = one, other
    ours, theirs = (cell.series(one.throughput_name, Place.TWIN) for cell in cells)
    ratio = contrast(theirs, ours, confidence=max(cell.confidence for cell in cells))
    return None if ratio is None else ratio.times


def _detail_gains(section: Section) -> Iterator[str]:
    published = section.run.run.published.get(section.all_cells[0].scenario)
    return describe_gains(published, section.run.of_features.get("scalings", ()), section.cells)


REPORT = FeatureReport(contents={ReportPlace.FINDINGS: _yield_findings}, details=_detail_gains)
