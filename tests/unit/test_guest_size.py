"""The size and place of a running guest as its host, QEMU and the guest show it, and whether a host has room for it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET

import libvirt
import libvirt_qemu
import pytest

from harness.errors import GuestError, HostError
from harness.features.proxmox.guest import parse_size
from harness.features.proxmox.guest import read_size as read_vm
from harness.guest.booting import Places, choose_vcpus, find_size_problems, parse_places, refuse_queues, refuse_size
from harness.guest.libvirt.connection import Connection
from harness.guest.libvirt.effective import GuestSize, read_size
from harness.guest.libvirt.requirements import refuse_hardware
from harness.guest.qemu_process import Engines, InspectedProcess, parse_placement, read_guest_facts, read_placement
from harness.lab.counters import VmThreads
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from harness.model.attach import Attach
from harness.model.guest import ANY_GUEST, GIB, MIB, GuestOptions
from harness.model.option import Effective
from tests.unit.guest_options import GUEST_OPTIONS
from tests.unit.loop_disks import RUNNER
from tests.unit.played_shell import PlayedShell

PLACED = """thread 700 1
thread 701 2
thread 702 3
thread 703 4-5
thread 704
process 700 0
page 2048
"""
LIVE = "<domain><numatune><memory mode='strict' nodeset='0'/></numatune></domain>"

ANSWERS: dict[str, Any] = {
    "query-cpus-fast": [
        {"cpu-index": 1, "thread-id": 702, "qom-path": "/machine/unattached/device[2]",
         "props": {"socket-id": 0, "core-id": 1, "thread-id": 0}},
        {"cpu-index": 0, "thread-id": 701, "qom-path": "/machine/unattached/device[0]",
         "props": {"socket-id": 0, "core-id": 0, "thread-id": 0}},
    ],
    "query-memory-size-summary": {"base-memory": 8 * GIB, "plugged-memory": 0},
    "qom-get": "host-x86_64-cpu",
    "query-memdev": [{"id": "pc.ram", "size": 8 * GIB, "host-nodes": [0], "policy": "bind"}],
    "query-iothreads": [
        {"id": "iothread1", "thread-id": 703, "poll-max-ns": 0, "poll-grow": 2, "poll-shrink": 4},
    ],
}  # fmt: skip


class Handle:
    def name(self) -> str:
        return "voh-run"


class Connected:
    host = "kvm1"


def read(monkeypatch: pytest.MonkeyPatch, *, live: str = LIVE, **changed: Any) -> GuestSize:
    answers = ANSWERS | {name.replace("_", "-"): value for name, value in changed.items()}

    def answer(_domain: object, text: str, _flags: int) -> str:
        return json.dumps({"return": answers[json.loads(text)["execute"]]})

    monkeypatch.setattr(libvirt_qemu, "qemuMonitorCommand", answer)
    host = PlayedShell({"Cpus_allowed_list": PLACED})
    found = read_size(cast(Connection, Connected()), Handle(), host, ET.fromstring(live))
    assert "/run/libvirt/qemu/voh-run.pid 8388608" in host.asked[0]
    return found


def test_size_and_placement_come_from_qemu_and_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch).of_disk(["iothread1"]) == Effective(
        qemu_cpu="host", qemu_vcpus=2, qemu_sockets=1, qemu_cores=2, qemu_threads=1, qemu_memory=8 * GIB,
        qemu_numa_nodes="0", qemu_numa_mode="strict", host_page_size=2 * MIB, host_vcpu_cpus=("2", "3"),
        host_emulator_cpus="1", host_iothread_cpus="4-5",
        qemu_poll_max_ns=0, qemu_poll_grow=2, qemu_poll_shrink=4,
    )  # fmt: skip


def test_a_disk_without_an_iothread_has_no_polling_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch).of_disk([])
    assert (found.qemu_poll_max_ns, found.host_iothread_cpus, found.qemu_vcpus) == (None, None, 2)


def test_the_kernel_shows_the_nodes_if_only_the_process_is_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [{"id": "pc.ram", "host-nodes": [], "policy": "default"}]
    restricted = read(monkeypatch, query_memdev=free).whole
    assert (restricted.qemu_numa_nodes, restricted.qemu_numa_mode) == ("0", "strict")
    unplaced = read(monkeypatch, live="<domain/>", query_memdev=free).whole
    assert (unplaced.qemu_numa_nodes, unplaced.qemu_numa_mode) == (None, None)


def test_vcpus_on_the_same_cpus_have_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PLACED", PLACED.replace("702 3", "702 2"))
    assert read(monkeypatch).whole.host_vcpu_cpus == ("2",)


def test_an_answer_of_another_form_is_an_error_that_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GuestError, match="host kvm1: the size of the guest as QEMU reports it"):
        read(monkeypatch, query_cpus_fast=[{"cpu-index": 0}])


def test_a_thread_that_ends_meanwhile_is_left_out() -> None:
    assert set(parse_placement(PLACED).cpus) == {700, 701, 702, 703}


def test_the_placement_of_a_process_of_this_machine_is_read(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(str(os.getpid()))
    found = read_placement(RUNNER, str(tmp_path / "pid"), MIB)
    assert found.pid == os.getpid()
    assert found.page_size in (4096, 2 * MIB)
    assert found.of([found.pid]) == found.effective([]).host_emulator_cpus
    with pytest.raises(HostError):
        read_placement(RUNNER, str(tmp_path / "none"), MIB)


@pytest.mark.parametrize(
    ("reported", "memory"),
    [(8 * GIB - 500_000, 8 * GIB), (7 * GIB, 7 * GIB), (8 * GIB + 1, 8 * GIB + 1), (5, None)],
)
def test_a_guest_that_sees_all_but_the_firmwares_memory_has_all(reported: int, memory: int | None) -> None:
    found = read_guest_facts({"cpus": "2", "memory_bytes": str(reported)}, 8 * GIB)
    assert (found.guest_cpus, found.guest_memory) == (2, memory)


def test_a_guest_that_reports_nothing_shows_nothing() -> None:
    assert read_guest_facts({}, 8 * GIB) == Effective()


@pytest.mark.parametrize(
    ("reported", "waits", "nanoseconds"),
    [
        ({"idle_driver": "none", "idle_governor": "menu"}, "halt", None),
        ({"idle_driver": ""}, "halt", None),
        ({"idle_driver": "haltpoll", "idle_governor": "haltpoll"}, "haltpoll", 200_000),
        ({"idle_driver": "haltpoll", "idle_governor": "menu"}, "haltpoll, governor menu", None),
        ({"idle_driver": "acpi_idle", "idle_governor": "menu"}, "acpi_idle, governor menu", None),
        ({"idle_driver": "none", "idle_words": "idle=poll "}, "poll", None),
        ({}, None, None),
    ],
)
def test_a_guest_shows_how_its_cpus_wait(reported: dict[str, str], waits: str | None, nanoseconds: int | None) -> None:
    found = read_guest_facts({"haltpoll_ns": "200000"} | reported, None)
    assert (found.guest_idle, found.guest_haltpoll_ns) == (waits, nanoseconds)


def test_a_guest_that_does_not_see_kvm_is_not_offered_its_clock() -> None:
    assert read_guest_facts({"clocksources": "tsc hpet acpi_pm "}, None).guest_kvm_clock is False
    assert read_guest_facts({"clocksources": "kvm-clock tsc acpi_pm "}, None).guest_kvm_clock is True
    assert read_guest_facts({"clocksources": ""}, None).guest_kvm_clock is None


# --- Proxmox VE ---

BACKEND = "memory-backend-file,id=ram-node0,size=1024M,mem-path=/run/hugepages/kvm/2048kB,share=on,prealloc=yes"
ARGUMENTS = (
    *("/usr/bin/kvm", "-smp", "4,sockets=2,cores=2,maxcpus=4", "-cpu", "host,+kvm_pv_eoi,+kvm_pv_unhalt"),
    *("-m", "1024", "-object", "iothread,id=iothread-virtio0"),
    *("-object", f"{BACKEND},host-nodes=0,2-3,policy=bind"),
    *("-numa", "node,nodeid=0,cpus=0-3,memdev=ram-node0"),
)


def test_the_size_of_a_vm_is_in_qemus_arguments() -> None:
    assert parse_size(ARGUMENTS) == Effective(
        qemu_cpu="host", qemu_vcpus=4, qemu_sockets=2, qemu_cores=2, qemu_threads=1, qemu_memory=GIB,
        qemu_numa_nodes="0,2-3", qemu_numa_mode="strict",
    )  # fmt: skip
    assert parse_size(("/usr/bin/kvm", "-daemonize")) == Effective()


def test_the_node_shows_where_a_vms_threads_are() -> None:
    roles: Any = {700: "main", 701: "vcpu", 702: "vcpu", 703: "iothread"}
    process = InspectedProcess(ARGUMENTS, Engines({}))
    node = PlayedShell({"Cpus_allowed_list": PLACED})
    found = read_vm(node, 100, process, VmThreads(700, roles, None))
    assert (found.host_vcpu_cpus, found.host_iothread_cpus, found.host_emulator_cpus) == (("2", "3"), "4-5", "1")
    assert "/var/run/qemu-server/100.pid 1048576" in node.asked[0]
    assert read_vm(PlayedShell({}), 100, process, None) == parse_size(ARGUMENTS), "the process cannot be read"


# --- room on the host ---

PLACES = Places(frozenset(range(4)), frozenset({0}), {(0, 2 * MIB): 512 * 2 * MIB})
PRINTED = "cpus 0-3\nnodes 0-1\npages 0 2048 512\npages 1 2048 0\npages 0 1048576 2\n"


def host(*, simulated: str | None = None, accel: str = "kvm", printed: str = PRINTED) -> Host:
    return Host(
        spec=HostSpec("kvm1", "local", ssh=None, disks=(), simulated=simulated),
        runner=PlayedShell({"hugepages": printed}),
        ssh=None,
        target=None,
        facts=HostFacts({"cpus": "4", "memory_bytes": str(16 * GIB)}),
        guest_files=GuestFiles("", "", Path(), ""),
        acceleration=Acceleration("kvm" if accel == "kvm" else "tcg", "as said"),
    )


def test_the_places_of_a_host_are_read_from_its_kernel() -> None:
    places = parse_places(PRINTED)
    assert (places.cpus, places.nodes) == (frozenset(range(4)), frozenset({0, 1}))
    assert places.free_in((0, 1), 2 * MIB) == GIB
    assert places.free_in((1,), 2 * MIB) == 0


REFUSED = [
    (GuestOptions(vcpus=5), "the guest needs 5 vCPUs, but the host has 4 CPUs: request fewer vCPUs"),
    (GuestOptions(memory=32 * GIB), "the guest needs 32 GiB, but the host has 16 GiB: request less memory"),
    (GuestOptions(pin_vcpus=("2-5",)), "pin_vcpus: the host has no CPU 4-5; it has 0-3: pin to these"),
    (GuestOptions(pin_iothreads="9"), "pin_iothreads: the host has no CPU 9; it has 0-3: pin to these"),
    (GuestOptions(pin_emulator="9"), "pin_emulator: the host has no CPU 9; it has 0-3: pin to these"),
    (GuestOptions(numa_nodes="0-1"), 'numa_nodes = "0-1": the host has no node 1; it has 0'),
    (
        GuestOptions(memory=2 * GIB, hugepages=2 * MIB),
        "the guest needs 1024 free pages, but the host has 512: add 512 to the number in /sys/kernel/mm/hugepages/",
    ),
    (GuestOptions(memory=GIB, hugepages=GIB), "needs 1 free pages, but the host has 0: add 1 to"),
    (GuestOptions(vcpus=2, pin_vcpus=("1", "2", "3")), "guest.pin_vcpus with 3 lists: conflicts with 2 vCPUs"),
]


@pytest.mark.parametrize(("guest", "said"), REFUSED)
def test_a_host_without_room_for_the_guest_is_named_with_the_remedy(guest: GuestOptions, said: str) -> None:
    assert said in next(find_size_problems(guest, host(), PLACES), "")


def test_a_host_with_room_refuses_nothing() -> None:
    fitting = GuestOptions(vcpus=4, memory=GIB, hugepages=2 * MIB, numa_nodes="0", pin_vcpus=("0-3",), cpu="host")
    assert list(find_size_problems(fitting, host(), PLACES)) == []
    assert refuse_size(fitting, host()) is None


def test_huge_pages_must_be_free_on_the_requested_nodes() -> None:
    guest = GuestOptions(memory=GIB, hugepages=2 * MIB, numa_nodes="1")
    assert "the guest needs 512 free pages on node 1, but the host has 0" in (refuse_size(guest, host()) or "")
    assert refuse_size(guest, host(), reserved=False) is None, "Proxmox VE reserves them itself"


def test_the_hosts_own_cpu_needs_kvm() -> None:
    said = next(find_size_problems(GuestOptions(idle="haltpoll"), host(accel="tcg"), PLACES), "")
    assert said == 'idle = "haltpoll": Linux has it only under KVM, but guests here are emulated: leave out idle'
    said = next(find_size_problems(GuestOptions(cpu="host"), host(accel="tcg"), PLACES), "")
    assert said == 'cpu = "host": QEMU has it only with KVM, but guests here are emulated: request "max"'


def test_an_emulated_guest_of_the_embedded_lab_stays_on_one_cpu() -> None:
    lab = host(simulated="in the embedded lab")
    assert 'pin all vCPUs to one, for example ["3"]' in next(
        find_size_problems(GuestOptions(pin_vcpus=("2", "3")), lab, PLACES), ""
    )
    assert list(find_size_problems(GuestOptions(vcpus=2, pin_vcpus=("2", "2")), lab, PLACES)) == []


def test_without_a_request_the_host_is_not_asked() -> None:
    silent = host(printed="nonsense")
    assert refuse_size(ANY_GUEST, silent) is None
    with pytest.raises(HostError, match="its CPUs, NUMA nodes and huge pages"):
        refuse_size(GuestOptions(vcpus=1), silent)


def test_the_number_of_vcpus_is_the_requested_one() -> None:
    facts = HostFacts({"cpus": "8"})
    assert choose_vcpus(facts, [Attach(queues=4)], GuestOptions(vcpus=2)) == 2
    assert choose_vcpus(facts, [], GUEST_OPTIONS["topology"]) == 8
    assert choose_vcpus(facts, []) == 4
    assert "but the guest has 2: request fewer queues" in (
        refuse_queues(Attach(queues=4), 8, GuestOptions(vcpus=2)) or ""
    )


# --- what libvirt says of QEMU's hardware ---

CAPABILITIES = """<domainCapabilities><cpu><mode name='custom' supported='yes'>
  <model usable='yes'>EPYC-Milan</model><model usable='no'>EPYC-Turin</model></mode></cpu></domainCapabilities>"""


class Libvirt(Connected):
    def __init__(self, error: str = "") -> None:
        self.handle = self
        self.error = error

    def getDomainCapabilities(self, *asked: object) -> str:  # noqa: N802 - libvirt's name
        self.asked = asked
        if self.error:
            raise libvirt.libvirtError(self.error)
        return CAPABILITIES


def of(fake: Libvirt, guest: GuestOptions) -> str | None:
    connection = Connection(fake, "kvm1")
    return refuse_hardware(connection, guest, "kvm")


def test_a_cpu_model_must_be_known_and_usable() -> None:
    assert of(Libvirt(), GuestOptions(cpu="EPYC-Milan")) is None
    assert "not a CPU model of the QEMU on kvm1" in (of(Libvirt(), GuestOptions(cpu="Pentium9")) or "")
    assert "the CPU of kvm1 lacks features of it" in (of(Libvirt(), GuestOptions(cpu="EPYC-Turin")) or "")


def test_a_machine_type_must_be_known() -> None:
    fake = Libvirt()
    assert of(fake, GuestOptions(machine="pc-q35-9.2")) is None
    assert fake.asked == (None, "x86_64", "pc-q35-9.2", "kvm", 0)
    said = of(Libvirt("the machine 'pc-q35-99.0' is not supported"), GuestOptions(machine="pc-q35-99.0"))
    assert "libvirt did not show what its QEMU can do" in (said or "")
    assert "virsh capabilities" in (said or "")
    assert of(Libvirt("never asked"), replace(ANY_GUEST, cpu="max")) is None
