"""Windows in a guest, by PowerShell 5.1 over SSH: its facts and disks, fio by a timetable, and its clock.

What the scripts about facts and disks print is JSON. As on Linux, fio creates each job early, and the job waits in its
`exec_prerun` command. fio passes that to cmd.exe, which reads a line from a named pipe. The script that starts fio
writes the line when it is time. Built from documentation, and what never ran: docs/windows.md.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import GuestError, HostError
from harness.files import read_script
from harness.guest.protocol import BlockDevice
from harness.lab.pin import MARK
from harness.lab.transport.base import Completed, HeldCommand, Runner
from harness.lab.transport.ssh import SshRunner
from harness.measure.platform import ENGINE, Clock, Platform, ScheduledFio, Start
from harness.model.attach import Attach, Attachment
from harness.model.job import Job
from harness.model.option import BUSES, Effective
from harness.terminal import quoted
from harness.untrusted import finite, parse_json, reading

PROGRAM = "powershell"

# Neither cmd.exe nor PowerShell, which may be the shell of OpenSSH, changes anything in this line. cmd.exe takes at
# most 8191 characters, so the script itself comes on standard input.
# -OutputFormat: standard error would else be XML.
_COMMAND_LINE = f"{PROGRAM} -NoProfile -NonInteractive -OutputFormat Text -EncodedCommand "
MOST_CHARACTERS = 8191

NO_INPUT = r"let cmd.exe be the shell of OpenSSH again: remove DefaultShell from HKLM:\SOFTWARE\OpenSSH"
"""The remedy if the standard input of a command does not arrive."""

_BOOT = read_script("harness.features.windows", "run_script.ps1", NO_INPUT=NO_INPUT)

# taskkill ends the children as well. Its status is 128 if there is no such process.
_END_TREE = r"""
$null = cmd.exe /c "taskkill /PID {pid} /T /F 2>nul"
if ($LASTEXITCODE -eq 0 -or $LASTEXITCODE -eq 128) {{ exit 0 }} else {{ exit 1 }}
"""


class PowerShell:
    """The shell behind OpenSSH for Windows: a script, its arguments and its input, without any quoting.

    The command is `("powershell", SCRIPT, ARGUMENT...)`. The script begins with `param($given, ...)`: its standard
    input as text, and the arguments. What it returns is printed, and `$global:status` is its exit status.
    """

    def command(self, argv: Sequence[str], *, has_input: bool) -> str:  # noqa: ARG002 - the script itself is input
        _make_script(argv)
        return _encode(_BOOT)

    def held(self, argv: Sequence[str]) -> str:
        """The script must be short, because it is in the line. It gets its input line by line in `$input`."""
        return _encode(_make_script(argv))

    def stdin(self, argv: Sequence[str], data: bytes) -> bytes:
        texts = (_make_script(argv).encode(), data, *(argument.encode() for argument in argv[2:]))
        return b"".join(base64.b64encode(text) + b"\n" for text in texts)

    def ender(self, pid: int) -> str:
        return _encode(_END_TREE.format(pid=pid))


def _make_script(argv: Sequence[str]) -> str:
    if argv[0] != PROGRAM:
        raise ValueError(f"Windows has no program `{argv[0]}`")
    return argv[1]


def _encode(script: str) -> str:
    """The line that runs this script. Source: about_PowerShell_exe, -EncodedCommand (base64 of UTF-16LE)."""
    line = _COMMAND_LINE + base64.b64encode(script.strip().encode("utf-16-le")).decode()
    if len(line) > MOST_CHARACTERS:
        raise ValueError(f"the command has {len(line)} characters, and cmd.exe takes {MOST_CHARACTERS}")
    return line


LOOK = read_script("harness.features.windows", "describe_vm.ps1")
DISKS = read_script("harness.features.windows", "list_disks.ps1")

# Only what finds a disk.
NUMBERS = r"""
param($given)
$disks = @(Get-Disk | Select-Object 'Number', 'SerialNumber')
[ordered]@{ Disks = $disks } | ConvertTo-Json
"""

TAKE = read_script("harness.features.windows", "take_disk.ps1")
GIVE_BACK = read_script("harness.features.windows", "give_back_disk.ps1")
_PACE = read_script("harness.features.windows", "pace_fio.ps1")
_STOP = read_script("harness.features.windows", "stop_fio.ps1")
_CLOCK = read_script("harness.features.windows", "answer_clock.ps1")

_DEADLINE = 30.0
_NO_SYNC = ("0", "none")
_DISK = re.compile(r"\\\\\.\\PhysicalDrive([0-9]{1,4})")
QUICK_PLANS = {
    "8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c": "High performance",
    "e9a42b02-d5df-448d-aa00-03f14749eb61": "Ultimate Performance",
}
"""Power plans that do not slow the CPU down. Source: Microsoft's page on powercfg, and the GUIDs in winnt.h."""
TICKS = 10_000_000
"""The frequency of QueryPerformanceCounter in Hz when Windows 10 and later use the TSC, or Hyper-V's clock."""

