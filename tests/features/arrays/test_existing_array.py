"""An array that is there already, against the single disk that the lab file names: from the lab file to the report."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import ConfigError, Unsupported
from harness.events import Events
from harness.features.arrays.records import Bottleneck, ScalingRecord
from harness.features.arrays.scaling import scale_arrays
from harness.features.write_limit.fitting import planned_writes
from harness.guest.libvirt.backend import LibvirtHypervisor
from harness.guest.libvirt.connection import Connection
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.lab.inventory import Inventory, array_of
from harness.lab.lab_file import load_lab
from harness.measure.host_measurer import measure_timetable
from harness.measure.phases import Phases
from harness.measure.prepare import SetupRequest, open_session_with_reference
from harness.measure.recorder import DiskRecords, find_array_notes
from harness.measure.series import RoundSegment
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.disk import ArrayFacts, Controller, DiskFacts, DiskRecord, PcieLink
from harness.model.job import parse_workload
from harness.model.layout import Lvm, RawFile
from harness.model.mode import Arm, Cell, Mode, Place
from harness.plugin.options import Options, scenarios_for
from harness.report.contents import headline_of
from harness.report.section import find_sections
from harness.report.terminal import summary_lines
from harness.results import CellContext, Measurement, Run, RunStore, ValidityCheck, assemble
from harness.results.assemble import AssembledRun
from harness.scenario.plan import describe_plan, expand, plan_for
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, timetables
from tests.build import at_full_speed, synthetic_run
from tests.build import counters as counters_of
from tests.shipped_scenarios import SCENARIOS
from tests.unit.loop_disks import RUNNER, require
from tests.unit.this_host import connection, this_host

__all__ = ["connection"]

MIB = 1 << 20
LAB = """
[host.here]
kind = "local"

[host.here.disk.spare]
id = "/dev/disk/by-id/ata-Fast_SSD_1"
serial = "1"
destroy = true

[host.here.disk.lun]
id = "/dev/disk/by-id/scsi-3600"
serial = "3600"
destroy = true
array = { level = 6, disks = 8, chunk = "64 KiB", controller = "FS3017", cache = "write back", reference = "vms1" }

[host.here.storage.vms]
volume_group = "vms"
array = { level = 5, disks = 6, reference = "spare" }

