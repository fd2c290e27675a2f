"""Passwords, tokens and keys that look like nothing else, in every failure: they are found in nothing that is left.

pytest runs with all that prints most: `--showlocals`, `--log-level=DEBUG`, JUnit with the captured log. The tests of
each failure (`Failure.tests`) are a cell by the plugin, calls of the API whose exceptions reach pytest as they are, and
the doctor.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.canary_project import ROOT, Failure, Project, behind_a_proxy, canary, failing_logins
from tests.unit.hostile_servers import SILENCE, make_certificates, server
from tests.unit.transport_servers import SSHD

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or SSHD is None or shutil.which("fio") is None, reason="a local run needs root, sshd and fio"
)
LOUD = (
    *("-v", "--showlocals", "--tb=long", "--log-level=DEBUG", "--log-cli-level=DEBUG", "--log-file=log.txt"),
    *("--junitxml=junit.xml", "-o", "junit_logging=all", "-p", "no:cacheprovider", "--require-lab", "--lab=lab.toml"),
)
SECONDS = 480.0
# Stands in PATH for the shell that the harness starts: it writes down what it inherited.
_SHELL = """#!/bin/sh
{ tr '\\0' '\\n' </proc/$$/environ; tr '\\0' '\\n' </proc/$$/cmdline; } >>"%s/$$"
exec /bin/sh "$@"
"""
# Commands run on this machine, which has to be the API's node.
_READLINK = """#!/bin/sh
[ "$1" != /etc/pve/local ] || { echo nodes/pve; exit 0; }
exec %s "$@"
"""


@dataclass
class Ran:
    """What a run left: its output, its JUnit file's cases by test and host, and all other text by where it is."""

    status: int
    output: str
    cases: Mapping[tuple[str, str], str]
    text: Mapping[str, str]
    project: Project