_VIRTIO = re.compile(r"PCI\\VEN_1AF4&DEV_(10[0-9A-F]{2})", re.IGNORECASE)
_DRIVER_OF = {"1001": "viostor", "1042": "viostor", "1004": "vioscsi", "1048": "vioscsi"}
"""The driver of a virtio device by its PCI device id, transitional and modern (virtio specification, 4.1)."""
_BROKEN = (3, 18)
"""The version of fio that creates directories for the name of a disk, which fails."""
_GUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

Size = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Numbered(_Part):
    """A disk of Get-Disk."""

    Number: Annotated[int, Field(ge=0, lt=10_000)]
    SerialNumber: str | None

    @property
    def serial(self) -> str:
        """Without the blanks that some drivers add."""
        return (self.SerialNumber or "").strip()

    @property
    def path(self) -> str:
        return f"\\\\.\\PhysicalDrive{self.Number}"


class Disk(Numbered):
    """A disk with what Get-Disk reports of it. Sizes in bytes."""

    LogicalSectorSize: Size
    PhysicalSectorSize: Size
    IsBoot: bool
    IsSystem: bool
    IsOffline: bool
    IsReadOnly: bool


_Disk = TypeVar("_Disk", bound=Numbered)


class Physical(_Part):
    """A disk of Get-PhysicalDisk. `DeviceId` is the number of the disk; the cache is None if it is not reported."""

    DeviceId: str
    MediaType: str
    IsDeviceCacheEnabled: bool | None


class Drive(_Part):
    """The driver of the controller of the disk with the number `Index`."""

    Index: int
    Service: str


class Disks(_Part):
    """All disks."""

    Disks: list[Disk]
    Physical: list[Physical]
    Drives: list[Drive]

    @property
    def by_serial(self) -> dict[str, BlockDevice]:
        return {disk.serial: self._device(disk) for disk in _select_distinct(self.Disks)}

    def _device(self, disk: Disk) -> BlockDevice:
        physical = next((candidate for candidate in self.Physical if candidate.DeviceId == str(disk.Number)), None)
        service = next((drive.Service for drive in self.Drives if drive.Index == disk.Number), "")
        cached = physical.IsDeviceCacheEnabled if physical else None
        return BlockDevice(
            disk.path,
            Effective(
                guest_rotational={"HDD": True, "SSD": False}.get(physical.MediaType) if physical else None,
                guest_write_cache=None if cached is None else "write back" if cached else "write through",
                guest_logical_block_size=disk.LogicalSectorSize,
                guest_physical_block_size=disk.PhysicalSectorSize,
                guest_read_only=disk.IsReadOnly,
                guest_windows_driver=service.lower() or None,
            ),
        )


