"""Snapshots that are taken and removed under load: how long they stop a guest's I/O, and what they cost it.

A scenario asks for them with `[snapshot.NAME]`. After the rounds of a group, fio runs in the guest in pairs of slices,
in random order: in one of them, a snapshot of the volume is taken and removed again. `request.py` has the table of a
scenario and the record. `measuring.py` measures the pairs, and takes snapshots of LVM's thin volumes, of zvols and of
RBD images by commands of the host. `proxmox.py` takes those of a whole VM by the API. `report.py` shows the pause and
the loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureTables
from harness.features.snapshots.request import SnapshotRecord, Snapshots, find_problems, plan_snapshots

if TYPE_CHECKING:
    from harness.guest.proxmox.client import Client
    from harness.lab.created import Entry, Removal, Thing
    from harness.lab.transport.base import Runner
    from harness.measure.rounds import FollowingSeries, SeriesContext
    from harness.measure.series import PreparedGroup


def _follow(context: SeriesContext, prepared: PreparedGroup) -> Iterable[FollowingSeries]:
    from harness.features.snapshots.measuring import follow

    return follow(context, prepared)


def _list_things() -> tuple[type[Thing], ...]:
    from harness.features.snapshots.measuring import VolumeSnapshot
    from harness.features.snapshots.proxmox import VmSnapshot

    return VolumeSnapshot, VmSnapshot


def _remove_from_node(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    from harness.features.snapshots.proxmox import remove_from_node

    return remove_from_node(client, runner, entry)


FEATURE = Feature(
    name="snapshots",
    tables=FeatureTables(
        key="snapshot",
        table=Snapshots,
        what="a request for snapshots",
        sets=("modes",),
        find_problems=find_problems,
    ),
    follow_ups=plan_snapshots,
    follow=_follow,
    list_things=_list_things,
    remove_from_node=_remove_from_node,
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