def run(project: Project, *arguments: str, interrupt_at: threading.Event | None = None) -> Ran:
    """pytest in the project, watched from outside."""
    children = project.path / "children"
    children.mkdir()
    programs = project.path / "programs"
    programs.mkdir()
    for name, text in (("sh", _SHELL % children), ("readlink", _READLINK % shutil.which("readlink"))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    with (project.path / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *LOUD, *arguments],
            cwd=project.path,
            env=_environment(project, programs),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with _watched(process) as seen:
            if interrupt_at is not None:
                assert interrupt_at.wait(SECONDS)
                process.send_signal(signal.SIGINT)
            try:
                status = process.wait(SECONDS)
            finally:
                process.kill()
    files = {
        str(path.relative_to(project.path)): path.read_bytes().decode("utf-8", "replace")
        for path in project.path.rglob("*")
        if path.is_file() and path not in project.private
    }
    assert list(children.iterdir()), "the harness started no shell that was watched"
    junit = project.path / "junit.xml"
    cases = _cases(junit) if junit.exists() else {}
    return Ran(status, files["output.txt"], cases, files | {"process list": "\n".join(seen)}, project)


@contextmanager
def _watched(process: subprocess.Popen[bytes]) -> Iterator[set[str]]:
    """The command lines of all processes meanwhile, and the environments of those that the run's Pythons started."""
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        ours, others = {process.pid}, set[int]()
        while not ended.wait(0.05):
            running = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
            # Reading them takes time from the run: what is not of the run is read twice, as it may be before its exec.
            for pid in running - ours - others:
                seen.add(_read(pid, "cmdline"))
                (ours if _parent(pid) in ours else others).add(pid)
            for pid in ours & running:
                seen.add(_read(pid, "cmdline"))
                # Python's own processes are the run and its workers: /proc shows what they were started with. A process
                # without a name has just ended, and its id may be another's when its environment is read.
                name = _read(pid, "comm")
                # A worker of xdist asks for the processor before the plugin can know what is secret.
                if name and "python" not in name and _read(pid, "cmdline").strip() != "uname -p":
                    seen.add(_read(pid, "environ"))
            ours &= running
            others &= running
        seen.update(_read(pid, "cmdline") for pid in others)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _environment(project: Project, programs: Path) -> dict[str, str]:
    ours = re.compile(r"PYTEST|VIRT_OVERHEAD|PVE_|(https?|all|no)_proxy", re.I)
    environment = {name: value for name, value in os.environ.items() if not ours.match(name)}
    home = project.path / "home"
    home.mkdir()
    kept = {f"XDG_{name}_HOME": str(home / name) for name in ("STATE", "CACHE", "DATA", "CONFIG")}
    own = {"HOME": str(home), "PYTHONPATH": str(ROOT), "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "250"}
    return environment | kept | own | project.environment


def _cases(junit: Path) -> dict[tuple[str, str], str]:
    cases: dict[tuple[str, str], str] = {}
    for case in ET.parse(junit).getroot().iter("testcase"):
        test, _, parameter = str(case.get("name")).partition("[")
        problems = [each for each in case if each.tag in ("failure", "error")]
        text = "\n".join(each.text or "" for each in case) if problems else ""
        cases[test, re.split(r"[-\]]", parameter)[0]] = text
    return cases


def assert_hidden(ran: Ran, failure: Failure) -> None:
    found = [
        f"{hidden} in {place}" for place, text in ran.text.items() for hidden in failure.canaries if hidden in text
    ]
    assert not found


BOTH = ["wrong", "pin", "ca", "closed", "reset", "silent", "forbidden", "broken", "page", "quoting", "redirect"]
FAILURES = [
    *(f"{name}_{login}" for name in BOTH for login in ("pw", "tk")),
    *("twofactor", "laterforbidden", "laterreset", "laterpage", "newline_env", "newline_file"),
    *("inner_pw", "inner_tk", "letters", "missing", "readable"),
    *("key_refused", "key_garbage", "key_absent", "key_unreadable", "ssh_closed"),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One run of all failures."""
    path = tmp_path_factory.mktemp("canaries")
    with failing_logins(path) as project:
        project.write(timeout=1.0)
        yield run(project)


def test_every_failure_has_its_test(ran: Ran) -> None:
    assert {each.name for each in ran.project.failures} == set(FAILURES)
    assert set(ran.cases) == {(test, each.name) for each in ran.project.failures for test in each.tests}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_without_any_secret(ran: Ran, name: str) -> None:
    failure = next(each for each in ran.project.failures if each.name == name)
    for test in failure.tests:
        assert failure.said in ran.cases[test, name], f"{test} did not fail as it was to"
    assert failure.canaries or name == "missing"
    assert_hidden(ran, failure)


def test_an_impostor_behind_a_proxy_gets_and_shows_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "project"
    path.mkdir()
    with behind_a_proxy(path) as project:
        project.write(timeout=1.0)
        ran = run(project)
    for failure in project.failures:
        for test in failure.tests:
            assert failure.said in ran.cases[test, failure.name]
        assert_hidden(ran, failure)
    assert "canary-proxy" not in ran.output + (ran.text["junit.xml"] + ran.text["log.txt"])


def test_a_worker_of_xdist_has_the_secret_and_shows_it_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "project"
    path.mkdir()
    (tmp_path / "servers").mkdir()
    node = make_certificates(tmp_path / "servers", "node")
    password = canary("worker", "password")

    def refusing(request: bytes) -> bytes:
        arrived.set() if password.encode() in request else None
        return b"HTTP/1.1 401 authentication failure\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    arrived = threading.Event()
    with server(refusing, node) as listener:
        project = Project(path)
        trusted = f'ca_file = "{node.authority}"'
        project.failures.append(Failure("worker", "refuses the login", [password], listener.port, [trusted]))
        project.write(timeout=600)
        ran = run(project, "-n", "1")
    assert arrived.is_set()
    assert "refuses the login" in ran.cases["test_overhead", "worker"]
    assert_hidden(ran, project.failures[0])


@pytest.mark.parametrize("token", [False, True], ids=["password", "token"])
def test_an_interrupted_login_shows_no_secret(tmp_path: Path, token: bool) -> None:
    path = tmp_path / "project"
    path.mkdir()
    (tmp_path / "servers").mkdir()
    node = make_certificates(tmp_path / "servers", "node")
    secret = canary("interrupted", "secret")
    arrived = threading.Event()

    def silent(_request: bytes) -> bytes:
        arrived.set()
        return SILENCE

    with server(silent, node) as listener:
        project = Project(path)
        api = [f'ca_file = "{node.authority}"', *(['token = "t1"'] if token else [])]
        project.failures.append(Failure("interrupted", "", [secret], listener.port, api))
        project.write(timeout=SECONDS)
        ran = run(project, "--full-trace", "-k", "test_overhead", interrupt_at=arrived)
        assert secret.encode() in listener.received
    assert ran.status == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in ran.output
    assert "transport/base.py" in ran.output
    assert_hidden(ran, project.failures[0])


def test_the_command_line_shows_no_secret(tmp_path: Path) -> None:
    """`virt-overhead doctor` with a token whose newline is in its middle, and with one that a server refuses."""
    (tmp_path / "servers").mkdir()
    node = make_certificates(tmp_path / "servers", "node")
    path = tmp_path / "project"
    path.mkdir()
    project = Project(path)
    forbidden = b"HTTP/1.1 403 Permission check failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with server(lambda _request: forbidden, node) as listener:
        inner, newline = canary("inner", "token"), canary("newline", "token")
        api = [f'ca_file = "{node.authority}"', 'token = "t1"']
        project.failures += [
            Failure("inner", "contains a line break", [inner], 1, api, written=f"{inner}\nb"),
            Failure("newline", "403: Permission check failed", [newline], listener.port, api, written=f"{newline}\n"),
        ]
        project.write(timeout=1.0)
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli", "doctor", "--lab=lab.toml"],
            cwd=path,
            env=_environment(project, path),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert f"PVEAPIToken=root@pam!t1={newline}\r\n".encode() in listener.received
    for failure in project.failures:
        assert failure.said in done.stdout
        assert failure.canaries[0] not in done.stdout + done.stderr
