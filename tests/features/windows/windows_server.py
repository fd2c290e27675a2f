"""An SSH server on 127.0.0.1 that is a Windows to its clients: it answers each script from a recording.

It takes a command as cmd.exe does: only the line with -EncodedCommand, and the script on standard input. What a script
prints is recorded (tests/features/windows/data). fio runs on this machine, with the names of Windows replaced. A script
that is not in the recording fails.
"""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from harness.features.windows import guest as scripts
from harness.guest.booting import detect_system
from harness.lab.inventory import BorrowedVm, VmLogin
from harness.lab.transport.ssh import SshRunner, SshTarget

DATA = Path(__file__).parent / "data"
PID = 4242
NAMES = {
    scripts.LOOK: "LOOK",
    scripts.DISKS: "DISKS",
    scripts.NUMBERS: "NUMBERS",
    scripts.TAKE: "TAKE",
    scripts.GIVE_BACK: "GIVE_BACK",
    scripts._PACE: "PACE",
    scripts._STOP: "STOP",
}
_LINE = re.compile("powershell -NoProfile -NonInteractive -OutputFormat Text -EncodedCommand ([A-Za-z0-9+/]+=*)")
_WAITS = re.compile(r"exec_prerun=set /p go=<\\\\\.\\pipe\\voh-(?P<token>[A-Za-z0-9-]+)-(?P<number>[0-9]+)$", re.M)
_DISK = re.compile(r"filename=\\\\\.\\PhysicalDrive([0-9]+)$", re.M)

_KEY = paramiko.ECDSAKey.generate()
_USER_KEY = paramiko.ECDSAKey.generate()


@dataclass
class Recording:
    """The answers to each script, in their order. The last one is given again."""

    banner: str
    answers: dict[str, list[dict[str, Any]]]

    @classmethod
    def named(cls, name: str) -> Recording:
        document = tomllib.loads((DATA / f"{name}.toml").read_text())
        answers: dict[str, list[dict[str, Any]]] = {}
        for each in document["answer"]:
            answers.setdefault(each["script"], []).append(each)
        return cls(document["banner"], answers)

    def answer(self, name: str) -> dict[str, Any]:
        found = self.answers.get(name)
        if not found:
            return {"status": 1, "stderr": f"{name} was not recorded"}
        return found.pop(0) if len(found) > 1 else found[0]

    def changed(self, name: str, old: str, new: str) -> Recording:
        """The same with another text in the answers to a script."""
        own = [each | {"stdout": each["stdout"].replace(old, new)} for each in self.answers[name]]
        assert own != self.answers[name]
        return Recording(self.banner, self.answers | {name: own})


