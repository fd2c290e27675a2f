"""The findings about a host: which values are fine, which are not, and what to do."""

from __future__ import annotations

import json
import os
import platform
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.features.doctor.devices import examine, find_proof
from harness.features.doctor.machine import (
    NOT_AVAILABLE,
    DiskState,
    HostFinding,
    HostState,
    Level,
    as_records,
    has_problem,
    look,
)
from harness.features.doctor.settings import SettingsRecord, Tunable
from harness.lab.facts import Acceleration, HostFacts, read_facts
from harness.lab.hosts import GuestFiles, _probe_acceleration
from harness.lab.inventory import DiskById
from harness.lab.transport.local import LocalRunner
from tests.unit.sysfs_tree import DISK, FACTS, KSM, POLICY, QUEUE, Tree

RUNNER = LocalRunner("host here")
CPU = "sys/devices/system/cpu"
THP = "sys/kernel/mm/transparent_hugepage"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
PROVEN = Acceleration("kvm", "the guest image booted under KVM in 4 s")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


def read_state(tree: Tree, *disks: DiskById) -> HostState:
    return look(RUNNER, FACTS, disks or [DISK], root=str(tree.root), window=0)


def finding_of(state: HostState, check: str, proof: Acceleration | None = PROVEN) -> HostFinding:
    (finding,) = [finding for finding in examine(state, proof) if finding.check == check]
    return finding


# On a real host, counters change while they are watched. The counters of a tree do not.
def watched(
    state: HostState, *, busy: int = 0, idle: int = 200, steal: int = 0, requests: int = 0, swapped: int = 0
) -> HostState:
    before = {
        "/proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0",
        "/sys/block/nvme0n1/stat": "0 0 0 0 0 0 0 0 0 0 0",
        "/proc/vmstat": "pswpin 5\npswpout 5",
    }
    after = {
        "/proc/stat": f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0",
        "/sys/block/nvme0n1/stat": f"{requests} 0 0 0 0 0 0 0 0 0 0",
        "/proc/vmstat": f"pswpin {5 + swapped}\npswpout 5",
    }
    return replace(state, before=before, after=after, seconds=1.0)


def test_a_host_without_faults_has_only_ok_findings(tree: Tree) -> None:
    assert [finding for finding in examine(watched(read_state(tree)), PROVEN) if finding.level is not Level.OK] == []


def test_every_finding_gives_a_reason_and_every_advice_or_problem_a_remedy(tree: Tree) -> None:
    tree.slow()
    for finding in examine(watched(read_state(tree), busy=200, steal=50, requests=99)):
        assert len(finding.why.split()) > 5
        assert "\n" not in finding.why + finding.advice + finding.value
        assert (finding.level in (Level.ADVICE, Level.PROBLEM)) == bool(finding.advice)


def test_values_that_a_machine_without_sysfs_lacks_are_not_available_and_no_problem(tmp_path: Path) -> None:
    state = look(RUNNER, FACTS, [], root=str(tmp_path), window=0)
    findings = {finding.check: finding for finding in examine(state, None)}
    for check in (
        "CPU frequency governor",
        "turbo",
        "SMT",
        "mitigations",
        "clock source",
        "swap",
        "NUMA",
        "free memory",
    ):
        assert findings[check].value == NOT_AVAILABLE
        assert findings[check].level is Level.UNKNOWN
    assert [finding.check for finding in findings.values() if finding.level is Level.PROBLEM] == ["KVM"]


