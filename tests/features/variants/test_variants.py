"""Variants: modes that are measured in several complete stacks, whose difference is judged."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from harness.errors import GuestError, HostError
from harness.features.doctor.settings import find_unsettable, hold_all
from harness.features.variants import ATTACH_CHANGES, Variant, in_variants
from harness.guest.protocol import Backup, Guest
from harness.lab.lab_file import lab_of
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.transport.local import LocalRunner
from harness.measure.session import Guests
from harness.model.attach import Attach
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Arm, Budget, HostSetting, Mode, Place
from harness.model.option import Effective
from harness.plugin.engine import explain
from harness.plugin.options import Options, scenarios_for
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.terminal import difference_lines, short_lines
from harness.results import Run
from harness.scenario.plan import expand, plan_for
from harness.scenario.scenario import Scenario
from harness.scenario.setups import regions, setups
from harness.scenario.timetable import ScheduledArm, timetables
from tests.build import optane, synthetic_run
from tests.unit.test_scenario_load import complaint, load

OLD, SLOW = Variant(), Variant(guest=GuestOptions(emulator="/opt/qemu/qemu-system-x86_64"))
TWO = {"old": OLD, "slow": SLOW}
FILE = """
title = "A disk"
modes = ["host", "lvm"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"

[variant.old]

[variant.new]
guest.emulator = "/opt/qemu/bin/qemu-system-x86_64"
attach.aio = "threads"
"""


def by_name(scenario: Scenario) -> dict[str, Mode]:
    return {mode.name: mode for mode in scenario.modes}


def test_each_mode_with_a_guest_is_measured_in_each_variant(tmp_path: Path) -> None:
    scenario = load(tmp_path, FILE)
    old, new = by_name(scenario)["lvm-old"], by_name(scenario)["lvm-new"]
    assert [mode.name for mode in scenario.modes] == ["host", "lvm-old", "lvm-new"]
    assert isinstance(new.attach, Attach)
    assert (new.attach.aio, new.guest.emulator) == ("threads", "/opt/qemu/bin/qemu-system-x86_64")
    assert (old.against, new.against) == (None, old)
    assert old.stored == new.stored
    assert [cell.id for cell in expand(scenario, "smoke")] == [
        "disk-host-randread-4k-qd32",
        "disk-lvm-old-randread-4k-qd32",
        "disk-lvm-new-randread-4k-qd32",
    ]


def test_the_reference_can_be_chosen(tmp_path: Path) -> None:
    scenario = load(tmp_path, FILE.replace("[variant.new]\n", "[variant.new]\nreference = true\n"))
    assert [(mode.name, mode.against and mode.against.name) for mode in scenario.modes[1:]] == [
        ("lvm-new", None),
        ("lvm-old", "lvm-new"),
    ]


def test_the_kernels_settings_are_files_of_the_host(tmp_path: Path) -> None:
    text = (
        FILE + 'sysctl = { "vm.dirty_ratio" = 5 }\nmodule = { "kvm.halt_poll_ns" = 0, "kvm.nx_huge_pages" = false }\n'
    )
    new = by_name(load(tmp_path, text))["lvm-new"]
    assert [each.words for each in new.settings] == [
        "/proc/sys/vm/dirty_ratio = 5",
        "/sys/module/kvm/parameters/halt_poll_ns = 0",
        "/sys/module/kvm/parameters/nx_huge_pages = N",
    ]
    assert new.alternating


def test_a_guest_that_never_halts_runs_alone(tmp_path: Path) -> None:
    text = FILE.replace("[variant.new]\n", '[variant.new]\nguest.idle = "IDLE"\n')
    assert by_name(load(tmp_path, text.replace("IDLE", "poll")))["lvm-old"].alternating
    assert not by_name(load(tmp_path, text.replace("IDLE", "haltpoll")))["lvm-old"].alternating


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("[variant.old]\n", "", "variant.new: the only variant; allowed: two or more, which are compared, or none"),
        (
            "[variant.old]\n\n[variant.new]\n",
            "[variant.old]\nreference = true\n\n[variant.new]\nreference = true\n",
            "variant.new.reference = true: variant.old is the reference already; allowed: one reference",
        ),
        (
            'attach.aio = "threads"',
            'attach.aio = "native"\nattach.cache = "writeback"',
            (
                'variant.new, in the mode "lvm": attach.aio = "native" conflicts with attach.cache = "writeback", '
                "which is not direct I/O; allowed: cache none or directsync, or aio threads or io_uring"
            ),
        ),
        (
            'guest.emulator = "/opt/qemu/bin/qemu-system-x86_64"',
            'guest.emulator = "qemu"',
            (
                'variant.new.guest.emulator = "qemu": not an absolute path of a file on the host; allowed: for example '
                '"/opt/qemu/bin/qemu-kvm"'
            ),
        ),
        (
            'attach.aio = "threads"',
            'sysctl = { "../x" = 1 }',
            'variant.new.sysctl."../x": not a name of sysctl; allowed: for example vm.dirty_background_ratio',
        ),
        (
            'attach.aio = "threads"',
            'module = { "kvm.halt_poll_ns" = "1 2" }',
            (
                'variant.new.module."kvm.halt_poll_ns" = "1 2": not one word; allowed: a number, true, false or a '
                'word, for example "0"'
            ),
        ),
        (
            'modes = ["host", "lvm"]',
            'modes = ["host", "lvm", "lvm-new"]\nmode.lvm-new = { layout = { kind = "lvm" }, attach = {} }',
            'variant.new: "lvm" in this variant would have the name of the mode lvm-new; rename one of them',
        ),
    ],
)
def test_a_mistake_is_reported_with_its_key(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in FILE
    assert line in complaint(tmp_path, FILE.replace(old, new))


def test_variants_use_the_same_data_and_share_host_and_twin() -> None:
    scenario = in_variants(optane(), TWO)
    (together,) = setups(scenario.modes)
    assert len(regions(together)) == len(regions(optane().modes))
    (group,) = plan_for(scenario, "smoke", [c for c in expand(scenario, "smoke") if "lvm" in c.mode.names]).groups
    assert [arm.id for arm in group.arms] == ["host", "twin:lvm", "guest:lvm-old", "guest:lvm-slow"]


def test_a_selected_variant_is_measured_with_its_reference() -> None:
    scenario = in_variants(optane(), TWO)
    plan = plan_for(scenario, "smoke", [c for c in expand(scenario, "smoke") if c.mode.name == "lvm-slow"])
    assert [arm.id for arm in plan.groups[0].arms] == ["host", "twin:lvm", "guest:lvm-old", "guest:lvm-slow"]
    assert [mode.name for mode in plan.setups[0].modes] == ["lvm-old", "lvm-slow"]


def test_a_variant_with_the_page_cache_has_a_twin_of_its_own() -> None:
    cached = Variant(attach=ATTACH_CHANGES.model_validate({"cache": "writeback", "aio": "threads"}))
    modes = by_name(in_variants(optane(), {"old": OLD, "cached": cached}))
    assert [modes[name].twin.name for name in ("lvm-old", "lvm-cached")] == ["lvm", "lvm-cached"]


@pytest.mark.parametrize("one_guest", [False, True])
def test_guests_that_cannot_run_side_by_side_have_timetables_of_their_own(*, one_guest: bool) -> None:
    scenario = in_variants(optane(), TWO).on(ANY_GUEST, one_guest=one_guest)
    plan = plan_for(scenario, "smoke", [c for c in expand(scenario, "smoke") if "lvm" in c.mode.names])
    (group,) = plan.groups
    assert plan.reboots(group) is one_guest
    turns = {job: [ScheduledArm(arm) for arm in group.arms] for job in group.jobs}
    tables = timetables(turns, group.blocks, chance=random.Random(1), pause=lambda _job, _arm: 0.1)
    guests = [[each.arm.mode for each in table.slices if each.arm.in_guest] for table in tables]
    machines = [{mode.variant_name for mode in modes if mode is not None} for modes in guests]
    if one_guest:
        assert sorted(map(sorted, machines)) == [[], ["old"], ["slow"]]
        assert machines[0] == set()
        assert not any(each.arm.in_guest for each in tables[0].slices)
    else:
        assert machines == [{"old", "slow"}]


@dataclass
class Machines:
    """Stand-ins for guests: which of them run."""

    running: list[str] = field(default_factory=list)
    most: int = 0
    boots: int = 0
    changes: bool = False

    @contextmanager
    def boot(self, variant: str) -> Iterator[Guest]:
        self.boots += 1
        self.running.append(variant)
        self.most = max(self.most, len(self.running))
        try:
            yield cast("Guest", _Machine(variant, f"boot {self.boots}" if self.changes else ""))
        finally:
            self.running.remove(variant)

    def guests(self, *, alternating: bool) -> Guests:
        def of(variant: str):  # type: ignore[no-untyped-def]
            return lambda: self.boot(variant)

        disks = {"old": ["lvm-old"], "new": ["lvm-new"]}
        return Guests("here", {variant: of(variant) for variant in disks}, disks, alternating=alternating)


@dataclass
class _Machine:
    variant: str
    aio: str
    boot_seconds: float = 1.0
    windows: bool = False
    fio: str = "fio"

    @property
    def evidence(self) -> dict[str, str]:
        return {"kernel": self.variant}

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:
        assert disk == f"lvm-{self.variant}"
        yield

    def effective(self, disk: str) -> Effective:
        return Effective(guest_kernel=disk, aio=self.aio or None)

    def backup(self, disk: str, target: str) -> Backup:
        raise NotImplementedError

    def post_mortem(self) -> str | None:
        return None


def test_guests_run_side_by_side() -> None:
    machines = Machines()
    guests = machines.guests(alternating=False)
    with guests.holding("old", "lvm-old"), guests.holding("new", "lvm-new"):
        assert machines.running == ["old", "new"]
    guests.measured()
    guests.boot_again()
    assert machines.boots == 4
    guests.close()
    assert machines.running == []


def test_guests_that_alternate_run_alone_and_not_beside_the_host() -> None:
    machines = Machines()
    guests = machines.guests(alternating=True)
    assert guests.effective == {f"lvm-{name}": Effective(guest_kernel=f"lvm-{name}") for name in ("old", "new")}
    with guests.without():
        assert machines.running == []
    with guests.holding("new", "lvm-new"):
        assert machines.running == ["new"]
    guests.measured()
    guests.boot_again()
    with guests.holding("old", "lvm-old"):
        assert machines.running == ["old"]
    guests.close()
    assert (machines.most, machines.running) == (1, [])


def test_a_guest_that_is_booted_in_another_way_is_an_error() -> None:
    guests = Machines(changes=True).guests(alternating=True)
    with pytest.raises(GuestError, match="attached in another way"):
        guests.of("old")


def test_settings_are_held_and_restored(tmp_path: Path) -> None:
    file = tmp_path / "sys/halt_poll_ns"
    file.parent.mkdir()
    file.write_text("200000\n", encoding="utf-8")
    settings = [HostSetting(str(file), "0")]
    runner = LocalRunner("host here")
    assert find_unsettable(runner, settings) is None
    with hold_all(runner, settings, directory=f"{tmp_path}{LEASE_DIRECTORY}"):
        assert file.read_text(encoding="utf-8") == "0\n"
    assert file.read_text(encoding="utf-8") == "200000\n"
    assert "cannot be set" in (find_unsettable(runner, [HostSetting(str(tmp_path / "none"), "0")]) or "")


def test_a_setting_that_the_host_refuses_is_an_error(tmp_path: Path) -> None:
    runner = LocalRunner("host here")
    gone = HostSetting(str(tmp_path / "sys/none"), "0")
    with (
        pytest.raises(HostError, match="was refused"),
        hold_all(runner, [gone], directory=f"{tmp_path}{LEASE_DIRECTORY}"),
    ):
        pytest.fail("it was held")


def run(*, difference: float | None = 0.01, rounds: int = 24, variants: Mapping[str, Variant] = TWO) -> Run:
    budgets = [Budget("iops", difference=difference)] if difference is not None else []
    return synthetic_run(modes=["host", "lvm"], budget=0.9, budgets=budgets, rounds=rounds, variants=variants)


def test_the_difference_is_paired_and_judged() -> None:
    cell = run().cell("optane-lvm-slow-seqread-256k-qd1")
    found, (_, budget) = cell.metrics["iops"], cell.budget
    assert cell.against == "optane-lvm-old-seqread-256k-qd1"
    assert found.difference is not None
    assert found.difference.low is not None
    assert found.difference.low > 0.03
    assert 0.04 < found.difference.point < 0.06
    assert len(found.against) == len(found.guest) == 24
    assert (budget.difference, budget.verdict, cell.verdict) == (0.01, "exceeds", "exceeds")
    assert cell.differs == ("qemu_version 10.0.2 -> 10.1.0",)


def test_without_a_difference_none_is_shown() -> None:
    same = run(variants={"old": OLD, "new": Variant()}, difference=0.05)
    for cell in same.cells:
        if cell.against is not None:
            found = cell.metrics["iops"].difference
            assert found is not None
            assert found.low is not None
            assert abs(found.point) < 0.02
            assert cell.verdict in ("within", "inconclusive")


def test_the_reference_has_no_difference() -> None:
    cell = run().cell("optane-lvm-old-randread-4k-qd1")
    assert (cell.against, cell.metrics["iops"].difference, cell.metrics["iops"].against) == (None, None, ())
    assert [budget.difference for budget in cell.budget] == [None]


def test_terminal_markdown_and_page_show_the_difference_first() -> None:
    shown = run()
    title, first, *_ = difference_lines(shown)
    assert title.startswith("slow against old. The guests ran side by side")
    assert "qemu_version 10.0.2 -> 10.1.0" in title
    assert first.startswith("  slow loses ")
    short = next(line for line in short_lines(shown) if line.startswith("slow against old: "))
    assert re.match(r"slow against old: [0-9]+ [a-z].*; the worst: slow (loses|takes) ", short)
    text = markdown_table(shown)
    assert text.index("slow against old") < text.index("### ")
    assert "| `lvm-randread-4k-qd1` |" in text
    page = render_html(shown)
    assert page.index("slow against old") < page.index("Overhead by mode and job")
    assert "difference from the reference" in explain(shown.cell("optane-lvm-slow-randread-4k-qd1"))


def test_without_variants_nothing_is_shown() -> None:
    assert difference_lines(synthetic_run()) == []


LAB = {
    "host": {"here": {"kind": "local", "disk": {"optane": {"file": "/tmp/disk", "size": "1 GiB", "destroy": True}}}},
    "variant": {"old": {}, "new": {"guest": {"machine": "pc-q35-9.2"}}},
}


def test_a_lab_file_has_variants_for_all_scenarios_without_their_own(tmp_path: Path) -> None:
    inventory = lab_of(LAB, "lab.toml")
    own = replace(load(tmp_path, FILE), disk="optane", disks=("optane",))
    cached = replace(optane(), modes=(replace(optane().modes[0], name="x" * 39, attach=Attach()),), name="long")
    options = cast("Options", replace_options(inventory))
    found = scenarios_for(options, {"optane": optane(), "disk": own, "long": cached})
    assert [mode.name for mode in found.scenarios["optane"].modes][:3] == ["host", "passthrough-old", "passthrough-new"]
    assert [mode.name for mode in found.scenarios["disk"].modes] == ["host", "lvm-old", "lvm-new"]
    assert found.scenarios["long"] == cached
    assert any("measured without the variants of lab.toml" in note for note in found.notes)


@dataclass
class replace_options:  # noqa: N801 - stands in for the options of a command line
    inventory: object
    disks: None = None


def test_an_arm_of_the_reference_is_a_guest() -> None:
    mode = by_name(in_variants(optane(), TWO))["lvm-slow"]
    assert mode.against is not None
    assert Arm(Place.GUEST, mode.against).id == "guest:lvm-old"
