"""Variants as the report shows them: the difference between the guests of two variants, job by job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.analysis import METRICS, Estimate
from harness.report.budgets import gravest_first, limit
from harness.report.cells import CellView
from harness.report.numbers import percent, percent_with_interval, short
from harness.results import BudgetRecord

_WAYS = "side by side", "one after the other, each booted anew for every round"
"""How the guests of variants run."""


@dataclass(frozen=True, slots=True)
class VariantView:
    """One cell in a variant, against the same cell in the reference variant."""

    cell: CellView

    @property
    def variant(self) -> str:
        """The name of the variant."""
        found = self.cell.record.mode_detail.variant
        return found.name if found else ""

    @property
    def reference(self) -> str:
        """The name of the reference variant."""
        found = self.cell.record.mode_detail.variant
        return (found.reference if found else None) or ""

    @property
    def name(self) -> str:
        """The mode and the job, without the variant: `lvm-randread-4k-qd1`."""
        found = self.cell.record.mode_detail.variant
        return f"{found.mode if found else self.cell.mode}-{self.cell.record.job.id}"

    @property
    def difference(self) -> Estimate | None:
        """How much worse the variant is in the headline metric; None if the cell is not a result."""
        metric = self.cell.record.metrics.get(self.cell.headline_name)
        return metric.difference if metric is not None and self.cell.usable else None

    @property
    def latency(self) -> Estimate | None:
        """The same of the mean latency."""
        metric = self.cell.record.metrics.get("lat_mean")
        return metric.difference if metric is not None and self.difference is not None else None

    @property
    def budgets(self) -> tuple[BudgetRecord, ...]:
        """The budgets of the difference, the worst verdict first."""
        return gravest_first([each for each in self.cell.record.budget if each.difference is not None])

    @property
    def verdict(self) -> str:
        """For example "exceeds 1 %"; without a budget, whether a difference is shown."""
        if self.difference is None:
            return self.cell.outcome.value
        if not self.budgets:
            return shown(self.difference)
        worst = self.budgets[0]
        in_metric = "" if worst.metric == self.cell.headline_name else f" in {worst.metric}"
        return f"{worst.verdict} {limit(worst)}{in_metric}"

    @property
    def values(self) -> tuple[str, str, str, str, str]:
        """The reference, the variant, the difference in percent with its interval, n, and that of the latency."""
        scale, metric = self.cell.headline_scale, self.cell.headline
        before, after = self.cell.mean(metric, "against"), self.cell.mean(metric, "guest")
        return (
            short(before.point / scale if before else None),
            short(after.point / scale if after else None),
            percent_with_interval(self.difference),
            str(self.cell.n) if self.difference is not None else "-",
            percent_with_interval(self.latency),
        )

    @property
    def sentence(self) -> str:
        """For example "new loses 2.1 % [1.6, 2.6] more than old at lvm-randread-4k-qd1 (iops): exceeds 1 %"."""
        found = self.difference
        if found is None:
            return f"{self.variant} against {self.reference} at {self.name}: {self.verdict}"
        slower = METRICS[self.cell.headline_name].is_latency
        words = f"{'takes' if slower else 'loses'} {percent(abs(found.point))} %"
        if found.low is not None and found.high is not None:
            ends = (found.low, found.high) if found.point >= 0 else (-found.high, -found.low)
            words += f" [{percent(ends[0])}, {percent(ends[1])}]"
        more, less = ("longer", "shorter") if slower else ("more", "less")
        than = f"{more if found.point >= 0 else less} than {self.reference}"
        return f"{self.variant} {words} {than} at {self.name} ({self.cell.headline_name}): {self.verdict}"


@dataclass(frozen=True, slots=True)
class VariantGroup:
    """All cells of one variant of a section, against the reference."""

    views: tuple[VariantView, ...]

    @property
    def title(self) -> str:
        """For example "new against old"."""
        return f"{self.views[0].variant} against {self.views[0].reference}"

    @property
    def basis(self) -> str:
        """How the guests ran, and what was read back differently from them."""
        details = [view.cell.record.mode_detail.variant for view in self.views]
        ways = dict.fromkeys(_WAYS[detail.alternating] for detail in details if detail)
        differs = dict.fromkeys(text for view in self.views for text in view.cell.record.differs)
        words = "; ".join(differs) or "nothing that was read back"
        return f"The guests ran {' and '.join(ways)}. What differs: {words}."

    @property
    def short(self) -> str:
        """For one of ten lines: "new against old: 2 exceeds 1 %, 4 within 1 %; new loses 2.1 % [1.6, 2.6] more ..."."""
        verdicts = [view.verdict for view in self.views]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
        worst = max(self.views, key=lambda view: view.difference.point if view.difference else -math.inf)
        return f"{self.title}: {counts}; the worst: {worst.sentence}"


def shown(difference: Estimate) -> str:
    """Whether an interval excludes zero, in words."""
    if difference.low is None or difference.high is None:
        return "too few blocks to show a difference"
    if difference.low > 0:
        return "worse"
    return "better" if difference.high < 0 else "no difference shown"


def variant_groups(cells: Sequence[CellView]) -> tuple[VariantGroup, ...]:
    """The cells that are compared with a reference, by variant, in the order of the plan."""
    views = [VariantView(cell) for cell in cells if cell.record.against is not None and cell.record.mode_detail.variant]
    ordered = list(dict.fromkeys(view.variant for view in views))
    views.sort(key=lambda view: ordered.index(view.variant))
    return tuple(VariantGroup(tuple(own)) for _, own in groupby(views, key=lambda view: view.variant))


def variant_lines(groups: Sequence[VariantGroup], *, most: int) -> list[str]:
    """Text for a terminal: for each variant a line, and one for each cell, at most `most`."""
    lines = []
    for group in groups:
        lines.append(f"{group.title}. {group.basis}")
        lines += [f"  {view.sentence}" for view in group.views[:most]]
        if (more := len(group.views) - most) > 0:
            lines.append(f"  and {more} more: see the report")
    return lines