[host.here.storage.vms1]
volume_group = "single"
"""


def lab(tmp_path: Path, text: str = LAB) -> Inventory:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    return load_lab(path)


def for_this_lab(tmp_path: Path, text: str = LAB) -> Mapping[str, Scenario]:
    inventory = lab(tmp_path, text)
    options = Options(
        inventory=inventory,
        hosts=inventory.hosts,
        profile="smoke",
        reports=tmp_path,
        seed=1,
        rounds=None,
        time=None,
        require_lab=False,
        resume=None,
        inconclusive="fail",
        limit=None,
        require_verdict=False,
    )
    return scenarios_for(options, SCENARIOS).scenarios


def test_the_lab_file_says_what_an_array_is_and_what_it_is_compared_with(tmp_path: Path) -> None:
    (host,) = lab(tmp_path).hosts
    lun, vms = array_of(host.target("lun")), array_of(host.target("vms"))
    assert lun is not None
    assert vms is not None
    stated = ArrayFacts("raid6", 64 * 1024, 8, "write back", source="the lab file", legs=1, controller="FS3017")
    assert (lun.facts, lun.reference) == (stated, "vms1")
    assert (vms.facts, vms.reference) == (ArrayFacts("raid5", disks=6, source="the lab file", legs=1), "spare")
    assert array_of(host.target("vms1")) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"spare" }', '"sparse" }', 'storage.vms.array.reference = "sparse": not on this host; allowed: spare, vms1'),
        ('"spare" }', '"lun" }', 'storage.vms.array.reference = "lun": is an array itself'),
        ('"spare" }', '"vms" }', 'storage.vms.array.reference = "vms": is an array itself'),
        ('serial = "1"\ndestroy = true', 'serial = "1"', 'reference = "spare": a run overwrites it, but it does not'),
        ("level = 5, disks = 6,", "level = 5,", "storage.vms.array.disks: missing"),
        ("level = 5, disks = 6,", "level = 5, disks = 6, legs = 4,", "RAID 5 over 6 disks in 4 legs is not a possible"),
        ("level = 5, disks = 6,", "legs = 2,", "storage.vms.array.legs = 2: cannot be used without level and disks"),
        ("level = 5,", "level = 3,", "storage.vms.array.level = 3"),
        ('serial = "3600"', 'serial = "3600"\nclass = "ssd"', 'disk.lun.array: cannot be used with class = "ssd"'),
    ],
)
def test_an_array_or_a_reference_that_cannot_be_measured_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert LAB.count(old) == 1
    with pytest.raises(ConfigError) as error:
        lab(tmp_path, LAB.replace(old, new))
    assert message in error.value.message


def test_every_array_of_the_lab_has_the_scenario_with_its_reference(tmp_path: Path) -> None:
    found = for_this_lab(tmp_path)
    arrays = {name: each.disks for name, each in found.items() if each.file == "existing_array_vm"}
    assert arrays == {
        "lun_existing_array_vm": ("lun", "vms1"),
        "vms_existing_array_vm": ("vms", "spare"),
    }
    # Every other scenario of the array measures the reference as well, and those of single disks none.
    assert found["vms"].disks == ("vms", "spare")
    assert found["spare"].disks == ("spare",)


def test_the_reference_is_measured_in_each_block_and_its_bytes_are_announced(tmp_path: Path) -> None:
    scenario = for_this_lab(tmp_path)["vms_existing_array_vm"]
    cells = [cell for cell in expand(scenario, "smoke") if cell.mode.name in ("host", "lvm")]
    assert [arm.id for arm in cells[1].arms] == ["host", "twin:lvm", "guest:lvm", "reference"]
    plan = plan_for(scenario, "smoke", cells)
    assert all(Arm(Place.REFERENCE) in group.arms for group in plan.groups)
    assert describe_plan(plan).endswith("written to vms, spare")
    written = planned_writes(plan)
    assert set(written) == {"vms", "spare"}
    # The fill of its region, and all of its slices that write.
    slices = plan.rounds * sum(
        group.blocks * job.wall * plan.write_rate for group in plan.groups for job in group.jobs if job.writes
    )
    assert written["spare"] == pytest.approx(plan.span + slices, rel=0.1)
    without = plan_for(
        replace(scenario, reference="", disks=("vms",)), "smoke", [replace(c, reference="") for c in cells]
    )
    assert without.write_bytes < plan.write_bytes
    assert without.fio_seconds < plan.fio_seconds


HOST_MODE = Mode("host", Device(), None)
LVM = Mode("lvm", Lvm(), Attach())
SINGLE = 20_000.0
ARRAY = {"host": 4.2, "twin:lvm": 4.0, "guest:lvm": 2.0}
"""How many times the single disk each arm delivers."""
FOUND = DiskRecord(name="vms", facts=DiskFacts(device="sda", array=ArrayFacts("RAID5", 64 * 1024, 6)))


def cells_of(workload: str, depths: Sequence[int]) -> list[Cell]:
    jobs = [parse_workload(workload).job(depth, ramp=0.0, seconds=1.0) for depth in depths]
    return [Cell("vms", "vms", mode, job, "spare") for job in jobs for mode in (HOST_MODE, LVM)]


def measurements(cells: list[Cell]) -> list[Measurement]:
    found = []
    for job, number in product(dict.fromkeys(cell.job for cell in cells), range(1, 5)):
        of_block = 1 + number / 10  # What all arms of a block share does not change a ratio.
        for arm, times in {"reference": 1.0, **ARRAY}.items():
            iops = SINGLE * times * of_block * math.exp(0.01 * (number - 2.5) * (arm != "reference"))
            found.append(at_full_speed(job, arm, number, iops, counters_of({"cpu_busy": 0.3})))
    return found


def measured(
    workload: str = "randread-4k", failed: str = "", disk: DiskRecord = FOUND, depths: Sequence[int] = (32,)
) -> Run:
    cells = cells_of(workload, depths)
    own = measurements(cells)
    context = CellContext(host="here", group="g", span_bytes=64 * MIB)
    if failed:
        context = replace(context, validity=(ValidityCheck(failed, ok=False, detail=""),))
    records = {each.id: each for each in assemble(cells, own, {cell.id: context for cell in cells})}
    return replace(
        synthetic_run(),
        cells=tuple(records.values()),
        disks=(disk,),
        of_features={"scalings": scale_arrays(AssembledRun(cells, records, own, [disk]))},
    )


def test_the_array_on_the_host_is_compared_with_the_reference_of_the_same_blocks() -> None:
    bare, lvm = measured().of(ScalingRecord)
    assert [bare.metrics["iops"].speedup.point, lvm.metrics["iops"].speedup.point] == pytest.approx([4.2, 4.0])
    assert lvm.metrics["iops"].speedup.low is not None
    assert lvm.metrics["iops"].efficiency.point == pytest.approx(4 / 6)
    assert (lvm.level, lvm.disks, lvm.legs, lvm.ideal, lvm.reference) == (5, 6, 1, 6.0, "spare")


def test_a_level_that_writes_parity_has_its_own_ideal() -> None:
    bare, _ = measured("randwrite-4k").of(ScalingRecord)
    assert bare.ideal == pytest.approx(6 / 4)
    assert bare.bottleneck is Bottleneck.NONE


@pytest.mark.parametrize(
    ("link", "limit", "evidence"),
    [
        # 4.2 times 20 000 x 256 KiB, with what the blocks share: 27.5 GB/s, of 31.5 and 63 GB/s.
        (PcieLink(16, 16), Bottleneck.PATH, "87% of what its link (PCIe 16 GT/s x16) transfers"),
        (PcieLink(32, 16), Bottleneck.SHARED, "delivers 70% of it; the CPUs were 30% busy"),
        (None, Bottleneck.SHARED, "each member has enough I/Os for 100% of the single disk's throughput"),
    ],
)
def test_the_link_of_the_controller_or_what_its_disks_share_limits_the_array(
    link: PcieLink | None, limit: Bottleneck, evidence: str
) -> None:
    disk = replace(FOUND, facts=replace(FOUND.facts, controller=Controller(link=link)))
    # The single disk does as much at depth 1, so each disk of the array has enough I/Os.
    bare, *_ = measured("seqread-256k", disk=disk, depths=(32, 1)).of(ScalingRecord)
    assert bare.bottleneck is limit
    assert evidence in bare.evidence


def test_more_than_the_disks_can_deliver_is_from_a_cache() -> None:
    bare, _ = measured("randwrite-4k").of(ScalingRecord)
    assert bare.evidence == "it delivers 280% of what its level can deliver, so a cache answered"


@pytest.mark.parametrize(
    ("level", "legs", "shape"),
    [
        ("raid10", None, (10, 6, 1)),
        ("RAID-1(1+0)", None, (10, 6, 1)),
        ("RAID ADG", None, (6, 6, 1)),
        ("RAID50", 2, (5, 6, 2)),
        ("RAID50", None, None),
        ("raid5", 4, None),
        ("JBOD", None, None),
        (None, None, None),
    ],
)
def test_controllers_have_their_own_names_for_a_level(
    level: str | None, legs: int | None, shape: tuple[int, int, int] | None
) -> None:
    found = ArrayFacts(level, disks=6, legs=legs).shape
    assert (None if found is None else (found.level, found.disks, found.legs)) == shape


def test_without_level_and_disks_nothing_is_said_about_scaling_and_a_note_names_the_remedy(tmp_path: Path) -> None:
    unknown = replace(FOUND, facts=replace(FOUND.facts, array=ArrayFacts()))
    assert measured(disk=unknown).of(ScalingRecord) == ()
    text = LAB.replace("level = 5, disks = 6, ", "")
    storage = lab(tmp_path, text).hosts[0].target("vms")
    (note,) = find_array_notes(storage, unknown.facts)
    assert note.endswith("set `level` and `disks` of `array` in the lab file")
    assert list(find_array_notes(storage, FOUND.facts)) == []


def test_what_the_host_reports_wins_over_the_lab_file(tmp_path: Path) -> None:
    storage = lab(tmp_path).hosts[0].target("vms")
    reported = replace(FOUND.facts, array=ArrayFacts("raid6", disks=8))
    (note,) = find_array_notes(storage, reported)
    assert note.startswith("the lab file says raid5 instead of raid6, 6 disks instead of 8")
    stated = array_of(storage)
    assert stated is not None
    assert reported.array is not None
    assert reported.array.completed(stated.facts).shape == ArrayFacts("raid6", disks=8).shape
    # The same level by another name is none.
    assert list(find_array_notes(storage, replace(FOUND.facts, array=ArrayFacts("RAID 5", disks=6)))) == []


@pytest.mark.parametrize(("failed", "doubt"), [("bytes reference", "bytes reference"), ("bytes guest:lvm", "")])
def test_a_failed_check_of_the_reference_is_named(failed: str, doubt: str) -> None:
    assert [each.doubt for each in measured(failed=failed).of(ScalingRecord)] == [doubt, doubt]


def test_the_report_says_how_far_the_array_scales_beside_what_a_guest_loses() -> None:
    (section,) = find_sections(measured())
    headline = headline_of(section)
    assert "`lvm` loses 52" in headline.sentence
    sentence, basis, *_ = headline.details[-3:]
    assert sentence.startswith("RAID 5 over 6 on the host: `host` delivers 4.20 times one disk (spare) [")
    assert "; `lvm` delivers 4.00 times one disk (spare) [" in sentence
    assert sentence.endswith("67 % of 6 disks.")
    assert basis.startswith("Geometric mean over 1 job in 4 blocks")
    sentence = next(line for line in summary_lines(measured()) if line.startswith("vms-lvm-"))
    assert sentence.startswith("vms-lvm-randread-4k-qd32: RAID 5 over 6 delivers 4.0")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    require("sfdisk", "fio")
    (tmp_path / "vms").mkdir()
    (tmp_path / "same").mkdir()
    text = f"""
