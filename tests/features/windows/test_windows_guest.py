"""A Windows VM that is borrowed: its login, facts, disks and fio, from recorded sessions over real SSH."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import libvirt_qemu
import pytest

from harness.errors import GuestError, HostError
from harness.events import Events, Note
from harness.features.borrow.hypervisor import open_disks, require_same
from harness.features.windows.guest import MOST_CHARACTERS, PowerShell, Windows, WindowsFacts, find_notes
from harness.guest.booting import detect_system
from harness.guest.protocol import GuestDisk, block_devices
from harness.lab.transport.ssh import SshRunner, is_windows
from harness.measure.fio import Target, TimedSection, job_file, parse
from harness.measure.host_measurer import _find_notes, _find_unable
from harness.measure.platform import LINUX, Clocks, Start, choose_platform, remove_waits
from harness.measure.session import Guests
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.mode import Cell
from harness.model.option import Effective
from harness.model.workloads import NAMED
from harness.results.validity import configuration_check
from harness.scenario.setups import Group
from tests.features.borrow.test_borrowing import BLK, Borrowed
from tests.features.borrow.test_proxmox_borrowed import RUN, WHOLE, Borrowing, borrowing
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.windows.windows_server import DATA, Recording, WindowsServer, now, windows_server
from tests.unit.pluggable_domain import DEFINITION
from tests.unit.test_measure_blocks import ARMS, LocalGuest, programs_in, session, undisturbed, with_the_stand_in

VM = "the borrowed VM shop"
FIO = choose_platform(system="windows")
MIB = 1024**2
READ = Job("randread", 4096, iodepth=4, ramp=0, seconds=0.25)
WAL = Job("write", 4096, iodepth=1, ramp=0, seconds=0.3, label="wal", syncs=True)
HOST, _, GUEST = ARMS
CONNECT = SshRunner.connect
__all__ = ["borrowing", "client", "node", "serving", "shell"]
Serve = Callable[..., WindowsServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a Windows from a recording."""
    with ExitStack() as stack:

        def started(recording: Recording | str = "server-2022", **options: object) -> WindowsServer:
            found = Recording.named(recording) if isinstance(recording, str) else recording
            return stack.enter_context(windows_server(tmp_path, found, **options))

        yield started


@pytest.fixture
def login(serve: Serve) -> Iterator[Callable[..., SshRunner]]:
    with ExitStack() as stack:
        yield lambda recording="server-2022": stack.enter_context(serve(recording).login())


@pytest.mark.parametrize(
    ("banner", "found"),
    [
        ("SSH-2.0-OpenSSH_for_Windows_9.5", True),
        ("SSH-2.0-OpenSSH_for_Windows_10.0 Win32-OpenSSH-GitHub", True),
        ("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3", False),
        ("SSH-2.0-dropbear_2022.83", False),
    ],
)
def test_the_ssh_server_shows_whether_it_is_windows(banner: str, found: bool) -> None:
    assert is_windows(banner) is found


def test_no_shell_changes_anything_in_a_command_line() -> None:
    script = 'param($given, $name)\n"$given\'s `"%PATH%" | & $name <x> ^'
    line = PowerShell().command(("powershell", script, 'a "b" & %c%'), has_input=False)
    assert re.fullmatch(r"[A-Za-z0-9 +/=-]+", line)
    assert len(line) < MOST_CHARACTERS
    # What has quotes is on standard input, where nothing has to be quoted, in lines that no code page changes.
    assert re.fullmatch(rb"(?:[A-Za-z0-9+/]*=*\n){3}", PowerShell().stdin(("powershell", script, "Größe"), b"in"))


def test_a_script_that_cmd_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cmd\.exe takes 8191"):
        PowerShell().held(("powershell", "#" * 4000))


