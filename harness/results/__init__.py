"""The store of runs: what is kept of a run, how it is written, and how measurements become cells."""

from harness.results.assemble import CellContext, assemble
from harness.results.records import (
    SCHEMA_VERSION,
    BudgetRecord,
    CellRecord,
    Efficiency,
    JobRecord,
    LabInfo,
    Measurement,
    MetricRecord,
    ModeDetail,
    Run,
    RunInfo,
    RunStatus,
    ValidityCheck,
)
from harness.results.store import Journal, RunStore

__all__ = [
    "SCHEMA_VERSION",
    "BudgetRecord",
    "CellContext",
    "CellRecord",
    "Efficiency",
    "JobRecord",
    "Journal",
    "LabInfo",
    "Measurement",
    "MetricRecord",
    "ModeDetail",
    "Run",
    "RunInfo",
    "RunStatus",
    "RunStore",
    "ValidityCheck",
    "assemble",
]
