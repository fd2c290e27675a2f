"""Searches for the highest load as the report shows them: a sentence per mode, and rows for the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import METRICS, LimitedBy
from harness.report.numbers import count, microseconds, microseconds_range, significant
from harness.results import SearchArm, SearchedRate, SearchRecord
from harness.units import format_duration

_LIMITED = {
    LimitedBy.FULL_SPEED: "its full speed",
    LimitedBy.HIGHEST: "the highest rate measured",
}
_UNKNOWN = "too few samples"


@dataclass(frozen=True, slots=True)
class ArmView:
    """The result of one arm. `mode` is None for the bare host."""

    record: SearchArm
    mode: str | None
    place: str

    @property
    def load(self) -> str:
        """The highest load: "41 000 IOPS [39 800, 42 100]", "none, not even 110 IOPS", or why it is not known."""
        found = self.record
        if found.doubt:
            return f"not a result: {found.doubt}"
        if found.limited_by is None:
            return _UNKNOWN
        if found.limited_by is LimitedBy.LOWEST or found.iops is None:
            return f"none, not even {significant(fmean(found.rates[0].iops))} IOPS"
        more = " or more" if found.limited_by is LimitedBy.HIGHEST else ""
        why = _LIMITED.get(found.limited_by)
        return f"{significant(found.iops)} IOPS{more} {self.interval}".rstrip() + (f" ({why})" if why else "")

    def sentence(self, subject: str) -> str:
        """What the arm, named `subject`, sustains."""
        return f"{subject} sustains {self.load}" if self.is_known else f"{subject}: {self.load}"

    @property
    def is_known(self) -> bool:
        """Whether the highest load is known, and is a result."""
        return self.record.iops is not None and not self.record.doubt

    @property
    def interval(self) -> str:
        """The interval in IOPS: "[39 800, 42 100]"; from 0 if not even the lowest rate surely keeps the bound. Empty if
        it has no upper end."""
        found = self.record
        return "" if found.high is None else f"[{significant(found.low or 0.0)}, {significant(found.high)}]"

    @property
    def rates(self) -> tuple[RateRow, ...]:
        return tuple(RateRow(rate) for rate in self.record.rates)


@dataclass(frozen=True, slots=True)
class RateRow:
    """One rate of an arm as text. Times are in us."""

    record: SearchedRate

    @property
    def requested(self) -> str:
        return "full speed" if self.record.rate is None else significant(self.record.rate)

    @property
    def iops(self) -> str:
        return significant(fmean(self.record.iops))

    @property
    def latency(self) -> str:
        return microseconds(self.record.latency)

    @property
    def interval(self) -> str:
        low, high = self.record.low, self.record.high
        return "" if low is None or high is None else microseconds_range(low, high)

    @property
    def cpu(self) -> str:
        return microseconds(self.record.cpu)

    @property
    def remark(self) -> str:
        """Why the rate has no latency; empty if it has one."""
        if not self.record.reached:
            return "not reached"
        return _UNKNOWN if self.record.latency is None else ""


@dataclass(frozen=True, slots=True)
class SearchView:
    """One search on the arms of one group. `key` is unique within the page, and valid as an HTML id."""

    key: str
    record: SearchRecord
    arms: tuple[ArmView, ...]

    @property
    def metric(self) -> str:
        """For example "p99" or "p99.9"; the name of a metric that is not a percentile."""
        quantile = METRICS[self.record.metric].quantile
        return self.record.metric if quantile is None else f"p{quantile * 100:g}"

    @property
    def condition(self) -> str:
        """For example "p99 < 1 ms"."""
        return f"{self.metric} < {format_duration(self.record.bound)}"

    @property
    def title(self) -> str:
        return f"{self.record.name}: {self.record.job}, {self.condition}"

    @property
    def basis(self) -> str:
        """What was measured, and why it ended."""
        ended = self.record.stopped or "the run ended before the search did"
        return f"{count(self.record.rounds, 'round')}; {ended}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """One per mode, for example "at p99 < 1 ms, the VM in mode lvm sustains 41 000 IOPS; the host sustains ..."."""
        return tuple(f"{self.record.job} at {self.condition}: {'; '.join(parts)}" for parts in self._by_mode())

    def _by_mode(self) -> Iterator[list[str]]:
        """For each mode, what its guest, its twin and the host sustain. Without a mode, the host alone."""
        host = [arm.sentence("the host") for arm in self.arms if arm.mode is None]
        modes = dict.fromkeys(arm.mode for arm in self.arms if arm.mode is not None)
        for mode in modes:
            own = {arm.place: arm for arm in self.arms if arm.mode == mode}
            subjects = {"guest": f"the VM in mode {mode}", "twin": "its twin"}
            yield [*(own[place].sentence(subject) for place, subject in subjects.items() if place in own), *host]
        if host and not modes:
            yield host


def search_views(key: str, records: Sequence[SearchRecord], modes: Sequence[str]) -> tuple[SearchView, ...]:
    """The searches of one section. `modes` are the names of its modes."""
    return tuple(
        SearchView(f"{key}-search{number}", record, tuple(_arms(record, modes)))
        for number, record in enumerate(records, start=1)
    )


def _arms(record: SearchRecord, modes: Sequence[str]) -> Iterator[ArmView]:
    by_id = {arm.arm: arm for arm in record.arms if arm.rates}
    if "host" in by_id:
        yield ArmView(by_id["host"], None, "host")
    for mode in modes:
        for place in ("twin", "guest"):
            if (found := by_id.get(f"{place}:{mode}")) is not None:
                yield ArmView(found, mode, place)
