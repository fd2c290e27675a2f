"""Commands of the user as workloads: `[workload.NAME]` with a command and how its figure is read.

After the rounds of a group, the command runs on a file system on the mode's volume, by turns on the host and in the
guest, in random order. request.py has the table of a scenario file and the record, running.py runs it, and report.py
shows it.

Each run has its own mount and process namespaces: when it ends, or is ended, the kernel ends whatever it started and
unmounts the file system. So a run leaves nothing to remove.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureTables, import_later
from harness.features.commands.request import (
    CommandRecord,
    OwnCommand,
    find_problems,
    note_ignored_flushes,
    plan_commands,
)

if TYPE_CHECKING:
    from harness.features.commands import running
else:
    (running,) = import_later(__name__, "running")


FEATURE = Feature(
    name="commands",
    brings=(
        FeatureTables(
            key="workload",
            table=OwnCommand,
            what="a command",
            sets=("modes",),
            find_problems=find_problems,
        ),
    ),
    follow_ups=plan_commands,
    follow=lambda context, prepared: running.follow(context, prepared),
    find_notes=note_ignored_flushes,
    load_records=lambda: (
        FeatureRecords(
            key="commands",
            record=CommandRecord,
            place=15,
            description="One entry per command of the scenario (`[workload.NAME]`) and mode; else empty.",
            in_journal=False,
            ends_follow_up=lambda _record: True,
        ),
    ),
)