@pytest.mark.parametrize(
    ("path", "text", "check", "shown"),
    [
        (f"{POLICY}0/scaling_governor", "powersave", "CPU frequency governor", ("performance, powersave", "advice")),
        (f"{CPU}/cpufreq/boost", "0", "turbo", ("off", "ok")),
        (f"{CPU}/intel_pstate/no_turbo", "0", "turbo", ("on", "ok")),
        (f"{CPU}/cpu0/cpuidle/state1/latency", "20", "CPU idle states", ("deepest is C1, 20 us to wake up", "ok")),
        (
            f"{CPU}/cpu0/cpuidle/state1/latency",
            "133",
            "CPU idle states",
            ("deepest is C1, 133 us to wake up", "advice"),
        ),
        (f"{CPU}/cpuidle/current_governor", "haltpoll", "CPU idle governor", ("haltpoll, driver intel_idle", "ok")),
        (f"{CPU}/cpuidle/current_driver", "none", "CPU idle governor", ("no driver: its CPUs halt at once", "ok")),
        ("proc/cmdline", "quiet idle=poll", "CPU idle governor", ("idle=poll: its CPUs never halt", "ok")),
        (f"{CPU}/smt/active", "0", "SMT", ("not active (on)", "ok")),
        (CLOCK, "kvm-clock", "clock source", ("kvm-clock", "ok")),
        (CLOCK, "hpet", "clock source", ("hpet", "advice")),
        (KSM, "1", "kernel samepage merging", ("on", "advice")),
        (KSM, "2", "kernel samepage merging", ("off", "ok")),
        (f"{THP}/enabled", "[always] never", "transparent huge pages", ("always, defrag madvise", "ok")),
        (f"{THP}/enabled", "always [never]", "transparent huge pages", ("never, defrag madvise", "advice")),
        (f"{THP}/defrag", "[always] never", "transparent huge pages", ("madvise, defrag always", "advice")),
        ("sys/module/pcie_aspm/parameters/policy", "default [powersave]", "PCIe link power", ("powersave", "advice")),
        ("sys/module/kvm_amd/parameters/nested", "0", "nested KVM", ("off", "ok")),
        ("sys/module/kvm/parameters/halt_poll_ns", "0", "KVM halt polling", ("up to 0 ns", "ok")),
        (f"{QUEUE}/scheduler", "none [mq-deadline]", "optane: I/O scheduler", ("mq-deadline (nvme0n1)", "advice")),
        (f"{QUEUE}/scheduler", "[mq-deadline]", "optane: I/O scheduler", ("mq-deadline (nvme0n1)", "ok")),
        (f"{QUEUE}/iostats", "0", "optane: I/O accounting", ("off (nvme0n1)", "problem")),
        (f"{QUEUE}/write_cache", "write back", "optane: write cache", ("write back (nvme0n1)", "ok")),
    ],
)
def test_a_value_is_shown_and_judged(tree: Tree, path: str, text: str, check: str, shown: tuple[str, str]) -> None:
    tree.write(path, text)
    finding = finding_of(read_state(tree), check)
    assert (finding.value, finding.level) == shown


@pytest.mark.parametrize(
    ("path", "text", "check", "command"),
    [
        (f"{POLICY}0/scaling_governor", "powersave", "CPU frequency governor", f"tee /{POLICY}*/scaling_governor"),
        (f"{CPU}/cpu0/cpuidle/state1/latency", "133", "CPU idle states", "cpupower idle-set -D 20"),
        (KSM, "1", "kernel samepage merging", f"echo 0 > /{KSM}"),
        (f"{THP}/enabled", "always [never]", "transparent huge pages", f"echo madvise > /{THP}/enabled"),
        (f"{QUEUE}/scheduler", "none [bfq]", "optane: I/O scheduler", f"echo none > /{QUEUE}/scheduler"),
        (f"{QUEUE}/iostats", "0", "optane: I/O accounting", f"echo 1 > /{QUEUE}/iostats"),
    ],
)
def test_advice_is_a_command_for_the_host(tree: Tree, path: str, text: str, check: str, command: str) -> None:
    tree.write(path, text)
    assert command in finding_of(read_state(tree), check).advice


def test_the_lease_names_the_run_that_measures(tree: Tree) -> None:
    with tree.leased("run7"):
        finding = finding_of(read_state(tree), "lease")
    assert finding.value.startswith("held by run7 of ")
    assert (finding.level, finding.advice) == (
        Level.ADVICE,
        "wait until that run has ended, or end it on the machine that started it",
    )


def test_the_lease_of_a_killed_run_is_not_mentioned(tree: Tree) -> None:
    tree.write("run/virt-overhead/lease", "run7 node9 12")
    assert not [finding for finding in examine(read_state(tree), PROVEN) if finding.check == "lease"]


def test_mitigations_are_shown_in_full_and_never_advised_against(tree: Tree) -> None:
    tree.write("proc/cmdline", "quiet mitigations=off")
    finding = finding_of(read_state(tree), "mitigations")
    assert finding.value == "mitigations=off; spectre_v2: Mitigation: Retpolines; STIBP: disabled"
    assert (finding.level, finding.advice) == (Level.OK, "")