class Numbers(_Part):
    """The numbers of all disks."""

    Disks: list[Numbered]

    @property
    def by_serial(self) -> dict[str, str]:
        """The paths of the disks."""
        return {disk.serial: disk.path for disk in _select_distinct(self.Disks)}


def _select_distinct(disks: Sequence[_Disk]) -> Iterator[_Disk]:
    """The disks with a serial number. Several with the same number are not told apart, so they are left out."""
    serials = [disk.serial for disk in disks]
    return (disk for disk in disks if disk.serial and serials.count(disk.serial) == 1)


class Taken(_Part):
    """What a disk was before it was taken."""

    IsOffline: bool
    IsReadOnly: bool


class _System(_Part):
    Caption: str
    Version: str


class _Computer(_Part):
    Manufacturer: str
    Model: str
    NumberOfLogicalProcessors: Annotated[int, Field(ge=1, lt=100_000)]
    TotalPhysicalMemory: Size


class _Driver(_Part):
    DeviceID: str
    DeviceName: str | None
    DriverVersion: str | None


class _Antivirus(_Part):
    RealTimeProtectionEnabled: bool


class WindowsFacts(_Part):
    """What the system in the VM has. `Ticks` is the frequency of its clock in Hz."""

    PowerShell: str
    Administrator: bool
    Fio: str
    System: _System
    Computer: _Computer
    Processor: str | None
    Drivers: list[_Driver]
    Packages: list[str]
    PowerPlan: str
    Antivirus: _Antivirus | None
    Ticks: Annotated[int, Field(ge=1)]

    def unsupported_by_guest_os(self, vm: str, attach: Attachment) -> str | None:
        """What it lacks for measuring a disk that is attached in this way, with the remedy; else None."""
        if not self.Administrator:
            return f"in {vm}, only an administrator can open disks: log in as a member of the group Administrators"
        if not self.Fio:
            return (
                f"in {vm}, fio.exe is not installed: install fio's package for Windows, and then restart the service "
                "sshd, which knows PATH as it was at its start"
            )
        if (version := re.match(r"fio-([0-9]+)\.([0-9]+)", self.Fio)) and (int(version[1]), int(version[2])) == _BROKEN:
            return f"in {vm}, {self.Fio} cannot open disks on Windows (issue 994 of fio): install a newer one"
        driver = BUSES[attach.bus].windows_driver if isinstance(attach, Attach) else None
        if driver and driver not in {*self.Packages, *self.versions}:
            return f"in {vm}, Windows has no driver {driver}: install it from the ISO image virtio-win"
        return None

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the virtio drivers for disks whose devices the VM has, by name."""
        versions = {}
        for driver in self.Drivers:
            match = _VIRTIO.match(driver.DeviceID)
            if (name := _DRIVER_OF.get(match[1].upper()) if match else None) is not None:
                versions[name] = driver.DriverVersion or "unknown"
        return versions

    @property
    def evidence(self) -> dict[str, str]:
        """The facts as they are stored with a run."""
        computer = self.Computer
        drivers = (f"{name} {version}" for name, version in sorted(self.versions.items()))
        return {
            "system": self.System.Caption.strip(),
            "kernel": f"Windows {self.System.Version}",
            # Windows does not report which hypervisor it runs on.
            "hypervisor": "",
            "cpu": (self.Processor or "").strip(),
            "cpus": str(computer.NumberOfLogicalProcessors),
            "memory_bytes": str(computer.TotalPhysicalMemory),
            "clocksource": f"QueryPerformanceCounter, {self.Ticks} Hz",
            "dmi": f"{computer.Manufacturer} {computer.Model}",
            "fio": self.Fio.strip(),
            "powershell": self.PowerShell,
            "drivers": ", ".join(drivers),
            "power_plan": self.PowerPlan.strip(),
            "antivirus": self._antivirus,
        }

    @property
    def _antivirus(self) -> str:
        if self.Antivirus is None:
            return "no Microsoft Defender"
        return f"Microsoft Defender, real-time protection {'on' if self.Antivirus.RealTimeProtectionEnabled else 'off'}"


def find_notes(evidence: Mapping[str, str]) -> Iterator[str]:
    """What makes the figures differ from those of a quiet Windows, with the remedy."""
    plan = evidence.get("power_plan", "")
    guid = _GUID.search(plan)
    if guid is None or guid[0].lower() not in QUICK_PLANS:
        quick = next(iter(QUICK_PLANS))
        yield f"the power plan is not High performance ({plan or 'not reported'}): powercfg /setactive {quick}"
    if evidence.get("antivirus", "").endswith(" on"):
        yield "Microsoft Defender scans in real time. It does not scan a disk without files, but it takes CPU time"
    clock = evidence.get("clocksource", "")
    if not clock.endswith(f" {TICKS} Hz"):
        remedy = "give the VM <timer name='hypervclock' present='yes'/>"
        yield f"its clock is slow to read ({clock or 'not reported'}): {remedy}"


SECONDS = 120.0
"""Get-CimInstance Win32_PnPSignedDriver and a first Get-PhysicalDisk can take many seconds."""

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class WindowsSystem:
    """A `System`: Windows, reached over SSH."""

    runner: Runner
    windows: ClassVar[bool] = True

    def disks(self) -> Mapping[str, BlockDevice]:
        return _ask(self.runner, Disks, "its list of disks", DISKS).by_serial

    def paths(self) -> Mapping[str, str]:
        return _ask(self.runner, Numbers, "its list of disks", NUMBERS).by_serial

    def evidence(self) -> dict[str, str]:
        return look_inside_windows(self.runner).evidence

    def look_inside(self) -> WindowsFacts:
        return look_inside_windows(self.runner)

    def notes(self, evidence: Mapping[str, str]) -> Iterator[str]:
        return find_notes(evidence)

    @contextmanager
    def opened(self, serials: Mapping[str, bool], tell: Callable[[str], None]) -> Iterator[None]:
        """Offline, because Windows refuses raw writes where a volume is. At the end they are as they were before."""
        with ExitStack() as stack:
            for serial, writes in serials.items():
                before = _ask(self.runner, Taken, f"the disk {serial}", TAKE, serial, str(writes))
                stack.callback(self._give_back, serial, before, tell)
            yield

    def _give_back(self, serial: str, before: Taken, tell: Callable[[str], None]) -> None:
        words = (PROGRAM, GIVE_BACK, serial, str(before.IsOffline), str(before.IsReadOnly))
        try:
            self.runner.run(words, deadline=SECONDS)
        except HostError as error:
            state = "offline" if not before.IsOffline else "as it is"
            tell(f"Windows may keep the next disk in the place of {serial} {state}: {error.message}")


def open_windows(runner: Runner) -> WindowsSystem:
    """Windows behind this login, to which commands go as scripts for PowerShell from now on."""
    if isinstance(runner, SshRunner):
        runner.shell = PowerShell()
    return WindowsSystem(runner)


def look_inside_windows(runner: Runner) -> WindowsFacts:
    """What the system in the VM has. Raises HostError, also if its PowerShell is too old."""
    return _ask(runner, WindowsFacts, "what it has", LOOK)


def _ask(runner: Runner, model: type[_Model], what: str, script: str, *arguments: str) -> _Model:
    printed = runner.run((PROGRAM, script, *arguments), deadline=SECONDS).stdout
    source = f"{runner.name}: {what}"
    document = parse_json(printed, source, GuestError)
    with reading(source, GuestError):
        return model.model_validate(document)


@dataclass(frozen=True, slots=True)
class WindowsFio(ScheduledFio):
    """`directory` is a token in the names of its directory and of its pipes."""

    @classmethod
    def of(cls, token: str, fio: Sequence[str], starts: Sequence[Start]) -> Self:
        return cls(re.sub("[^A-Za-z0-9-]", "-", f"{token}-{MARK[-8:]}"), tuple(fio), tuple(starts))

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.fio, self.directory)

    def waits(self, number: int) -> str:
        return rf"exec_prerun=set /p go=<\\.\pipe\voh-{self.directory}-{number}"

    def stdin(self, job_file: str) -> str:
        starts = (f"{start.at:.6f}:{start.processes}" for start in self.starts)
        return f"{' '.join(starts)}\n{job_file}"

    def run(self, run: Callable[..., Completed], job_file: str, *, deadline: float) -> Completed:
        numbers = sorted({match[1] for match in _DISK.finditer(job_file)})
        return run((*self.argv, *numbers), stdin=self.stdin(job_file), deadline=deadline, check=False)

    def ready(self, done: Completed) -> None:  # noqa: ARG002 - a ScheduledFio
        """It is not noted."""
        return

    def stop(self, runner: Runner) -> None:
        runner.run((PROGRAM, _STOP, self.directory), deadline=_DEADLINE, check=False)


class Windows(Platform):
    """fio for Windows in a guest."""

    engine = "windowsaio"
    # fio's clock_gettime knows only the time of day and this one there, CLOCK_MONOTONIC.
    start_clock = 1
    # The start of PowerShell and of Get-Disk. Not measured: a guess that the first timetable needs.
    startup = 4.0
    disk_util = False

    def filename(self, path: str) -> str:
        """fio takes the path as it is. Only a colon would have a meaning, and there is none."""
        if not _DISK.fullmatch(path):
            raise ValueError(r"a disk of Windows is named \\.\PhysicalDriveN")
        return path

    def schedule_fio(self, token: str, starts: Sequence[Start]) -> WindowsFio:
        return WindowsFio.of(token, (PROGRAM, _PACE), starts)

    @contextmanager
    def clock(self, runner: Runner) -> Iterator[Callable[[], Clock]]:
        """One PowerShell answers several times, because its start takes longer than a reading may."""
        if not isinstance(runner, SshRunner):
            raise HostError(f"{runner.name}: the clock of Windows is read over SSH")
        with runner.hold((PROGRAM, _CLOCK), what="the clock of Windows", deadline=_DEADLINE) as held:
            yield lambda: _read_clock(runner.name, held)

    def notes(self, evidence: Mapping[str, str]) -> Iterator[str]:
        return find_notes(evidence)

    def why_unsupported(self, job: Job) -> str | None:
        if job.trims:
            return "fio for Windows cannot trim a disk: measure trims in a guest with Linux"
        if job.durable:
            return (
                "fio for Windows has no sync=dsync, and its write-through is not the same as O_DSYNC on the host; "
                "a workload with fdatasync, for example wal, can be measured"
            )
        for section in job.from_file.sections if job.from_file else ():
            options = {option.name: option.value for option in section.options_for(1)}
            if (engine := options.get("ioengine", ENGINE)) != ENGINE:
                return f"fio for Windows has no ioengine={engine} with direct I/O: use {ENGINE}, there windowsaio"
            if (sync := options.get("sync", "0")) not in _NO_SYNC:
                return f"sync={sync} of fio for Windows is write-through, which is not the same as on the host"
        return None


WINDOWS = Windows()


def _read_clock(name: str, held: HeldCommand) -> Clock:
    before = len(held.lines)
    asked = time.monotonic()
    held.send("now")
    lines_shown = held.wait(lambda lines: len(lines) > before, _DEADLINE)
    answered = time.monotonic()
    if not lines_shown:
        raise HostError(
            f"{name}: the clock of Windows did not answer within {_DEADLINE:.0f} s",
            hint=NO_INPUT,
        )
    with reading(f"{name}: the clock of Windows"):
        word, seconds = held.lines[-1].split()
        if word != "at":
            raise ValueError(f"it printed {quoted(held.lines[-1])}")
        moment = finite(seconds)
    return Clock(moment - (asked + answered) / 2, (answered - asked) / 2)
