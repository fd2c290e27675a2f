"""The answer of a run: which mode to use for what, what one option does, which layer is responsible."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.analysis import IN_ORDER, Sequential, estimate_overhead
from harness.features.answers.decision import Answer, compare_options, get_answers, select_results
from harness.features.answers.report import (
    change_words,
    describe_basis,
    describe_effect,
    describe_undecided,
    describe_verdict,
    explain_never,
    list_cautions,
)
from harness.features.answers.uses import USES
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.layout import Layout, Lvm, LvmThin, RawFile
from harness.model.mode import Arm, Mode, Place
from harness.model.option import Effective
from harness.model.workloads import NAMED, Profile, parse_workloads
from harness.report.contents import headline_of
from harness.report.markdown import markdown_table
from harness.report.section import Section, find_sections
from harness.report.terminal import summary_lines
from harness.results import Run
from harness.results.judging import compute_better_p, mark_better
from harness.scenario.scenario import Scenario
from tests.build import synthetic_run
from tests.unit.pages import page

DEVICE = Device()


def mode(name: str, layout: Layout = DEVICE, attach: Attach | None = Attach()) -> Mode:  # noqa: B008 - frozen
    return Mode(name, layout, attach)


HOST = mode("host", attach=None)
PASSTHROUGH = mode("passthrough")
SPEEDS = {"passthrough": 100_000.0}


def a_run(
    modes: tuple[Mode, ...],
    speeds: Mapping[str, float],
    *,
    workloads: tuple[str, ...] = ("randread-4k",),
    depths: tuple[int, ...] = (64,),
    twin: float = 198_000.0,
    host: float = 200_000.0,
    flushes: Mapping[str, float] | None = None,
    rounds: int = 6,
    noise: float = 0.01,
) -> Run:
    """A run whose guests reach `speeds` IOPS by mode, and complete `flushes` (in seconds) by place."""
    profile = Profile("smoke", ramp=0, runtime=1, rounds=3, iodepth=depths, span=64 << 20, round_limit=300)
    named = tuple(each for text in workloads for each in parse_workloads(text))
    scenario = Scenario("lab", "A lab", "nvme", (HOST, *modes), named, 2 << 30, (profile,))

    def speed(arm: Arm, job: Job) -> float:  # noqa: ARG001
        if arm.place is Place.HOST or arm.mode is None:
            return host
        return twin if arm.place is Place.TWIN else speeds[arm.mode.name]

    def flush(arm: Arm, job: Job) -> float:  # noqa: ARG001
        assert flushes is not None
        return flushes[arm.place]

    return synthetic_run(
        scenario=scenario, rounds=rounds, speed=speed, flush=flush if flushes else None, noise=noise, budget=None
    )


def section_of(run: Run) -> Section:
    (section,) = find_sections(run)
    return section


def answer(run: Run, use: str) -> Answer:
    return next(each for each in get_answers(section_of(run)) if each.use.name == use)


# --- the mode to use ---


def test_the_fastest_mode_is_used_if_the_interval_shows_it_and_the_gain_is_given() -> None:
    modes = (PASSTHROUGH, mode("threads", attach=Attach(aio="threads")))
    run = a_run(modes, {"passthrough": 100_000, "threads": 138_000})
    found = answer(run, "general")
    assert found.mode == "threads"
    gain = r"\+3\d\.\d % \[3\d\.\d, 4\d\.\d\] IOPS"
    assert re.fullmatch(rf"use `threads`: {gain} against `passthrough`", describe_verdict(found))
    assert not describe_undecided(found)
    assert change_words(found).startswith("aio threads (`passthrough` to `threads`): +3")


def test_modes_that_cannot_be_told_apart_are_equal_and_one_that_shares_the_disk_is_used_with_the_reason() -> None:
    modes = (mode("raw", RawFile()), PASSTHROUGH)
    run = a_run(modes, {"raw": 101_000, "passthrough": 100_000}, noise=0.08, rounds=4)
    found = answer(run, "general")
    assert found.mode == "raw"
    assert describe_verdict(found).startswith(
        "`raw` and `passthrough` cannot be told apart; use `raw`: it leaves the rest of the"
    )
    assert re.fullmatch(
        r"`raw` or `passthrough`: about .* more of measuring these modes would decide", describe_undecided(found)
    )
    headline = headline_of(section_of(run)).sentence
    assert headline.startswith("nvme: `raw` and `passthrough` cannot be told apart: they lose ")


def test_differences_proven_to_be_small_are_equal_and_nothing_is_undecided() -> None:
    modes = (PASSTHROUGH, mode("raw", RawFile()))
    found = answer(a_run(modes, {"raw": 100_000, "passthrough": 100_000}, rounds=12), "general")
    assert "are equal within 5 %" in describe_verdict(found)
    assert not describe_undecided(found)


def test_more_scatter_needs_more_time_to_decide() -> None:
    modes = (PASSTHROUGH, mode("raw", RawFile()))
    seconds = []
    for noise in (0.06, 0.12):
        run = a_run(modes, {"raw": 100_000, "passthrough": 100_000}, noise=noise)
        (rival,) = answer(run, "general").equals
        assert rival.seconds is not None
        seconds.append(rival.seconds)
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("layouts", "use", "take", "why"),
    [
        ((DEVICE, Lvm(), Lvm()), "general", "m1` or `m2", "it leaves the rest of the disk to other guests"),
        (
            (DEVICE, Lvm(), LvmThin()),
            "general",
            "m2",
            "it leaves the rest of the disk to other guests and it has efficient",
        ),
        (
            (DEVICE, Lvm(), RawFile()),
            "general",
            "m1",
            "it leaves the rest of the disk to other guests and lvm has fewer layers to look after than",
        ),
        ((Lvm(), LvmThin()), "latency", "m0", "lvm has fewer layers to look after than"),
        ((DEVICE, DEVICE), "general", "m0", ""),
    ],
)
def test_equal_modes_are_ranked_by_what_the_use_needs(
    layouts: tuple[Layout, ...], use: str, take: str, why: str
) -> None:
    modes = tuple(mode(f"m{number}", layout) for number, layout in enumerate(layouts))
    speeds = {each.name: 100_000.0 for each in modes}
    found = answer(a_run(modes, speeds, workloads=("randread-4k",), depths=(1, 8), rounds=12), use)
    assert found.mode == take[:2]
    assert (f"; use `{take}`: {why}" if why else "; use any of them") in describe_verdict(found)


def test_a_write_back_cache_may_be_recommended_with_what_it_costs() -> None:
    fast = mode("fast", RawFile(), Attach(cache="writeback", aio="io_uring"))
    run = a_run((PASSTHROUGH, fast), {"passthrough": 100_000, "fast": 150_000})
    found = answer(run, "general")
    assert found.mode == "fast"
    assert explain_never(found) == ()
    (caution,) = list_cautions(found)
    assert caution.startswith(
        "`fast`: cache writeback honours the guest's flushes. A power failure loses only what the"
    )
    assert "volatile write cache. It takes memory of the host, and live migration needs QEMU 4.0" in caution
    for text in ("\n".join(summary_lines(run)), markdown_table(run), page(run).text):
        assert "honours the guest" in text
        assert "loses them" not in text


def test_a_cache_that_ignores_flushes_is_never_recommended_however_fast() -> None:
    fast = mode("fast", RawFile(), Attach(cache="unsafe", aio="io_uring"))
    run = a_run((PASSTHROUGH, fast), {"passthrough": 100_000, "fast": 150_000})
    assert answer(run, "general").mode == "passthrough"
    (never,) = explain_never(answer(run, "general"))
    assert never.startswith("`fast` is never recommended: cache unsafe")
    alone = answer(a_run((fast,), {"fast": 150_000}), "general")
    assert alone.mode is None
    assert "no measured mode is safe" in describe_verdict(alone)


def test_one_round_ranks_nothing() -> None:
    modes = (PASSTHROUGH, mode("raw", RawFile()))
    run = a_run(modes, {"raw": 90_000, "passthrough": 100_000}, rounds=1)
    assert answer(run, "general").mode is None
    for text in ("\n".join(summary_lines(run)), markdown_table(run), page(run).text):
        assert "2 modes were measured without an interval, so none of them is ranked" in text
        assert "loses least" not in text
        assert "against `" not in text


def test_void_guests_are_in_no_answer_and_those_better_than_their_host_are_marked() -> None:
    run = synthetic_run(cached=["raw-cached"], faster=["raw"], rounds=6)
    measured = [each for each in get_answers(section_of(run)) if each.judge is not None]
    assert {each.mode for each in measured} == {"raw"}
    assert all("`raw`: better than its host in " in " ".join(list_cautions(each)) for each in measured)
    assert "raw-cached" not in " ".join(describe_verdict(each) for each in measured)


def test_without_a_difference_few_runs_have_a_guest_that_is_called_better_than_its_host() -> None:
    chance = random.Random(32)
    template = next(cell for cell in a_run((PASSTHROUGH,), SPEEDS).cells if cell.mode == "passthrough")
    look = Sequential(20, 20, 0.95).look(20, final=True)
    assert look is not None
    runs, alone, flagged = 40, 0, 0
    for _ in range(runs):
        cells = []
        for number in range(20):
            host, guest = ([chance.gauss(100_000, 4000) for _ in range(20)] for _ in range(2))
            loss = estimate_overhead(host, guest, higher_is_better=True)
            iops = template.metrics["iops"]
            metric = replace(iops, host=tuple(host), guest=tuple(guest), adjusted={}, overhead=loss)
            p_value = compute_better_p(metric, template.mode_detail, look, IN_ORDER)
            assert p_value is not None
            cells.append(replace(template, id=f"cell{number}", metrics={"iops": metric}, better_p=p_value))
        losses = [cell.metrics["iops"].overhead for cell in cells]
        alone += any(loss is not None and loss.high is not None and loss.high < 0 for loss in losses)
        flagged += any(cell.better_than_host for cell in mark_better(cells))
    assert alone >= runs * 0.1
    assert flagged == 0


def test_a_guest_that_is_better_than_its_host_by_a_lot_is_marked_as_one_of_many_cells() -> None:
    speeds = {f"m{number}": 180_000.0 for number in range(11)} | {"quick": 260_000.0}
    cells = a_run(tuple(map(mode, speeds)), speeds, noise=0.02, rounds=12).cells
    assert {cell.mode for cell in cells if cell.better_than_host} == {"quick"}
    (note,) = (note for cell in cells for note in cell.notes if "better than its host" in note)
    assert note == "the guest is better than its host by more than 5 % in iops; no check explains it: find out why"


def test_results_of_older_versions_have_no_p_value_and_are_marked_by_interval_and_margin() -> None:
    run = synthetic_run(faster=["raw"], modes=["host", "lvm", "raw"], rounds=6)
    old = [replace(cell, better=None, better_p=None) for cell in run.cells]
    assert {cell.mode for cell in old if cell.better_than_host} == {"raw"}


@pytest.mark.parametrize(
    ("workload", "depth", "use", "judged"),
    [
        ("iometer-fileserver", 8, "general", "mixed random reads and writes"),
        ("randread-4k", 8, "general", "random I/O at 2 to 16 in flight"),
        ("randread-4k", 256, "general", "random I/O of every depth"),
        ("wal", 1, "database", "flushes after writes"),
        ("randwrite-4k", 1, "database", "small writes one at a time; no flush was measured"),
        ("seqread-1m", 8, "sequential", "sequential I/O of large blocks"),
        ("qd1", 1, "latency", "random I/O one at a time"),
        ("randread-4k-i1000", 8, "latency", "I/O at a fixed rate"),
    ],
)
def test_a_use_is_judged_by_the_best_jobs_that_were_measured(workload: str, depth: int, use: str, judged: str) -> None:
    run = a_run((PASSTHROUGH,), SPEEDS, workloads=(workload,), depths=(depth,), flushes={"host": 1e-3, "guest": 2e-3})
    assert describe_basis(answer(run, use)).startswith(judged)


def test_a_use_without_jobs_says_what_to_measure() -> None:
    found = answer(a_run((PASSTHROUGH,), SPEEDS), "database")
    assert describe_verdict(found) == "not measured: add the workload `wal`"
    for use in USES:
        assert any(use.judge_of([each.job(1, ramp=0, seconds=1)]) for each in parse_workloads(use.to_measure))
    assert {each.to_measure for each in USES if each.to_measure in NAMED}


def test_every_kind_of_layout_has_a_place_in_the_order_of_simplicity() -> None:
    kinds = sorted(Layout.__args__, key=lambda kind: kind.effort)
    names = [kind.__dataclass_fields__["kind"].default for kind in kinds]
    assert names == ["device", "partition", "md", "lvm", "raw", "lvm-thin", "zvol", "zfs", "qcow2", "rbd"]


def test_the_mode_to_use_comes_with_a_line_of_qm_set_or_with_xml() -> None:
    run = a_run((PASSTHROUGH,), SPEEDS)
    assert "Set up" not in page(run).text
    drive = "scsi1: local-lvm:vm-9000-disk-0,aio=io_uring,backup=0,cache=none,iothread=1,serial=passthrough,size=1G"
    xml = '<disk type="block" device="disk">\n  <driver name="qemu" cache="none" />\n</disk>'
    for found, text in (
        (
            Effective(pve_drive="scsi1: /dev/disk/by-id/nvme-X_1,aio=native,cache=none,iothread=1,serial=passthrough"),
            "qm set VMID --scsihw virtio-scsi-single --scsi1 /dev/disk/by-id/nvme-X_1,aio=native,cache=none,iothread=1",
        ),
        (
            Effective(pve_drive="scsi1: /dev/disk/by-partuuid/0a-1,aio=native,cache=none,size=4G"),
            "qm set VMID --scsihw virtio-scsi-single --scsi1 /dev/disk/by-id/DISK,aio=native,cache=none",
        ),
        (
            Effective(pve_drive=drive),
            "qm set VMID --scsihw virtio-scsi-single --scsi1 STORAGE:VOLUME,aio=io_uring,cache=none,iothread=1",
        ),
        (Effective(libvirt_disk=xml), " ".join(xml.split())),
    ):
        read_back = replace(run, cells=tuple(replace(cell, effective=found) for cell in run.cells))
        assert text in page(read_back).text
        assert "vm-9000" not in page(read_back).text
    assert any("qm set VMID" in line for line in summary_lines(with_drive(run, drive)))


def with_drive(run: Run, drive: str) -> Run:
    return replace(run, cells=tuple(replace(cell, effective=Effective(pve_drive=drive)) for cell in run.cells))


# --- one option at a time ---


def test_an_option_matrix_is_read_against_its_default_guest_against_guest() -> None:
    modes = (
        PASSTHROUGH,
        mode("iothread-off", attach=Attach(iothread=False)),
        mode("bus-sata", attach=Attach(bus="sata", iothread=False)),
        mode("aio-threads", attach=Attach(aio="threads")),
        mode("odd", LvmThin(), Attach(bus="nvme", aio="threads", iothread=False)),
    )
    speeds = {"passthrough": 100_000, "iothread-off": 72_000, "bus-sata": 30_000, "aio-threads": 100_500, "odd": 60_000}
    run = a_run(modes, speeds, noise=0.02)
    matrix = compare_options(select_results(section_of(run)))
    assert matrix is not None
    assert matrix.default == "passthrough"
    assert [(each.mode, each.reference) for each in matrix.effects] == [
        ("iothread-off", "passthrough"),
        ("bus-sata", "iothread-off"),
        ("aio-threads", "passthrough"),
    ]
    assert matrix.apart == ("odd",)
    assert re.fullmatch(
        r"iothread off: -2\d\.\d % \[-\d\d\.\d, -\d\d\.\d\] against `passthrough`, slower",
        describe_effect(matrix.effects[0]),
    )
    assert describe_effect(matrix.effects[2]).endswith(("undecided", "equal"))
    text = page(run).text
    assert text.index("One option at a time") < text.index("Throughput lost by mode")


# --- two arguments from the field ---


def test_a_forum_lab_with_half_of_the_hosts_iops_names_the_layer_and_the_next_action() -> None:
    """Proxmox forum, thread 183695: 4 KiB random reads at QD64, host about 200k IOPS, guest 100k to 110k."""
    pve = mode("pve", LvmThin(), Attach(aio="io_uring", iothread=False))
    run = a_run((pve,), {"pve": 105_000})
    headline = headline_of(section_of(run))
    assert re.fullmatch(
        r"nvme: `pve` loses 4\d\.\d % \[4\d\.\d, [45]\d\.\d\] of the host's throughput", headline.sentence
    )
    assert re.fullmatch(
        r"`pve`: virtualisation is responsible \(storage layer \d\.\d % \[.*\], virtualisation 4\d\.\d % \[.*\]; "
        r"QEMU's main thread was 9\d % busy, so it is the limit\)\.",
        headline.details[0],
    )
    assert headline.details[1] == (
        "Next: measure an iothread for the disk: a mode with `attach = { iothread = true }`."
    )
    with_thread = mode("pve-iothread", LvmThin(), Attach(aio="io_uring"))
    both = a_run((pve, with_thread), {"pve": 105_000, "pve-iothread": 145_000})
    found = answer(both, "general")
    assert found.mode == "pve-iothread"
    assert re.fullmatch(
        r"iothread on \(`pve` to `pve-iothread`\): \+3\d\.\d % \[3\d\.\d, \d\d\.\d\] IOPS", change_words(found)
    )


def test_a_busy_iothread_gets_an_action_that_its_hypervisor_offers() -> None:
    """Proxmox VE has no mapping of queues to iothreads (QEMU 9.0, libvirt 10.0)."""
    run = a_run((mode("thread"),), {"thread": 105_000})
    assert "several iothreads for its queues" in headline_of(section_of(run)).details[1]
    pve = headline_of(section_of(with_drive(run, "scsi0: local-lvm:vm-100-disk-0,iothread=1"))).details[1]
    assert "iothread_vq_mapping" not in pve
    assert pve.startswith("Next: give the guest several disks, each with an iothread")


def test_a_slow_layout_is_named_instead_of_the_attachment() -> None:
    run = a_run((mode("thin", LvmThin()),), {"thin": 95_000}, twin=100_000)
    details = headline_of(section_of(run)).details
    assert details[0].startswith("`thin`: storage layer is responsible (storage layer 50.")
    assert details[1].startswith("Next: compare other layouts")


@pytest.mark.parametrize(
    ("twin", "guest", "noise", "said"),
    [
        (200_000.0, 120_000.0, 0.4, "so far, either layer may cause the loss"),
        (198_000.0, 196_000.0, 0.2, "so far, no loss is shown"),
    ],
)
def test_what_is_undecided_is_said_and_a_loss_that_is_shown_is_not_denied(
    twin: float, guest: float, noise: float, said: str
) -> None:
    run = a_run((mode("thin", LvmThin()),), {"thin": guest}, twin=twin, noise=noise, rounds=10)
    details = headline_of(section_of(run)).details
    assert details[0].startswith("`thin`: which layer is responsible is undecided")
    assert details[1] == f"Next: measure for longer: {said}."


@pytest.mark.parametrize(
    ("host", "guest", "said"),
    [
        (11.6e-3, 12.4e-3, "the disk is responsible, not the VM"),
        (1.1e-3, 14.0e-3, "the VM is responsible, by its virtualisation"),
        (5e-3, 10.1e-3, "which side is responsible is undecided"),
    ],
)
def test_fsync_in_the_guest_and_on_the_host_says_which_side_is_responsible(
    host: float, guest: float, said: str
) -> None:
    """etcd, pull request 10578: fio with fdatasync in the VM and on the hypervisor, to see which of them is slow."""
    flushes = {"host": host, "guest": guest}
    run = a_run((PASSTHROUGH,), SPEEDS, workloads=("wal",), depths=(1,), flushes=flushes, noise=0.03)
    details = " ".join(headline_of(section_of(run)).details)
    assert re.search(
        rf"fsync p99 is \d+\.\d ms in the guest of `passthrough` and \d+\.\d+ ms on the host: {said}", details
    )
    assert ("The host alone is above the 10 ms" in details) == (host > 10e-3)
    assert ("The guest is above the 10 ms that etcd wants, the host is not." in details) == (host < 10e-3 < guest)
    assert said in page(run).text
    if "undecided" in said:
        assert "Next: measure for longer: so far, the disk or the VM may have more of the latency." in details


# --- the page ---


def test_names_of_modes_in_an_answer_stay_text() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    run = synthetic_run(modes=["host", "lvm"], rounds=3)
    cells = tuple(replace(cell, mode=hostile) if cell.mode == "lvm" else cell for cell in run.cells)
    found = page(replace(run, cells=cells))
    assert "img" not in {tag for tag, _ in found.tags}
    assert hostile in found.text


def test_settings_that_all_modes_share_are_folded_away() -> None:
    found = page(synthetic_run())
    heads = [row for row in found.rows if row[:2] == ["", "passthrough"]]
    assert ["requested, attach: cache", "none", "none", "none", "writeback"] in found.rows
    assert ["requested, attach: bus", "virtio-scsi"] in found.rows
    assert heads
