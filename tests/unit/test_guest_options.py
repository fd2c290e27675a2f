"""The guest that a scenario or a lab file requests: which of them wins, what conflicts, and what must be read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from harness.errors import ConfigError
from harness.events import Events
from harness.features.decompose.records import compare_arms
from harness.lab.inventory import HostSpec
from harness.lab.lab_file import load_lab
from harness.measure.resume import dump_mode, normalise_mode
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.guest import ANY_GUEST, GIB, MIB, OPTION_TYPES, GuestOptions, describe_guest, find_guest_problems
from harness.model.layout import Lvm
from harness.model.mode import OPTIONS, Arm, Mode, Place
from harness.model.option import Effective
from harness.model.values import STORED, format_list, normalise_list, parse_cpus
from harness.plugin.engine import Engine
from harness.results.validity import configuration_check
from harness.scenario.load import load_scenario
from harness.scenario.plan import expand, plan_for
from harness.scenario.scenario import Scenario
from harness.scenario.setups import setups
from tests.unit.guest_options import GUEST_OPTIONS

LAB = """
[host.kvm1]
kind = "local"
[host.kvm1.disk.disk]
file = "/var/tmp/disk"
size = "2 GiB"
"""
SCENARIO = """
title = "A guest of a size of its own"
disk = "disk"
modes = ["host", "lvm", "pinned"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"
[mode.pinned]
layout = { kind = "lvm" }
attach = {}
"""


def host(tmp_path: Path, table: str, kind: str = "local") -> HostSpec:
    (tmp_path / "lab.toml").write_text(LAB.replace('"local"', f'"{kind}"') + table)
    return load_lab(tmp_path / "lab.toml").hosts[0]


def scenario(tmp_path: Path, tables: str) -> Scenario:
    (tmp_path / "sized.toml").write_text(SCENARIO + tables)
    return load_scenario(tmp_path / "sized.toml")


@pytest.mark.parametrize(
    ("text", "numbers", "kernel"),
    [("2", (2,), "2"), ("3,2", (2, 3), "2-3"), ("0-3, 8", (0, 1, 2, 3, 8), "0-3,8"), ("5,5-6", (5, 6), "5-6")],
)
def test_a_list_of_cpus_is_compared_as_the_kernel_writes_it(text: str, numbers: tuple[int, ...], kernel: str) -> None:
    assert parse_cpus(text) == numbers
    assert format_list(numbers) == normalise_list(text) == kernel


@pytest.mark.parametrize("text", ["", "x", "3-2", "1,", "-1", "99999", "1-2-3"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_cpus(text)


# --- which request wins ---


def test_without_a_request_a_guest_is_as_before(tmp_path: Path) -> None:
    assert host(tmp_path, "").guest == ANY_GUEST
    found = scenario(tmp_path, "")
    assert {mode.guest for mode in found.modes} == {ANY_GUEST}
    assert dict(ANY_GUEST.expected(iothreads=1).settings()) == {}


def test_the_mode_wins_over_the_scenario_and_the_scenario_over_the_lab_file(tmp_path: Path) -> None:
    lab = host(tmp_path, '[host.kvm1.guest]\nvcpus = 8\nmemory = "2 GiB"\ncpu = "host"\npin_emulator = "1"\n')
    found = scenario(tmp_path, '[guest]\nvcpus = 4\nmemory = "4 GiB"\n[mode.pinned.guest]\nvcpus = 2\n').on(lab.guest)
    bare, lvm, pinned = (mode.guest for mode in found.modes)
    assert bare == ANY_GUEST, "the baseline has no guest"
    assert lvm == GuestOptions(vcpus=4, memory=4 * GIB, cpu="host", pin_emulator="1")
    assert pinned == replace(lvm, vcpus=2)


def test_a_run_measures_with_the_guest_of_the_lab_file_of_its_host(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(f'{LAB}[host.kvm1.guest]\nvcpus = 8\npin_emulator = "1"\n')
    found = scenario(tmp_path, "[mode.pinned.guest]\nvcpus = 2\n")
    options: Any = SimpleNamespace(
        inventory=load_lab(tmp_path / "lab.toml"),
        profile="smoke",
        rounds=None,
        time=None,
        resume=None,
        limit=None,
        switches=frozenset(),
    )
    engine = Engine(options, {"sized": found}, Events())
    engine.select(expand(found, "smoke"))
    guests = {mode.name: mode.guest for mode in engine.scenarios["sized"].modes}
    assert guests["lvm"] == GuestOptions(vcpus=8, pin_emulator="1")
    assert guests["pinned"] == GuestOptions(vcpus=2, pin_emulator="1")
    planned = {cell.mode.name: cell.mode.guest for cell in engine.plans["sized"].cells}
    assert planned == guests


def test_vcpus_and_topology_come_from_the_same_request() -> None:
    assert GuestOptions(vcpus=2).over(GuestOptions(sockets=2, cores=4)) == GuestOptions(vcpus=2)
    assert GuestOptions(cores=4).over(GuestOptions(vcpus=2)).vcpu_count == 4


def test_a_preset_gives_way_to_options_beside_it() -> None:
    guest = GuestOptions(preset="study-1", vcpus=4).over(GuestOptions(memory=GIB, cpu="max"))
    assert (guest.vcpus, guest.memory, guest.cpu) == (4, 8 * GIB, "max")


def test_one_list_of_cpus_for_each_vcpu_gives_their_number() -> None:
    assert GuestOptions(pin_vcpus=("1", "2", "3")).vcpu_count == 3
    assert GuestOptions(pin_vcpus=("1-3",)).vcpu_count is None


def test_modes_with_different_guests_are_measured_in_different_setups(tmp_path: Path) -> None:
    same = scenario(tmp_path, "[guest]\nvcpus = 2\n")
    assert len(setups(same.modes)) == 1
    apart = scenario(tmp_path, '[mode.pinned.guest]\npin_vcpus = ["2"]\n')
    assert [[mode.name for mode in setup] for setup in setups(apart.modes)] == [["host", "lvm"], ["pinned"]]
    assert len(plan_for(apart, "smoke").setups) == 2


def test_a_step_of_a_decomposition_may_be_an_option_of_the_guest() -> None:
    one = Mode("one", Lvm(), Attach())
    two = replace(one, name="two", guest=GuestOptions(poll_max_ns=0))
    (change,) = compare_arms(Arm(Place.GUEST, one), Arm(Place.GUEST, two))
    assert (change.key, change.words) == ("guest.poll_max_ns", "poll max ns default -> 0")
    assert compare_arms(Arm(Place.TWIN, one), Arm(Place.TWIN, two)) == []


def test_a_run_stores_the_requested_guest_but_two_runs_may_differ_in_it() -> None:
    mode = Mode("lvm", Lvm(), Attach(), GuestOptions(vcpus=2, pin_vcpus=("2", "3")))
    assert normalise_mode(dump_mode(mode)) == dump_mode(mode)
    assert dump_mode(mode) != dump_mode(replace(mode, guest=ANY_GUEST))
    assert mode.detail == replace(mode, guest=ANY_GUEST).detail


# --- mistakes ---

MISTAKES = [
    ("vcpus = 0", "vcpus = 0: allowed: 1 or more"),
    ('memory = "8 GB"', "memory"),
    ('memory = "1 MiB"', 'memory = "1 MiB": allowed: whole MiB from "256 MiB"'),
    ("memory = 8", 'memory = 8: must be text in quotes; allowed: for example "8 GiB"'),
    ('machine = "vax"', 'machine = "vax": not a machine type; allowed: "q35", "pc", or one with a version'),
    ('cpu = "a b"', 'cpu = "a b": not a CPU model'),
    ('pin_vcpus = "2"', 'pin_vcpus = "2": must be a list in brackets'),
    ('pin_vcpus = ["2", "x"]', 'pin_vcpus[1] = "x": not a list of CPUs'),
    ('pin_emulator = "2-1"', "pin_emulator"),
    ('numa_mode = "strict"', 'numa_mode = "strict": conflicts with numa_nodes left out; allowed: with numa_nodes'),
    ('hugepages = "4 KiB"', 'hugepages = "4 KiB": allowed: "2 MiB", "1 GiB"'),
    ('hugepages = "1 GiB"', 'conflicts with memory = "768 MiB" (the default), which is not a multiple of it'),
    ("vcpus = 3\ncores = 2", "vcpus = 3: conflicts with sockets, cores and threads, which are 1 x 2 x 1 = 2 vCPUs"),
    ('vcpus = 3\npin_vcpus = ["1", "2"]', "pin_vcpus with 2 lists: conflicts with 3 vCPUs; allowed: one list for all"),
    ("poll_max_ns = -1", "poll_max_ns = -1: allowed: 0 or more"),
    ("haltpoll_ns = 1000", 'haltpoll_ns = 1000: conflicts with another idle; allowed: with idle = "haltpoll"'),
    ('idle = "haltpoll"\nhide_kvm = true', 'idle = "haltpoll": conflicts with hide_kvm = true'),
    ('idle = "poll"\nimage = "/images/own.qcow2"', 'idle = "poll": conflicts with image = "/images/own.qcow2"'),
    ('preset = "mine"', 'preset = "mine": allowed: study-1'),
    ("surplus = 1", "surplus = 1: no such key; allowed: preset, vcpus"),
]


@pytest.mark.parametrize(("table", "said"), MISTAKES)
def test_a_mistake_in_a_guest_is_named_in_lab_file_and_scenario(table: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        host(tmp_path, f"[host.kvm1.guest]\n{table}\n")
    assert "lab.toml: host.kvm1.guest." in error.value.message
    assert said in error.value.message
    for key, where in (("guest", "guest."), ("mode.pinned.guest", "mode.pinned.guest.")):
        with pytest.raises(ConfigError) as error:
            scenario(tmp_path, f"[{key}]\n{table}\n")
        assert f"sized.toml: {where}" in error.value.message
        assert said in error.value.message


def test_a_mode_may_not_contradict_the_scenarios_guest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mode.pinned.guest.pin_vcpus with 2 lists: conflicts with 4 vCPUs"):
        scenario(tmp_path, '[guest]\nvcpus = 4\n[mode.pinned.guest]\npin_vcpus = ["1", "2"]\n')


def test_keys_of_a_node_are_refused_for_a_host_of_libvirt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'host.kvm1.guest.bridge: cannot be used with kind = "local"; allowed: only'):
        host(tmp_path, '[host.kvm1.guest]\nbridge = "vmbr0"\n')


@pytest.mark.parametrize("options", GUEST_OPTIONS.values(), ids=GUEST_OPTIONS)
def test_every_option_that_is_tried_is_free_of_conflicts(options: GuestOptions) -> None:
    assert list(find_guest_problems(options)) == []


# --- what must be read back ---


def test_every_option_but_the_preset_is_tried_and_read_back() -> None:
    tried = {
        name
        for each in GUEST_OPTIONS.values()
        for name in OPTION_TYPES
        if getattr(each, name) != getattr(ANY_GUEST, name)
    }
    assert tried == set(OPTION_TYPES)
    assert set(OPTION_TYPES) - {"preset"} <= set(OPTIONS.values())


@pytest.mark.parametrize("name", GUEST_OPTIONS)
def test_a_guest_that_is_not_as_requested_makes_the_cell_void(name: str) -> None:
    mode = Mode("lvm", Device(), Attach(), GUEST_OPTIONS[name])
    expected = mode.expected
    check = configuration_check(mode, expected)
    assert check is not None
    assert check.ok
    own = dict(GUEST_OPTIONS[name].expected(iothreads=1).settings())
    assert own or name == "pc", "a machine type without a version is read back with one"
    for key, value in own.items():
        other = (
            not value
            if isinstance(value, bool)
            else value + 1
            if isinstance(value, int)
            else ["63"]
            if isinstance(value, list)
            else "63"
        )
        check = configuration_check(mode, expected.merged(Effective(**{key: other})))  # type: ignore[arg-type]
        assert check is not None
        assert not check.ok
        assert f"requested {key} = " in check.detail


def test_what_was_read_back_is_stored_as_it_was() -> None:
    found = GUEST_OPTIONS["pins"].expected(iothreads=1)
    adapter = TypeAdapter(Effective)
    assert adapter.validate_json(adapter.dump_json(found), context=STORED) == found


def test_an_option_that_nothing_reports_is_named() -> None:
    mode = Mode("lvm", Device(), Attach(), GuestOptions(hugepages=2 * MIB))
    check = configuration_check(mode, Attach().expected)
    assert check is not None
    assert "not read back: hugepages" in check.detail


def test_a_disk_without_an_iothread_has_no_polling() -> None:
    mode = Mode("sata", Device(), Attach("sata", iothread=False), GuestOptions(poll_max_ns=0, pin_iothreads="1"))
    assert mode.expected == Attach("sata", iothread=False).expected


def test_a_mode_may_poll_otherwise_than_the_guests_other_disks() -> None:
    mode = Mode("still", Device(), Attach(poll_max_ns=0), GuestOptions(poll_max_ns=5000, poll_grow=2))
    assert (mode.expected.qemu_poll_max_ns, mode.expected.qemu_poll_grow) == (0, 2)
    assert replace(mode, attach=Attach()).expected.qemu_poll_max_ns == 5000
    (change,) = compare_arms(Arm(Place.GUEST, replace(mode, attach=Attach())), Arm(Place.GUEST, mode))
    assert change.words == "poll max ns default -> 0"
    assert len(setups([mode, replace(mode, name="polling", attach=Attach())])) == 1


def test_the_size_that_was_read_back_is_one_line() -> None:
    found = Effective(
        machine="pc-q35-9.2", qemu_cpu="host", qemu_vcpus=2, qemu_sockets=1, qemu_cores=2, qemu_threads=1,
        qemu_memory=8 * GIB, host_page_size=2 * MIB, qemu_numa_nodes="0", qemu_numa_mode="strict",
        host_vcpu_cpus=("2", "3"), host_iothread_cpus="4-5", host_emulator_cpus="1", qemu_poll_max_ns=0,
    )  # fmt: skip
    assert describe_guest(found) == (
        "2 vCPUs (1 x 2 x 1 sockets, cores, threads) on host CPUs 2 / 3, 8 GiB, in pages of 2 MiB, on NUMA nodes 0 "
        "(strict), pc-q35-9.2, CPU model host, iothreads on host CPUs 4-5, QEMU's other threads on host CPUs 1, "
        "no polling"
    )
    assert describe_guest(Effective(guest_idle="halt")) == "idle: halt"
    polling = Effective(guest_idle="haltpoll", guest_haltpoll_ns=200_000)
    assert describe_guest(polling) == "idle: haltpoll for up to 200000 ns"
    assert describe_guest(Effective()) == ""
