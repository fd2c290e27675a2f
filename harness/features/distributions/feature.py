"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature

if TYPE_CHECKING:
    from harness.report.blocks import Block, Chart
    from harness.report.section import Section, WorkloadCells


def _yield_charts(section: Section, workload: WorkloadCells, key: str) -> Iterable[Chart]:
    from harness.features.distributions.report import latency_charts

    return latency_charts(workload, section.modes, key)


def _yield_tables(section: Section, workload: WorkloadCells, _key: str) -> Iterable[Block]:
    from harness.features.distributions.report import latency_tables

    return latency_tables(workload, section.name)


FEATURE = Feature(name="distributions", workload_charts=_yield_charts, workload_tables=_yield_tables)
