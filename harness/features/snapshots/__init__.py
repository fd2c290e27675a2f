"""Snapshots that are taken and removed under load: how long they stop a guest's I/O, and what they cost it.

A scenario asks for them with `[snapshot.NAME]`. After the rounds of a group, fio runs in the guest in pairs of slices,
in random order: in one of them, a snapshot of the volume is taken and removed again. `request.py` has the table of a
scenario and the record. `measuring.py` measures the pairs, and takes snapshots of LVM's thin volumes, of zvols and of
RBD images by commands of the host. `proxmox.py` takes those of a whole VM by the API. `report.py` shows the pause and
the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureTables, import_later
from harness.features.snapshots.request import SnapshotRecord, Snapshots, find_problems, plan_snapshots

if TYPE_CHECKING:
    from harness.features.snapshots import measuring
else:
    (measuring,) = import_later(__name__, "measuring")


FEATURE = Feature(
    name="snapshots",
    brings=(
        FeatureTables(
            key="snapshot",
            table=Snapshots,
            what="a request for snapshots",
            sets=("modes",),
            find_problems=find_problems,
        ),
    ),
    follow_ups=plan_snapshots,
    follow=lambda context, prepared: measuring.follow(context, prepared),
    list_things=lambda: (measuring.VolumeSnapshot,),
    load_records=lambda: (
        FeatureRecords(
            key="snapshots",
            record=SnapshotRecord,
            place=17,
            description="One entry per request for snapshots (`[snapshot.NAME]`), mode and workload; else empty.",
            in_journal=False,
            ends_follow_up=lambda _record: True,
        ),
    ),
)
