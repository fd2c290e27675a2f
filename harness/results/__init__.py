"""The store of runs: what a run stores, how it is written, and how measurements become cells."""

from harness.model.job import Job
from harness.model.mode import ModeDetail
from harness.results.assemble import CellContext, assemble
from harness.results.cells import (
    ArmName,
    BudgetRecord,
    CellRecord,
    CostRecord,
    GuestShare,
    MetricRecord,
    NeighbourRecord,
    Outcome,
    PooledPercentile,
    SeveralGuests,
    ValidityCheck,
)
from harness.results.journal import Journal, Measurement, PartRecord, RoundEvent
from harness.results.judging import correct_records, make_judged_record
from harness.results.records import (
    FIO_FILES,
    SCHEMA_VERSION,
    ConditioningRecord,
    DriftRecord,
    Efficiency,
    GroupRecord,
    LabInfo,
    RegionSteadiness,
    Run,
    RunInfo,
    RunStatus,
)
from harness.results.store import RunStore
from harness.results.validity import DRIFT, drift_checks, drift_notes, host_drift