@dataclass
class WindowsServer:
    """The server. `asked` has each script's name with its arguments, `ended` the processes that were ended.

    `fio` runs in the place of fio.exe, and `disks` are the files in the place of the disks by number.
    """

    recording: Recording
    port: int
    key: Path
    fio: Sequence[str] = ("fio", "--output-format=json+", "-")
    disks: Mapping[int, Path] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)

    @property
    def target(self) -> SshTarget:
        return SshTarget("127.0.0.1", self.port, "Administrator", self.key, self._host_key)

    @property
    def vm(self) -> BorrowedVm:
        """It as a borrowed VM of a lab file."""
        login = VmLogin("127.0.0.1", self.port, "Administrator", self.key, self._host_key, through_host=False)
        return BorrowedVm("shop", login)

    @contextmanager
    def login(self) -> Iterator[SshRunner]:
        runner = SshRunner.connect(self.target, name="VM win", deadline=10)
        try:
            detect_system(runner)
            yield runner
        finally:
            runner.close()

    @property
    def _host_key(self) -> str:
        return f"{_KEY.get_name()} {_KEY.get_base64()}"

    def run(self, line: str, channel: paramiko.Channel) -> int:
        match = _LINE.fullmatch(line)
        if match is None or len(line) > scripts.MOST_CHARACTERS:
            channel.sendall_stderr(b"The system cannot find the path specified.\r\n")
            return 1
        script = base64.b64decode(match[1]).decode("utf-16-le")
        if script == scripts._CLOCK.strip():
            return _clock(channel)
        if script == scripts._BOOT.strip():
            return self._booted(channel)
        pid = re.search(r"taskkill /PID ([0-9]+) /T /F", script)
        assert pid is not None, script
        self.ended.append(int(pid[1]))
        # A PowerShell takes some time to start: its client has ended its input before.
        list(_lines(channel))
        return 0

    def _booted(self, channel: paramiko.Channel) -> int:
        channel.sendall_stderr(f"virt-overhead-pid {PID}\n".encode())
        script, given, *arguments = (base64.b64decode(line).decode() for line in _lines(channel))
        name = NAMES.get(script, script)
        self.asked.append((name, *arguments))
        if name == "PACE":
            return self._paced(given, arguments[0], channel)
        found = self.recording.answer(name)
        channel.sendall(found.get("stdout", "").strip().replace("\n", "\r\n").encode())
        channel.sendall_stderr(found.get("stderr", "").encode())
        return int(found.get("status", 0))

    def _paced(self, given: str, token: str, channel: paramiko.Channel) -> int:
        """As the script does: each process of a job waits at a pipe, and gets a line at its time."""
        starts, jobs = given.split("\n", 1)
        self.jobs.append(jobs)
        directory = self.key.parent
        for each in _WAITS.finditer(jobs):
            assert each["token"] == token
            os.mkfifo(directory / f"{token}-{each['number']}")
        jobs = _WAITS.sub(lambda each: f"exec_prerun=read go <{directory}/{token}-{each['number']}", jobs)
        jobs = _DISK.sub(lambda each: f"filename={self.disks[int(each[1])]}", jobs)
        jobs = jobs.replace("ioengine=windowsaio", "ioengine=libaio")
        for number, start in enumerate(starts.split()):
            at, processes = start.split(":")
            pipe = directory / f"{token}-{number}"
            threading.Thread(target=_release, args=(pipe, float(at), int(processes)), daemon=True).start()
        done = subprocess.run(
            self.fio, input=jobs, capture_output=True, text=True, check=False, timeout=600, cwd=directory
        )
        channel.sendall(done.stdout.encode())
        channel.sendall_stderr(done.stderr.encode())
        return done.returncode


def now() -> float:
    """The clock of the server, which fio can report the start of its jobs by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextmanager
def windows_server(directory: Path, recording: Recording, **options: Any) -> Iterator[WindowsServer]:
    """It listens until the end of the block."""
    key = directory / "windows_key"
    _USER_KEY.write_private_key_file(str(key))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = WindowsServer(recording, listener.getsockname()[1], key, **options)
        transports: list[paramiko.Transport] = []
        thread = threading.Thread(target=_serve, args=(listener, server, transports), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(300)
            for each in transports:
                each.close()


class _Login(paramiko.ServerInterface):
    """One connection: the key is accepted, and each command runs in a thread."""

    def __init__(self, run: Callable[[str, paramiko.Channel], int]) -> None:
        self._run = run

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002 - paramiko's interface
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002 - paramiko's interface
        return AUTH_SUCCESSFUL if key == _USER_KEY else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002 - paramiko's interface
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._exec, args=(channel, command.decode()), daemon=True).start()
        return True

    def _exec(self, channel: paramiko.Channel, line: str) -> None:
        with suppress(OSError, EOFError):
            status = 255
            try:
                status = self._run(line, channel)
            finally:
                channel.send_exit_status(status)
                channel.close()


def _serve(listener: socket.socket, server: WindowsServer, transports: list[paramiko.Transport]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        transport = paramiko.Transport(client)
        transport.local_version = server.recording.banner
        transport.add_server_key(_KEY)
        transports.append(transport)
        with suppress(paramiko.SSHException, EOFError):
            transport.start_server(server=_Login(server.run))


def _lines(channel: paramiko.Channel) -> Iterator[bytes]:
    """The standard input, line by line, as $input has it."""
    data = b""
    while chunk := channel.recv(65536):
        *lines, data = (data + chunk).split(b"\n")
        yield from lines


def _clock(channel: paramiko.Channel) -> int:
    channel.sendall(b"ready\r\n")
    for _ in _lines(channel):
        channel.sendall(f"at {now():.6f}\r\n".encode())
    return 0


def _release(pipe: Path, at: float, processes: int) -> None:
    time.sleep(max(at - now(), 0.0))
    for _ in range(processes):
        pipe.write_text("go\n")
