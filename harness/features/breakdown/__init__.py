"""Breakdowns: where the microseconds go that a guest adds to one I/O, with `--breakdown`.

After the rounds of a group, one I/O at a time is measured for each mode and workload (`measuring.py`), in slices with
and without tracing by turns. The kernels of host and guest trace it with tracefs, which needs no programs. The duration
of each layer, without that of the layer below it, is a part of the latency (`parts.py`, which also has what
results.json stores under `breakdowns`); `report.py` is the part of the report. Plans, and the measuring of rounds, know
nothing of it: its time is added to that of a plan, and its records are not cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, RunSwitch, import_later

if TYPE_CHECKING:
    from harness.features.breakdown import measuring, parts
else:
    measuring, parts = import_later(__name__, "measuring", "parts")

FLAG = "--breakdown"


FEATURE = Feature(
    name="breakdown",
    brings=(
        RunSwitch(
            flag=FLAG,
            help="also trace one I/O at a time of each mode and workload, and show where its microseconds go",
            estimate_seconds=lambda plan: measuring.estimate_seconds(plan),
        ),
    ),
    follow=lambda context, prepared: measuring.follow(context, prepared),
    list_things=lambda: (measuring.TraceInstance,),
    load_records=lambda: (
        FeatureRecords(
            key="breakdowns",
            record=parts.BreakdownRecord,
            place=13,
            description="One entry per mode and workload of a run with `--breakdown`; else empty.",
            in_journal=False,
        ),
    ),
)