[host.here]
kind = "local"
[host.here.disk.spare]
file = "{tmp_path / "spare.img"}"
size = "128 MiB"
destroy = true
[host.here.storage.vms]
directory = "{tmp_path / "vms"}"
array = {{ level = 5, disks = 6, reference = "spare" }}
[host.here.storage.same]
directory = "{tmp_path / "same"}"
"""
    spec = lab(tmp_path, text).hosts[0]
    yield this_host(spec)
    assert not list((tmp_path / "vms").iterdir())
    assert not (tmp_path / "spare.img").exists()


def request(reference: str) -> SetupRequest:
    raw = Mode("raw", RawFile(), None)
    return SetupRequest(("vms",), (HOST_MODE, raw), (), span=16 * MIB, conditioning="fill", reference=reference)


def test_array_and_reference_are_filled_and_measured_in_one_timetable(
    host: Host, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.measure.platform.LEASE_DIRECTORY", str(tmp_path / "pacing"))
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    hypervisor = LibvirtHypervisor(host, connection, Events())
    job = parse_workload("randwrite-4k").job(4, ramp=0.0, seconds=0.3)
    arms = (Arm(Place.HOST), Arm(Place.REFERENCE))
    (table,) = timetables(
        {job: [ScheduledArm(arm) for arm in arms]}, 1, chance=random.Random(1), pause=lambda _job, _arm: 0.3
    )
    with open_session_with_reference(
        host, hypervisor, request("spare"), log=log, seed=1, phases=Phases(Events())
    ) as at:
        assert at.reference is not None
        loop = at.reference.layouts.disk
        assert loop.startswith("loop")
        assert [each.name for each in DiskRecords(Events()).of(at)] == ["vms", "spare"]
        assert at.of(arms[1]).target(arms[1]).size == at.target(arms[0]).size == 16 * MIB
        assert at.of(arms[1]).counted_disks(arms[1]) == (loop,)
        group = Group("g", "vms", "s", (Cell("s", "vms", HOST_MODE, job, "spare"),))
        store = RunStore.create(tmp_path / "reports", RunId.new())
        found = measure_timetable(
            lambda turn: at.of(turn.arm),
            at,
            store,
            group,
            RoundSegment(1, 1, 1, table),
            seed=1,
            began=lambda _slice: None,
        )
    by_arm = {each.arm: each for each in found}
    written = by_arm["reference"].counters
    assert by_arm["host"].metrics["iops"] > 0
    assert written.fio.written > 0
    # The loop device belongs to the run alone: its own counter shows what fio wrote.
    assert written.disk is None or written.disk.written >= written.fio.written


def test_a_reference_on_the_disks_of_the_array_is_refused(host: Host, connection: Connection, tmp_path: Path) -> None:
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    hypervisor = LibvirtHypervisor(host, connection, Events())
    opened = open_session_with_reference(host, hypervisor, request("same"), log=log, seed=1, phases=Phases(Events()))
    with pytest.raises(Unsupported, match="same, the reference of vms, is on the same disks: "), opened:
        pytest.fail("it was opened")