def test_the_queue_of_a_disk_is_shown_in_one_line(tree: Tree) -> None:
    value = finding_of(read_state(tree), "optane: queue").value
    assert value == "not rotational, nr_requests 1023, nomerges 0, rq_affinity 1 (nvme0n1)"


def test_limits_of_dirty_pages_are_shown_as_configured(tree: Tree) -> None:
    tree.write("proc/sys/vm/dirty_bytes", "1073741824")
    value = finding_of(read_state(tree), "dirty page limits").value
    assert value == "written back from 10 % of the available memory, writers blocked from 1 GiB"


def test_a_governor_that_the_driver_does_not_offer_is_not_set(tree: Tree) -> None:
    for number in (0, 1):
        tree.write(f"{POLICY}{number}/scaling_governor", "schedutil")
        tree.write(f"{POLICY}{number}/scaling_available_governors", "schedutil")
    finding = finding_of(read_state(tree), "CPU frequency governor")
    assert (finding.value, finding.level, finding.settings) == ("schedutil", Level.ADVICE, ())
    assert "firmware" in finding.advice


def test_the_time_for_which_haltpoll_polls_is_shown(tree: Tree) -> None:
    tree.write(f"{CPU}/cpuidle/current_driver", "haltpoll")
    tree.write(f"{CPU}/cpuidle/current_governor", "haltpoll")
    tree.write("sys/module/haltpoll/parameters/guest_halt_poll_ns", "0")
    finding = finding_of(read_state(tree), "CPU idle governor")
    assert finding.value == "haltpoll, driver haltpoll, which polls for up to 0 ns"


def test_a_virtual_machine_whose_cpus_halt_could_poll(tree: Tree) -> None:
    tree.write(f"{CPU}/cpuidle/current_driver", "none")
    state = read_state(tree)
    inside = replace(state, facts=HostFacts({**FACTS.values, "hypervisor": "kvm"}))
    assert finding_of(inside, "CPU idle governor").value.endswith("an exit; cpuidle_haltpoll would poll first")