def test_the_facts_of_windows_are_evidence(login: Callable[..., SshRunner]) -> None:
    runner = login()
    assert runner.windows
    found = detect_system(runner).evidence()
    assert found["fio"] == "fio-3.39"
    assert found["system"] == "Microsoft Windows Server 2022 Standard"
    assert found["kernel"] == "Windows 10.0.20348"
    assert found["drivers"] == "vioscsi 100.95.104.26200, viostor 100.95.104.26200"
    assert (found["cpus"], found["memory_bytes"]) == ("2", "2146869248")


def test_what_disturbs_a_measurement_is_noted_with_the_remedy() -> None:
    found = list(find_notes(facts().evidence))
    assert found[0].endswith("(Balanced)): powercfg /setactive 8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c")
    assert found[1].startswith("Microsoft Defender scans in real time")
    assert len(found) == 2
    quiet = {
        "power_plan": "GUID des Energieschemas: 8C5E7FDA-e8bf-4a96-9a85-a6e23a8c635c  (Höchstleistung)",
        "antivirus": "Microsoft Defender, real-time protection off",
        "clocksource": "QueryPerformanceCounter, 10000000 Hz",
    }
    assert list(find_notes(quiet)) == []
    (clock,) = find_notes(quiet | {"clocksource": "QueryPerformanceCounter, 3579545 Hz"})
    assert "3579545 Hz): give the VM <timer name='hypervclock'" in clock


def facts(*changes: tuple[str, str]) -> WindowsFacts:
    """What the recorded Windows has, with other texts."""
    recording = Recording.named("server-2022")
    for old, new in changes:
        recording = recording.changed("LOOK", old, new)
    return WindowsFacts.model_validate_json(recording.answer("LOOK")["stdout"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('"Administrator":  true', '"Administrator":  false'), "log in as a member of the group Administrators"),
        (("fio-3.39", ""), "fio.exe is not installed: install fio's package for Windows, and then restart the service"),
        (("fio-3.39", "fio-3.18"), "fio-3.18 cannot open disks on Windows"),
    ],
    ids=["administrator", "fio", "broken fio"],
)
def test_what_windows_lacks_is_the_reason_with_the_remedy(change: tuple[str, str], why: str) -> None:
    assert facts().unsupported_by_guest_os(VM, Attach()) is None
    found = facts(change).unsupported_by_guest_os(VM, Attach()) or ""
    assert found.startswith(f"in {VM}, ")
    assert why in found


def test_a_driver_that_windows_does_not_have_is_named() -> None:
    inside = facts(('"vioscsi"', '"viofs"'), ("DEV_1048", "DEV_1049"))
    assert "no driver vioscsi: install it from the ISO image virtio-win" in (
        inside.unsupported_by_guest_os(VM, Attach()) or ""
    )
    assert inside.unsupported_by_guest_os(VM, BLK) is None


@pytest.mark.parametrize(
    ("recording", "error", "why"),
    [
        (Recording.named("old-powershell"), HostError, "PowerShell 4.0 is too old: install Windows Management"),
        (Recording.named("server-2022").changed("LOOK", "{", ""), GuestError, "what it has"),
        (Recording.named("server-2022").changed("LOOK", "10000000", "0"), GuestError, "Ticks"),
    ],
    ids=["old", "no JSON", "impossible"],
)
def test_a_windows_that_cannot_be_read_is_an_error_that_names_it(
    login: Callable[..., SshRunner], recording: Recording, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=re.escape(why)) as caught:
        detect_system(login(recording)).look_inside()
    assert "VM win" in str(caught.value)


def test_the_disks_are_found_by_their_serial_numbers(login: Callable[..., SshRunner]) -> None:
    runner = login()
    system = detect_system(runner)
    # The disk of Windows itself has none.
    assert list(system.disks()) == ["shop-data"]
    found = block_devices(system, ["raw"], "here")["raw"]
    assert found.path == r"\\.\PhysicalDrive2"
    assert found.effective == Effective(
        guest_write_cache="write back",
        guest_logical_block_size=512,
        guest_physical_block_size=512,
        guest_read_only=True,
        guest_windows_driver="viostor",
    )


