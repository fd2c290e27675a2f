"""ZFS: what is read of volumes and pools, the space of a record, and what a report says of the bytes that they move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.answers.decision import factors
from harness.features.zfs import annotate
from harness.features.zfs.report import REPORT, MovedBytes, ZfsRecord, account_cells, list_zfs_cells, zfs_blocks
from harness.features.zfs.volumes import DiskGroup, PoolShape, parse_pool, parse_zfs, read_zfs
from harness.lab.storages import look_at
from harness.layout.storage import build_on_storage
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.counters import FioCounts, Transferred
from harness.model.job import Job
from harness.model.layout import ZfsFile, Zvol
from harness.model.mode import Arm, Mode
from harness.model.option import Effective
from harness.model.workloads import parse_workloads
from harness.report.section import Section, find_sections
from harness.results import CellRecord, Run
from harness.results.assemble import AssembledRun
from harness.results.validity import configuration_check
from harness.scenario.load import load_scenario
from harness.scenario.plan import plan_for
from tests.build import measure, optane, synthetic_run
from tests.unit.storage_doubles import ZfsHost

KIB = 1024
ROOT = Path(__file__).parents[3]
ZVOL = "zfs-zvol-randwrite-4k-qd32"
SCENARIO = replace(
    optane(),
    name="zfs",
    modes=(
        Mode("host", Device(), None),
        Mode("zvol", Zvol(volblocksize=128 * KIB), Attach()),
        Mode("zfs", ZfsFile(recordsize=16 * KIB), Attach()),
    ),
)
STATUS = """\
  pool: use
 state: ONLINE
config:

\tNAME              STATE     READ WRITE CKSUM
\tuse               ONLINE       0     0     0
{vdevs}
errors: No known data errors
"""
FOUND = """\
[properties]
volblocksize\t131072
recordsize\t-
compression\tlz4
sync\tdisabled
logbias\tlatency
primarycache\tmetadata
[ashift]
12
12
0
[txg_timeout]
5
[status]
""" + STATUS.format(vdevs="\t  /dev/nullb0p1     ONLINE       0     0     0\n")


def pool(*vdevs: str, state: str = "ONLINE", scan: str = "") -> PoolShape:
    lines = STATUS.format(vdevs="".join(f"\t{vdev}  ONLINE       0     0     0\n" for vdev in vdevs)).splitlines()
    lines[1] = f" state: {state}"
    return parse_pool([*lines[:2], *([f"  scan: {scan}"] if scan else []), *lines[2:]], sector=4 * KIB)


@pytest.mark.parametrize(
    ("vdevs", "words"),
    [
        (["  /dev/sda1"], "1 disk"),
        (["  /dev/sda1", "  /dev/sdb1"], "2 disks"),
        (["  mirror-0", "    /dev/sda1", "    /dev/sdb1"], "mirror of 2 disks"),
        (["  raidz1-0", "    /dev/sda1", "    /dev/sdb1", "    /dev/sdc1"], "raidz1 over 3 disks"),
        (
            [f"  {line}" for n in range(2) for line in (f"mirror-{n}", f"  /dev/sd{n}1", f"  /dev/sd{n}2")],
            "2 x mirror of 2 disks",
        ),
        (
            ["  mirror-0", "    /dev/sda1", "    /dev/sdb1", "logs", "  /dev/nvme0n1", "spares", "  /dev/sdc"],
            "mirror of 2 disks with a log device",
        ),
        (
            ["  raidz2-0", "    /dev/a", "    replacing-1", "      /dev/b", "      /dev/e", "    /dev/c", "    /dev/d"],
            "raidz2 over 4 disks",
        ),
    ],
)
def test_the_shape_of_a_pool_is_read_from_its_status(vdevs: list[str], words: str) -> None:
    assert pool(*vdevs).words == words


def test_a_pool_that_is_not_as_it_should_be_says_so() -> None:
    shape = pool("  mirror-0", "    /dev/a", "    /dev/b", state="DEGRADED", scan="resilver in progress since Fri Nov")
    assert shape.words == "mirror of 2 disks, DEGRADED, resilver"
    assert pool("  /dev/a", scan="scrub repaired 0B in 00:00:01 with 0 errors on Fri Nov 27").busy == ""


def test_a_virtual_device_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="draid"):
        pool("  draid1:2d:3c:0s-0", "    /dev/a", "    /dev/b", "    /dev/c")


@pytest.mark.parametrize(
    ("group", "record", "space"),
    [
        (DiskGroup(), 16 * KIB, 1.0),
        (DiskGroup(2), 16 * KIB, 2.0),
        # The table of OpenZFS's documentation of raidz: small records on few disks are as large as mirrors.
        (DiskGroup(3, 1), 4 * KIB, 2.0),
        (DiskGroup(3, 1), 8 * KIB, 2.0),
        (DiskGroup(3, 1), 16 * KIB, 1.5),
        (DiskGroup(5, 1), 8 * KIB, 2.0),
        (DiskGroup(5, 1), 128 * KIB, 1.25),
        (DiskGroup(6, 2), 8 * KIB, 3.0),
        (DiskGroup(6, 2), 128 * KIB, 1.5),
        (DiskGroup(), 512, 8.0),
    ],
)
def test_a_record_takes_copies_parity_and_padding(group: DiskGroup, record: int, space: float) -> None:
    assert PoolShape((group,)).compute_space(record) == pytest.approx(space, abs=0.07)


def test_what_the_host_reports_becomes_settings_that_are_compared_with_the_request() -> None:
    effective = parse_zfs(FOUND).effective
    assert effective == Effective(
        host_zfs_volblocksize=128 * KIB,
        host_zfs_compression="lz4",
        host_zfs_sync="disabled",
        host_zfs_logbias="latency",
        host_zfs_primarycache="metadata",
        host_zfs_pool="1 disk",
        host_zfs_space=1.0,
        host_zfs_txg_timeout=5,
    )
    inherited = configuration_check(Mode("z", Zvol(volblocksize=128 * KIB), Attach()), effective)
    assert inherited is not None
    assert inherited.ok
    asked = configuration_check(Mode("z", Zvol(volblocksize=64 * KIB, sync="always"), Attach()), effective)
    assert asked is not None
    assert not asked.ok
    assert "requested host_zfs_sync = always, it is disabled" in asked.detail
    assert "requested host_zfs_volblocksize = 65536, it is 131072" in asked.detail


def speed(_arm: Arm, _job: Job) -> float:
    return 50_000.0


def zfs_run(effective: Effective = Effective(), moved: float = 33.0) -> Run:  # noqa: B008 - frozen
    run = synthetic_run(scenario=SCENARIO, workloads=["randwrite-4k"], speed=speed)
    cells = tuple(replace(cell, effective=effective) if cell.mode == "zvol" else cell for cell in run.cells)
    records = tuple(
        ZfsRecord(cell.id, {"guest": MovedBytes(moved / 2, moved / 2)}) for cell in cells if cell.id == ZVOL
    )
    return replace(run, cells=cells, of_features={"zfs": records})


def notes_of(cell: CellRecord) -> list[str]:
    return [note for _, note in annotate([cell])]


def section_of(run: Run) -> Section:
    (section,) = find_sections(run)
    return section


def details(run: Run) -> list[str]:
    return list(REPORT.details(section_of(run)))


def test_a_disabled_sync_is_named_in_the_cell_and_in_the_report() -> None:
    run = zfs_run(parse_zfs(FOUND).effective)
    (note,) = notes_of(run.cell(ZVOL))
    assert note.startswith("sync is disabled on its dataset, which the dataset above it has: what is written is not")
    assert notes_of(run.cell("zfs-zfs-randwrite-4k-qd32")) == []
    assert details(run)[0].startswith("Writes of `zvol` are not durable: sync is disabled on the dataset")


def test_writes_that_are_smaller_than_a_record_are_named_with_their_cause() -> None:
    effective = parse_zfs(FOUND.replace("disabled", "standard")).effective
    run = zfs_run(effective)
    (sentence,) = details(run)
    assert sentence == (
        "zfs-zvol-randwrite-4k-qd32: each 4 KiB moved 33.0 \N{MULTIPLICATION SIGN} its bytes on the pool's disks (16.5 "
        "\N{MULTIPLICATION SIGN} read, 16.5 \N{MULTIPLICATION SIGN} written): each is a part of a record of 128 KiB, "
        "and ZFS reads and writes whole records: a smaller volblocksize moves less."
    )
    assert details(zfs_run(effective, moved=1.4)) == []
    # On a mirror, two times its bytes are the least.
    mirror = replace(effective, host_zfs_pool="mirror of 2 disks", host_zfs_space=2.0)
    assert details(zfs_run(mirror, moved=2.4)) == []
    text = str(list(zfs_blocks(section_of(zfs_run(mirror)))))
    assert "records of 128 KiB, compression lz4, sync standard, on mirror of 2 disks" in text


def test_another_block_size_of_the_storage_and_a_degraded_pool_are_noted() -> None:
    effective = Effective(host_zfs_volblocksize=8 * KIB, host_zfs_pool="mirror of 2 disks, DEGRADED, resilver")
    assert notes_of(zfs_run(effective).cell(ZVOL)) == [
        "its volblocksize is 8 KiB, that of its storage",
        "its pool (mirror of 2 disks) is not as it should be: DEGRADED, resilver",
    ]


def test_a_longer_transaction_group_than_a_slice_is_made_for_is_noted() -> None:
    effective = parse_zfs(FOUND.replace("disabled", "standard").replace("timeout]\n5", "timeout]\n30")).effective
    (note,) = notes_of(zfs_run(effective).cell(ZVOL))
    assert note.startswith("ZFS writes after 30 s there (zfs_txg_timeout): slices are made for 5 s")


def test_the_bytes_of_a_cell_are_those_of_the_pools_disks_over_all_slices() -> None:
    plan = plan_for(replace(SCENARIO, workloads=tuple(parse_workloads("randwrite-4k"))), "smoke")
    measured = (slice_ for group in plan.groups for slice_ in measure(group, 3, speed=speed))
    of_guest = [slice_ for slice_ in measured if slice_.arm == "guest:zvol" and slice_.job == "randwrite-4k-qd32"]
    slices = [
        replace(
            slice_,
            counters=replace(
                slice_.counters,
                fio=FioCounts(written=4 * KIB * number),
                storage=Transferred(read=16 * KIB * number, written=32 * KIB * number),
            ),
        )
        for number, slice_ in enumerate(of_guest, start=1)
    ]
    # An overlapped slice has bytes of another arm.
    slices[2] = replace(slices[2], overlap="twin:zvol", counters=replace(slices[2].counters, storage=Transferred(9, 9)))
    (record,) = account_cells(AssembledRun(plan.cells, {}, slices, groups=plan.groups))
    assert record == ZfsRecord(ZVOL, {"guest": MovedBytes(read=4.0, written=8.0)})
    assert list_zfs_cells(section_of(synthetic_run(scenario=SCENARIO, workloads=["randwrite-4k"], speed=speed))) == []


def test_a_file_and_a_zvol_differ_in_their_kind_and_in_the_size_of_a_record() -> None:
    def differ(one: Zvol | ZfsFile, other: Zvol | ZfsFile) -> list[str]:
        details = (Mode("m", layout, Attach()).detail for layout in (one, other))
        return [factor.words for factor in factors(*details)]

    assert differ(Zvol(), ZfsFile(recordsize=16 * KIB)) == ["layout zfs"]
    assert differ(Zvol(), ZfsFile()) == ["layout zfs", "record 128 KiB"]
    assert differ(Zvol(sync="always"), ZfsFile(recordsize=16 * KIB)) == ["layout zfs", "sync by default"]


def test_a_cache_of_zfs_must_be_declared(tmp_path: Path) -> None:
    text = (ROOT / "scenarios" / "zfs.toml").read_text()
    path = tmp_path / "zfs.toml"
    path.write_text(text)
    assert [mode.name for mode in load_scenario(path).modes if mode.cached] == ["arc"]
    path.write_text(text.replace("cached = true\n", ""))
    with pytest.raises(ConfigError) as error:
        load_scenario(path)
    assert (
        'mode.arc: layout.primarycache = "all" conflicts with no cached, because ZFS then serves reads from memory '
        "(ARC), which is to be declared; allowed: cached = true, or primarycache metadata"
    ) in str(error.value)


def test_a_volume_that_a_run_created_is_read_back_with_what_it_inherits(tmp_path: Path) -> None:
    host = ZfsHost(tmp_path)
    vdevs = "".join(f"\t{vdev}  ONLINE  0 0 0\n" for vdev in ("  mirror-0", "    /dev/sda1", "    /dev/sdb1"))
    host.change("pool", ashift=["12"], status=STATUS.format(vdevs=vdevs).splitlines())
    mode = Mode("z", Zvol(volblocksize=64 * KIB, compression="zstd"), Attach())
    found = look_at(host, "dataset", "tank/vms")
    with build_on_storage(host.log, found, "ZFS dataset tank/vms", [mode], span=16 << 20) as layouts:
        path = layouts.guest(mode).path
        dataset = path.removeprefix("/dev/zvol/")
        state = host.state
        state["datasets"][dataset]["sync"] = "disabled"
        host.state = state
        effective = read_zfs(host, path)
    assert (effective.host_zfs_volblocksize, effective.host_zfs_compression) == (64 * KIB, "zstd")
    assert (effective.host_zfs_sync, effective.host_zfs_primarycache) == ("disabled", "metadata")
    assert (effective.host_zfs_pool, effective.host_zfs_space) == ("mirror of 2 disks", 2.0)
    check = configuration_check(mode, effective)
    assert check is not None
    assert check.ok


def test_what_openzfs_2_3_prints_of_a_file_is_understood() -> None:
    """Recorded on the lab's host: the pool leaves its sectors to the disks, which have 512 bytes."""
    sizes = "volblocksize\t-\nrecordsize\t131072"
    recorded = FOUND.replace("\n12\n12\n0\n", "\n0\n9\n0\n").replace("volblocksize\t131072\nrecordsize\t-", sizes)
    found = parse_zfs(recorded)
    assert found.pool.sector == 512
    assert found.effective.host_zfs_recordsize == 128 * KIB
    assert found.effective.host_zfs_volblocksize is None