def test_a_disabled_idle_state_does_not_count(tree: Tree) -> None:
    tree.write("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "800")
    tree.write("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1")
    assert finding_of(read_state(tree), "CPU idle states").value == "deepest is POLL, 0 us to wake up"


def test_the_scheduler_of_a_rotating_disk_is_shown_but_not_changed(tree: Tree) -> None:
    tree.write(f"{QUEUE}/rotational", "1")
    tree.write(f"{QUEUE}/scheduler", "none [bfq]")
    finding = finding_of(read_state(tree), "optane: I/O scheduler")
    assert (finding.value, finding.level, finding.settings) == ("bfq (nvme0n1)", Level.OK, ())


def test_tuning_writes_only_safe_settings(tree: Tree) -> None:
    tree.slow()
    settings = {
        setting.path.removeprefix(f"{tree.root}/"): setting.value
        for finding in examine(read_state(tree), PROVEN)
        for setting in finding.settings
    }
    assert settings == {
        f"{POLICY}0/scaling_governor": "performance",
        f"{POLICY}1/scaling_governor": "performance",
        f"{QUEUE}/scheduler": "none",
        f"{QUEUE}/iostats": "1",
        KSM: "0",
    }


def test_a_schedulers_setting_lists_what_the_kernel_resets_with_it(tree: Tree) -> None:
    tree.write(f"{QUEUE}/scheduler", "none [mq-deadline]")
    tree.write(f"{QUEUE}/iosched/read_expire", "250")
    (setting,) = finding_of(read_state(tree), "optane: I/O scheduler").settings
    queue = f"{tree.root}/{QUEUE}"
    assert setting == Tunable(f"{queue}/scheduler", "none", (f"{queue}/nr_requests", f"{queue}/iosched/read_expire"))


def test_the_disk_that_holds_a_file_gets_advice_but_is_not_tuned(tree: Tree) -> None:
    tree.slow()
    state = read_state(tree)
    shared = replace(state, disks=(replace(state.disks[0], owned=False),))
    scheduler = finding_of(shared, "optane: I/O scheduler")
    assert (scheduler.value, scheduler.level) == ("mq-deadline (nvme0n1, which holds its file)", Level.ADVICE)
    assert scheduler.settings == finding_of(shared, "optane: I/O accounting").settings == ()


def test_a_disk_that_no_run_may_overwrite_is_named_before_a_run_refuses_it(tree: Tree) -> None:
    """The rest of the host may be fit, and `init` writes disks without the permission."""
    kept = DiskById("hdd", "/dev/disk/by-id/ata-gone", "S1", destroy=False)
    finding = finding_of(read_state(tree, kept), "hdd: permission")
    assert finding.level is Level.ADVICE
    assert "destroy = true" in finding.value


def test_a_missing_disk_is_a_problem(tree: Tree) -> None:
    finding = finding_of(
        read_state(tree, DiskById("hdd", "/dev/disk/by-id/ata-gone", "S1", destroy=True)), "hdd: device"
    )
    assert finding.level is Level.PROBLEM
    assert "/dev/disk/by-id/ata-gone (serial S1)" in finding.value


@pytest.mark.parametrize(("requests", "level"), [(0, "ok"), (10, "ok"), (11, "problem")])
def test_requests_of_other_programs_on_the_disk_are_a_problem(tree: Tree, requests: int, level: str) -> None:
    finding = finding_of(watched(read_state(tree), requests=requests), "optane: other I/O")
    assert (finding.value, finding.level) == (f"{requests} requests within 1 s (nvme0n1)", level)


@pytest.mark.parametrize(("policy", "level"), [("med_power_with_dipm", "advice"), ("max_performance", "ok")])
def test_a_sata_link_that_sleeps_gets_advice(tree: Tree, policy: str, level: str) -> None:
    state = read_state(tree)
    finding = finding_of(replace(state, disks=(replace(state.disks[0], link_power=policy),)), "optane: SATA link power")
    assert (finding.value, finding.level) == (f"{policy} (nvme0n1)", level)


@pytest.mark.parametrize(
    ("busy", "minute", "level"),
    [(10, "0.1", "ok"), (30, "0.1", "advice"), (100, "0.1", "problem"), (0, "2.5", "advice")],
)
def test_other_load_is_judged_by_the_share_of_all_cpus_and_by_the_last_minute(
    tree: Tree, busy: int, minute: str, level: str
) -> None:
    tree.write("proc/loadavg", f"{minute} 0.1 0.1 1/99 5")
    finding = finding_of(watched(read_state(tree), busy=busy, idle=200 - busy), "other load")
    assert finding.level == level
    assert finding.value == f"{busy // 2} % of 2 CPUs busy, load {minute}"


def test_a_process_that_uses_the_cpus_is_named(tree: Tree) -> None:
    def stat(pid: int, command: str, used: int) -> str:
        return f"{pid} ({command}) S 1 1 0 0 -1 0 0 0 0 0 {used} 0 0 0 20 0 1 0 4711 0 0"

    state = watched(read_state(tree), busy=100, idle=100)
    before = {**state.before, "/proc/7/stat": stat(7, "zstd", 10), "/proc/8/stat": stat(8, "idler", 10)}
    after = {**state.after, "/proc/7/stat": stat(7, "zstd", 105), "/proc/8/stat": stat(8, "idler", 10)}
    finding = finding_of(replace(state, before=before, after=after), "other load")
    assert finding.value == "50 % of 2 CPUs busy, load 0.02: zstd (pid 7) 95 % of one"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("/usr/bin/kvm", "-id", "100", "-name", "web,debug-threads=on"), "web"),
        (("/usr/bin/qemu-system-x86_64", "-name", "guest=db,debug-threads=on"), "db"),
        (("/x/ld-linux-x86-64.so.2", "/x/qemu-system-x86_64", "-name", "lab"), "lab"),
        (("/usr/libexec/qemu-kvm",), "unnamed"),
        (("vi", "/root/qemu-kvm"), None),
    ],
)
def test_running_guests_are_named(tree: Tree, argv: tuple[str, ...], name: str | None) -> None:
    finding = finding_of(replace(read_state(tree), guests={7: argv}), "running guests")
    assert (finding.value, finding.level) == ((name, "advice") if name else ("none", "ok"))