def test_two_disks_with_the_same_serial_number_are_not_told_apart(login: Callable[..., SshRunner]) -> None:
    twice = Recording.named("server-2022").changed("DISKS", '"SerialNumber":  ""', '"SerialNumber":  "shop-data"')
    with pytest.raises(GuestError, match="no disk with serial shop-data"):
        block_devices(detect_system(login(twice)), ["shop-data"], "here")


def test_a_disk_that_is_no_longer_at_its_number_is_an_error(login: Callable[..., SshRunner]) -> None:
    system = detect_system(login())
    require_same(system, "raw", "raw", r"\\.\PhysicalDrive2")
    with pytest.raises(GuestError, match=r"raw was .*PhysicalDrive1 there, and is now .*PhysicalDrive2"):
        require_same(system, "raw", "raw", r"\\.\PhysicalDrive1")
    with pytest.raises(GuestError, match="is now not there"):
        require_same(system, "lvm", "lvm", r"\\.\PhysicalDrive3")


def test_a_disk_that_cannot_be_taken_is_an_error_and_nothing_runs(serve: Serve) -> None:
    refused = {"status": 1, "stderr": "disk 0 with the serial number raw has Windows on it (line 6)"}
    recording = Recording.named("server-2022")
    recording.answers["TAKE"] = [{"script": "TAKE", **refused}]
    recording.answers["DISKS"].pop(0)
    server = serve(recording)
    with (
        server.login() as runner,
        pytest.raises(HostError, match="has Windows on it"),
        open_disks("here", VM, detect_system(runner), {"raw": BLK}, Events()),
    ):
        pytest.fail("it was taken")
    assert server.asked[-1] == ("TAKE", "raw", "True")


def test_what_cannot_be_set_back_is_noted(serve: Serve) -> None:
    recording = Recording.named("server-2022").changed("TAKE", '"IsOffline":  true', '"IsOffline":  false')
    recording.answers["GIVE_BACK"] = [{"script": "GIVE_BACK", "status": 1, "stderr": "Access denied"}]
    recording.answers["DISKS"].pop(0)
    notes = list[object]()
    with (
        serve(recording).login() as runner,
        open_disks("here", VM, detect_system(runner), {"raw": BLK}, Events(notes.append)),
    ):
        assert notes == []
    (note,) = notes
    assert isinstance(note, Note)
    assert "Windows may keep the next disk in the place of raw offline" in note.text


