"""How arrays scale, as the report shows it: against their disks, against what their level can deliver, the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import Estimate
from harness.model.base import Device
from harness.report.cells import ArmName, CellView
from harness.report.numbers import percent_with_interval, significant
from harness.results import ScalingMetric, ScalingRecord


@dataclass(frozen=True, slots=True)
class ScalingView:
    """One array in one job."""

    record: ScalingRecord
    cell: CellView

    @property
    def array(self) -> str:
        """For example "RAID 5 over 4"."""
        legs = f" in {self.record.legs} legs" if self.record.legs > 1 else ""
        return f"RAID {self.record.level} over {self.record.disks}{legs}"

    @property
    def single(self) -> str:
        """The disk that it is compared with: "one disk", or "one disk (spare)" with the name of the reference."""
        return f"one disk ({self.record.reference})" if self.record.reference else "one disk"

    @property
    def arms(self) -> tuple[ArmName, ArmName]:
        """The arms of the cell that are compared: the array on the host, and the single disk."""
        if not self.record.reference:
            return "twin", "host"
        return "host" if isinstance(self.cell.record.mode_detail.layout, Device) else "twin", "reference"

    @property
    def metric(self) -> ScalingMetric:
        """IOPS for random jobs, bandwidth for sequential ones."""
        return self.record.metrics[self.cell.throughput_name]

    @property
    def speedup(self) -> str:
        """The array divided by the single disk: "2.87 [2.71, 3.04]"."""
        estimate = self.metric.speedup
        if estimate.low is None or estimate.high is None:
            return significant(estimate.point)
        return f"{significant(estimate.point)} [{significant(estimate.low)}, {significant(estimate.high)}]"

    @property
    def ideal(self) -> str:
        """What the level can deliver, divided by the single disk."""
        return f"{self.record.ideal:.3g}"

    @property
    def why(self) -> str:
        """What the level can deliver in this job, and why."""
        return f"{self.array}, {self.cell.workload}: {self.ideal} times one disk ({self.record.why_ideal})"

    @property
    def limit(self) -> str:
        """The bottleneck with its evidence, and the limit of a path."""
        words = f"{self.record.bottleneck}: {self.record.evidence}"
        return f"{words}; the path does {self.path_figure}" if self.path_figure else words

    @property
    def path_rate(self) -> float:
        """The limit of the path, in I/Os or bytes per second; 0 without one."""
        limit = self._path_limit
        return limit.point if limit is not None else 0.0

    @property
    def path_figure(self) -> str:
        """The limit of the path: "33.5 MB/s [33.1, 33.9]", or "803 IOPS [798, 808]" for random jobs; empty without."""
        limit = self._path_limit
        if limit is None:
            return ""
        per, unit = (1e6, "MB/s") if self.cell.throughput_name == "bw" else (1.0, "IOPS")
        figure = f"{significant(limit.point / per)} {unit}"
        if limit.low is None or limit.high is None:
            return figure
        return f"{figure} [{significant(limit.low / per)}, {significant(limit.high / per)}]"

    @property
    def _path_limit(self) -> Estimate | None:
        limit = self.record.path_limit
        if limit is None:
            return None
        return limit.bw if self.cell.throughput_name == "bw" else limit.iops

    @property
    def outcome(self) -> str:
        """The limit, or why the figures are not a result."""
        return f"not a result: {self.record.doubt}" if self.record.doubt else f"{self.limit}{self.in_guest}"

    @property
    def in_guest(self) -> str:
        """The thread that limits the guest, as the end of a sentence; empty if none does."""
        return f"; in the guest, {self.record.guest_limit}" if self.record.guest_limit else ""

    @property
    def sentence(self) -> str:
        """For a line of text."""
        outcome = self.outcome if self.record.doubt else f"limit: {self.outcome}"
        return (
            f"{self.cell.id}: {self.array} delivers {self.speedup} x {self.single}, "
            f"{percent_with_interval(self.metric.efficiency)} % of {self.record.disks} disks and "
            f"{percent_with_interval(self.metric.of_ideal)} % of what the level can deliver ({self.ideal} x); {outcome}"
        )


def scaling_views(records: Sequence[ScalingRecord], cells: Sequence[CellView]) -> tuple[ScalingView, ...]:
    """The scalings of these cells, in their order."""
    by_cell = {record.cell: record for record in records}
    return tuple(ScalingView(by_cell[cell.id], cell) for cell in cells if cell.id in by_cell)