def test_irqbalance_is_found_among_the_processes(tree: Tree) -> None:
    tree.write("proc/9/stat", "9 (irqbalance) S 1 1 0 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 4711 0 0")
    finding = finding_of(read_state(tree), "irqbalance")
    assert (finding.value, finding.level) == ("running", Level.ADVICE)


@pytest.mark.parametrize(
    ("access", "proof", "level", "value"),
    [
        ("open", PROVEN, "ok", "the guest image booted under KVM in 4 s"),
        ("open", None, "advice", "/dev/kvm opens, but no guest has proved it yet"),
        ("open", Acceleration("tcg", "no guest booted"), "problem", "no guest booted"),
        ("closed", None, "problem", "this user may not open /dev/kvm"),
        ("", PROVEN, "problem", "there is no /dev/kvm"),
    ],
)
def test_kvm_is_proved_by_a_boot_and_not_by_its_device(
    tree: Tree, access: str, proof: Acceleration | None, level: str, value: str
) -> None:
    state = read_state(tree)
    finding = finding_of(replace(state, files={**state.files, "/dev/kvm": access}), "KVM", proof)
    assert (finding.level, finding.value) == (level, value)


def test_a_stored_boot_counts_only_for_the_same_host_kernel_cpu_and_qemu(tmp_path: Path) -> None:
    probes = tmp_path / "kvm-probes.json"
    assert find_proof(FACTS, probes) is None
    answer = {"accel": "kvm", "why": "booted"}
    probes.write_text(json.dumps({"node1, 6.12.1, EPYC, QEMU emulator version 10.0.2, guest abc": answer}))
    assert find_proof(FACTS, probes) == Acceleration("kvm", "booted")
    assert find_proof(HostFacts({**FACTS.values, "kernel": "6.13"}), probes) is None
    probes.write_text("{")
    assert find_proof(FACTS, probes) is None


def test_the_doctor_finds_the_result_that_a_run_stored_of_its_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images: Any = SimpleNamespace(guest=SimpleNamespace(digest="abc"))
    no_guest = GuestFiles("/absent", "/absent", Path("/absent"), "")
    assert find_proof(FACTS) is None
    assert find_proof(FACTS) != _probe_acceleration(RUNNER, FACTS, no_guest, images) == find_proof(FACTS)


def test_a_virtual_machine_is_named_with_its_stolen_cpu_time(tree: Tree) -> None:
    state = replace(read_state(tree), facts=HostFacts({**FACTS.values, "hypervisor": "vmware"}))
    assert finding_of(state, "the host itself").value == "a virtual machine (vmware)"
    for steal, level in ((0, "ok"), (10, "advice"), (50, "problem")):
        finding = finding_of(watched(state, steal=steal, idle=200 - steal), "stolen CPU time")
        assert (finding.value, finding.level) == (f"{steal // 2} % within 1 s", level)


@pytest.mark.parametrize("name", ["fio", "qemu", "libvirt"])
def test_a_missing_program_is_a_problem(tree: Tree, name: str) -> None:
    findings = examine(replace(read_state(tree), facts=HostFacts({**FACTS.values, name: ""})), PROVEN)
    (finding,) = [finding for finding in findings if finding.value == "not installed"]
    assert finding.check.lower() == name
    assert finding.advice.startswith("apt-get install ")
    assert has_problem(findings)


@pytest.mark.parametrize(("free_kb", "level"), [(30 << 20, "ok"), (2 << 20, "advice"), (900_000, "problem")])
def test_memory_must_suffice_for_a_guest(tree: Tree, free_kb: int, level: str) -> None:
    tree.write("proc/meminfo", f"MemTotal:  33554432 kB\nMemAvailable:  {free_kb} kB")
    assert finding_of(read_state(tree), "free memory").level == level


def test_swap_is_fine_if_empty_and_a_problem_while_pages_move(tree: Tree) -> None:
    header = "Filename\tType\tSize\tUsed\tPriority\n"
    tree.write("proc/swaps", f"{header}/dev/sda2 partition 8388604 0 -2")
    assert finding_of(watched(read_state(tree)), "swap").level is Level.OK
    tree.write("proc/swaps", f"{header}/dev/sda2 partition 8388604 2048 -2")
    used = finding_of(watched(read_state(tree)), "swap")
    assert (used.value, used.level) == ("2 MiB used on /dev/sda2", Level.ADVICE)
    at_work = finding_of(watched(read_state(tree), swapped=7), "swap")
    assert at_work.level is Level.PROBLEM
    assert at_work.value.endswith("7 pages were moved within 1 s")