def test_a_windows_vm_is_borrowed_and_its_disk_is_as_before(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(libvirt_qemu, "qemuMonitorCommand", lambda *_: '{"return": {"enabled": true, "present": true}}')
    borrowed = Borrowed(monkeypatch, tmp_path, "", DEFINITION)
    monkeypatch.setattr(SshRunner, "connect", CONNECT)
    server = serve()
    borrowed.hypervisor._borrowed = server.vm
    assert borrowed.why() is None
    with borrowed.hypervisor.guest(borrowed.log, [borrowed.disk]) as guest:
        assert guest.windows
        assert guest.device("raw") == r"\\.\PhysicalDrive2"
        assert guest.evidence["hypervisor"] == "KVM"
        with guest.holding("raw"):
            pass
        assert server.asked[-1] != ("GIVE_BACK", "raw", "True", "True")
    assert server.asked[-1] == ("GIVE_BACK", "raw", "True", "True")
    assert ("TAKE", "raw", "True") in server.asked
    assert borrowed.domain.XMLDesc() == borrowed.before
    assert borrowed.recorded() == []
    assert any("the power plan is not High performance" in each for each in borrowed.notes)
    assert not any("changed by others" in each for each in borrowed.notes)


def test_a_windows_vm_on_a_node_of_proxmox_ve_is_borrowed(
    borrowing: Borrowing, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SshRunner, "connect", CONNECT)
    server = serve()
    borrowing.hypervisor._borrowed = replace(server.vm, name="100")
    before = borrowing.everything()
    disk = GuestDisk("raw", WHOLE, BLK)
    with borrowing.hypervisor.guest(borrowing.shell.log(RUN), [disk]) as guest:
        assert guest.device("raw") == r"\\.\PhysicalDrive2"
        # Windows does not report it, but Proxmox VE starts a VM with kvm = 1 only under KVM.
        assert guest.evidence["hypervisor"] == "KVM"
    assert server.asked[-1] == ("GIVE_BACK", "raw", "True", "True")
    assert borrowing.everything() == before


@pytest.mark.parametrize(
    ("attach", "service", "ok"),
    [(BLK, "viostor", True), (Attach(), "vioscsi", True), (Attach(), "viostor", False)],
    ids=["blk", "scsi", "other"],
)
def test_the_driver_in_windows_must_be_that_of_the_bus(attach: Attach, service: str, ok: bool) -> None:
    found = configuration_check(attach, Effective(guest_windows_driver=service, guest_write_cache="write back"))
    assert found is not None
    assert found.ok is ok, found.detail


def test_a_command_that_takes_too_long_is_ended_in_windows(serve: Serve) -> None:
    server = serve(fio=("sleep", "5"))
    pacing = FIO.schedule_fio("slow", [])
    with server.login() as runner, pytest.raises(HostError, match="it was ended there"):
        pacing.run(runner.run, "", deadline=0.3)
    assert server.ended == [4242]


def test_the_clock_of_windows_is_that_of_fio_within_the_error(login: Callable[..., SshRunner]) -> None:
    runner = login()
    clock = Clocks().read(runner, FIO.clock(runner))
    assert clock.uptime(time.monotonic()) == pytest.approx(now(), abs=clock.error + 0.001)
    assert clock.error < 60, "half the time of the quickest answer"


def options(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_the_job_file_is_one_for_windows() -> None:
    section = TimedSection("1-lvm", READ, Target(r"\\.\PhysicalDrive2", 0, 64 * MIB, direct=True), 0.5)
    pacing = FIO.schedule_fio("batch1-guest", [Start(1.5, 1)])
    lines = options(job_file([section], 7, platform=FIO, waits=pacing.waits))
    assert "ioengine=windowsaio" in lines
    assert "thread=1" in lines
    # fio refuses the whole file for an option that the platform does not have.
    assert not [line for line in lines if line.startswith("disk_util")]
    assert "job_start_clock_id=1" in lines
    assert r"filename=\\.\PhysicalDrive2" in lines
    (waits,) = [line for line in lines if line.startswith("exec_prerun")]
    assert re.fullmatch(r"exec_prerun=set /p go=<\\\\\.\\pipe\\voh-batch1-guest-[0-9a-f]{8}-0", waits)
    assert pacing.stdin("jobs").startswith("1.500000:1\n")


@pytest.mark.parametrize("path", ["/dev/sdb", r"\\.\C:", r"\\.\PhysicalDrive", r"\\.\PhysicalDrive1:x"])
def test_only_a_whole_disk_is_measured_in_windows(path: str) -> None:
    with pytest.raises(ValueError, match="PhysicalDriveN"):
        FIO.filename(path)


def test_what_fio_for_windows_printed_in_wine_is_read_with_the_starts_of_its_jobs() -> None:
    printed = (DATA / "fio-3.39-wine.txt").read_text()
    released = [float(at) for at in re.findall(r"[0-9.]+", printed.split("\nreleased ")[1].split("\n")[0])]
    read, wal = Job("randread", 4096, iodepth=4, ramp=0.1, seconds=0.3), WAL
    target = Target(r"\\.\PhysicalDrive2", 0, 64 * MIB, direct=True)
    sections = [TimedSection(f"{number}-{job.id}", job, target, 0.0) for number, job in enumerate((read, wal))]
    found = parse(remove_waits(printed), sections, "VM win")
    starts = [found[0].ramp_started, found[0].started, found[1].started]
    assert starts == pytest.approx(released, abs=0.02)
    assert found[0].metrics["iops"] > 1000
    assert sum(found[1].sync_histogram.values()) > 0


def test_slices_alternate_between_the_host_and_windows_each_at_its_time(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = programs_in(tmp_path, monkeypatch)
    monkeypatch.setattr(Windows, "startup", 0.0)  # here, no PowerShell starts
    ran = with_the_stand_in(tmp_path, programs)
    server = serve(fio=(str(programs / "fio"),), disks={2: tmp_path / "disk"})
    with server.login() as runner:
        guest = LocalGuest(r"\\.\PhysicalDrive2", runner, evidence={"fio": "fio-3.39"}, windows=True)
        guests = Guests("here", {"": lambda: nullcontext(guest)}, {"": ["lvm"]})
        ran.at = replace(ran.at, guests=guests)
        found = undisturbed(lambda: ran.measure(ran.table(arms=(HOST, GUEST), blocks=1)), lambda tried: tried)
    assert {each.arm for each in found} == {HOST.id, GUEST.id}
    starts = sorted(each.started for each in found)
    # By the clocks of both machines, no slice runs beside another one.
    assert [each.overlap for each in found] == [None, None]
    assert all(then - before > READ.seconds for before, then in pairwise(starts))
    assert "ioengine=windowsaio" in server.jobs[0]
    # The script refuses a disk that is not offline.
    assert server.asked[0][0] == "PACE"
    assert server.asked[0][2:] == ("2",)
    assert ran.at.platform(GUEST) is FIO
    assert ran.at.platform(HOST) == LINUX


def test_a_cell_names_what_differs_in_windows_and_an_arm_without_a_guest_is_on_linux(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(bytes(4096))
    at = session(str(tmp_path / "disk"), "loop0", counted=False, version="fio-3.39")
    evidence = facts().evidence
    guest = LocalGuest(r"\\.\PhysicalDrive2", evidence=evidence, windows=True)
    at = replace(at, guests=Guests("here", {"": lambda: nullcontext(guest)}, {"": ["lvm"]}))
    notes = _find_notes(GUEST, at)
    assert "fio's engine differs: libaio on the host, windowsaio in the guest" in notes
    assert any("power plan is not High performance" in each for each in notes)
    search = next(each.job(4, ramp=0, seconds=1) for each in NAMED["search"].workloads)
    mode = GUEST.mode
    assert mode is not None
    cells = tuple(Cell("s", "disk", mode, job) for job in (READ, search))
    assert list(_find_unable(Group("g", "disk", "s", cells), at)) == [cells[1].id]
    # A guest that could not start has reported nothing.
    without = replace(at, guests=Guests("here", {}, {}))
    assert without.platform(GUEST) == LINUX
    assert _find_unable(Group("g", "disk", "s", cells), without) == {}
    assert not [each for each in _find_notes(GUEST, without) if "engine" in each or "power" in each]


def test_fio_is_stopped_by_its_token(serve: Serve) -> None:
    server = serve()
    server.recording.answers["STOP"] = [{"script": "STOP", "stdout": ""}]
    with server.login() as runner:
        FIO.schedule_fio("batch1-g2", []).stop(runner)
    name, token = server.asked[-1]
    assert (name, token.rpartition("-")[0]) == ("STOP", "batch1-g2")


@pytest.mark.parametrize("name", ["wal", "search"])
def test_a_workload_that_fio_for_windows_lacks_is_skipped_with_the_reason(name: str) -> None:
    (workload, *_) = NAMED[name].workloads
    job = workload.job(workload.iodepths[0], ramp=0, seconds=1)
    why = FIO.why_unsupported(job)
    assert (why is not None and "no sync=dsync" in why) if job.durable else why is None
    assert LINUX.why_unsupported(job) is None
