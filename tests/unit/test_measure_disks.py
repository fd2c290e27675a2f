"""The records of the disks of a run: contradictions with the lab file, reduced links, health before and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.lab.inventory import AnyDisk, DiskByFile, DiskById, DiskByStorage
from harness.measure.recorder import find_class_notes, find_link_notes, find_network_notes
from harness.measure.series import LabFound, PreparedGroup
from harness.model.disk import (
    Controller,
    DiskClass,
    DiskFacts,
    DiskHealth,
    DiskRecord,
    NetworkPath,
    PcieLink,
    SerialLink,
    merge_disk_records,
)
from harness.results import RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from tests.unit.recorded_campaign import RECORDING, Played, RecordedMeasurer, write_recording
from tests.unit.test_campaign import outcomes, two_scenarios

NVME = DiskById("fast", "/dev/disk/by-id/nvme-X_1", "1", destroy=True)
ATA = DiskById("old", "/dev/disk/by-id/ata-X_2", "2", destroy=True)


@pytest.mark.parametrize(
    ("disk", "reported", "said"),
    [
        (NVME, "nvme", None),
        (NVME, None, None),
        (NVME, "ssd", "its class was assumed to be nvme from its link nvme-X_1, but the host reports class ssd"),
        (ATA, "hdd", None),
        (replace(ATA, disk_class="ssd"), "hdd", 'the lab file says class = "ssd", but the host reports class hdd'),
        (replace(ATA, disk_class="array"), "hdd", None),
        (DiskByFile("loop", Path("/x"), 1, destroy=True, disk_class="ssd"), None, None),
        (DiskByStorage("pool", {"raw": "local"}), "ssd", None),
    ],
)
def test_a_class_that_the_host_contradicts_is_a_note(
    disk: AnyDisk, reported: DiskClass | None, said: str | None
) -> None:
    found = list(find_class_notes(disk, DiskFacts(device="sda", disk_class=reported)))
    assert found == ([f'{said}: set class = "{reported}" in the lab file'] if said else [])


def test_reduced_links_of_a_disk_and_of_its_controller_are_notes() -> None:
    whole = PcieLink(8.0, 8, 8.0, 8)
    disk = DiskFacts(
        device="sda",
        path="0000:01:00.0",
        serial_link=SerialLink("SATA", 3.0, 6.0),
        controller=Controller(link=replace(whole, lanes=4)),
    )
    assert list(find_link_notes(disk)) == [
        "its link is SATA 3 Gbit/s of 6 Gbit/s: another slot, port or cable may be faster",
        "the link of its controller 0000:01:00.0 is PCIe 8 GT/s x4 of 8 GT/s x8: another slot may be faster",
    ]
    sound = replace(disk, serial_link=SerialLink("SATA", 6.0, 6.0), controller=Controller(link=whole))
    assert not list(find_link_notes(sound))


def test_the_network_to_a_disk_of_another_machine_is_a_note() -> None:
    network = NetworkPath("iSCSI", "iqn.2026-11.x:disk", ("192.0.2.1:3260",))
    (note,) = find_network_notes(DiskFacts(device="sdb", network=network))
    assert note.startswith(
        "it is reached by iSCSI at 192.0.2.1:3260 (iqn.2026-11.x:disk): each figure, also of the bare"
    )
    assert not list(find_network_notes(DiskFacts(device="sdb")))


def health(at: float) -> DiskHealth:
    return DiskHealth(at=at, source="smartctl", celsius=30 + at)


def test_a_disk_keeps_its_first_health_and_gets_the_last_one() -> None:
    first = DiskRecord(name="fast", facts=DiskFacts(device="sda"), before=health(1), after=health(2), notes=("a",))
    again = DiskRecord(name="fast", facts=DiskFacts(device="sdb"), before=health(3), notes=("a", "b"))
    assert merge_disk_records(None, first) == first
    known = merge_disk_records(first, again)
    assert (known.facts.device, known.before, known.after, known.notes) == ("sdb", health(1), health(2), ("a", "b"))
    assert merge_disk_records(known, replace(again, after=health(4))).after == health(4)


class OnDisk(RecordedMeasurer):
    """Measures on the disk `fast`, whose health is another one at each reading."""

    reads = 0

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        found = super().prepare(plan, group, examined)
        return replace(found, disks=(self.disk(),), disks_afterwards=self.afterwards)

    def disk(self) -> DiskRecord:
        self.reads += 1
        return DiskRecord(name="fast", facts=DiskFacts(device="nvme0n1"), before=health(self.reads))

    def afterwards(self) -> tuple[DiskRecord, ...]:
        return (replace(self.disk(), after=health(self.reads)),)


def test_a_run_stores_the_health_before_its_first_group_and_after_its_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    played: Played = {"guest": [0.5], "disk": 1.0}
    write_recording(RECORDING, {"randread-4k-qd32": played, "randwrite-4k-qd32": played})
    store = RunStore.create(tmp_path, RunId.new())
    campaign, measurer = two_scenarios(store, OnDisk)
    assert isinstance(measurer, OnDisk)
    outcomes(campaign)
    campaign.close(interrupted=False)
    (disk,) = store.read_results().disks
    assert (disk.name, disk.before, disk.after) == ("fast", health(1), health(measurer.reads))