def test_with_several_numa_nodes_the_disks_node_is_named(tree: Tree) -> None:
    tree.write("sys/devices/system/node/node1/cpulist", "16-31")
    tree.write("proc/sys/kernel/numa_balancing", "1")
    state = read_state(tree)
    there: tuple[DiskState, ...] = (replace(state.disks[0], numa_node=1),)
    finding = finding_of(replace(state, disks=there), "NUMA")
    assert (finding.value, finding.level) == ("2 nodes; optane at node 1 (CPUs 16-31)", Level.ADVICE)
    assert finding.advice.startswith("numactl --cpunodebind=1 --membind=1")
    assert finding_of(state, "NUMA").value == "2 nodes; optane at an unknown node"
    assert finding_of(state, "NUMA balancing").advice == "sysctl kernel.numa_balancing=0"


def test_reserved_huge_pages_are_shown(tree: Tree) -> None:
    tree.write("proc/meminfo", "MemTotal: 33554432 kB\nHugePages_Total:     512\nHugePages_Free:      500")
    assert finding_of(read_state(tree), "reserved huge pages").value == "500 of 512 free"


def test_settings_that_are_still_changed_are_shown_with_the_command_that_restores_them(tree: Tree) -> None:
    mine = SettingsRecord.of_this_process((Tunable("/sys/x", "1"),))
    tree.write("run/virt-overhead/tuned", mine.text())
    held = finding_of(read_state(tree), "tuned settings")
    assert (held.value, held.level) == (f"1 files, held by process {os.getpid()} of {socket.gethostname()}", Level.OK)
    tree.write("run/virt-overhead/tuned", replace(mine, started="1").text())
    left = finding_of(read_state(tree), "tuned settings")
    assert left.value.endswith(", which has ended")
    assert (left.level, left.advice) == (Level.ADVICE, "virt-overhead doctor --restore")


def test_findings_are_stored_as_plain_json(tree: Tree) -> None:
    records = as_records(examine(read_state(tree), PROVEN))
    assert json.loads(json.dumps(records)) == records
    assert {"check": "clock source", "value": "tsc", "level": "ok", "advice": ""} in records


def test_this_machine_is_examined_without_a_gap() -> None:
    state = look(RUNNER, read_facts(RUNNER), [], window=0.1)
    findings = {finding.check: finding for finding in examine(state, None)}
    assert findings["kernel"].value == platform.release()
    assert findings["free memory"].value.endswith("available")
    assert findings["KVM"].level in (Level.ADVICE, Level.PROBLEM)


BLOCK_EVENT = "sys/kernel/tracing/events/block/block_rq_issue/id"


@pytest.mark.parametrize(
    ("removed", "mounts", "filesystems", "level", "advice"),
    [
        ((), "tracefs /sys/kernel/tracing tracefs rw 0 0", "nodev\ttracefs", Level.OK, ""),
        ((BLOCK_EVENT,), "tracefs /sys/kernel/tracing tracefs rw 0 0", "nodev\ttracefs", Level.UNKNOWN, "as root"),
        ((BLOCK_EVENT,), "sysfs /sys sysfs rw 0 0", "nodev\ttracefs", Level.OK, ""),
        ((BLOCK_EVENT,), "sysfs /sys sysfs rw 0 0", "nodev\tsysfs", Level.ADVICE, "CONFIG_EVENT_TRACING=y"),
    ],
)
def test_what_a_breakdown_lacks_comes_with_the_remedy(
    tree: Tree, *, removed: tuple[str, ...], mounts: str, filesystems: str, level: Level, advice: str
) -> None:
    for path in removed:
        tree.remove(path)
    tree.write("proc/mounts", mounts)
    tree.write("proc/filesystems", filesystems)
    processes = finding_of(read_state(tree), "trace events")
    assert processes.level is level
    assert advice in processes.advice
