"""A command may print anything: what it may fill of our memory is limited, and the error names machine and command."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.transport.base import STDERR_BYTES, STDOUT_BYTES, Runner
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner
from tests.unit.processes import has_ended
from tests.unit.transport_servers import dropbear, sshd

MIB = 1 << 20
# What is kept, what is in flight (a window of SSH), and a copy of each while it is handed on.
MOST_MEMORY = 2 * STDOUT_BYTES + 64 * MIB


@pytest.fixture(scope="module", params=["local", "sshd", "dropbear"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    if request.param == "local":
        yield LocalRunner("host lab")
        return
    with ExitStack() as stack:
        serving = {"sshd": sshd, "dropbear": dropbear}[request.param]
        server = stack.enter_context(serving(tmp_path_factory.mktemp("server")))
        far = SshRunner.connect(server.target(), name="host lab", deadline=20)
        stack.callback(far.close)
        yield far


@pytest.fixture
def peak_memory() -> Iterator[list[int]]:
    """The most bytes that Python had allocated at once during the test: the last of the list."""
    peaks: list[int] = []
    tracemalloc.start()
    try:
        yield peaks
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[-1] < MOST_MEMORY


def script(tmp_path: Path, text: str) -> list[str]:
    return ["sh", "-c", f"echo $$ >{tmp_path}/pid; {text}"]


def ended(tmp_path: Path) -> bool:
    return has_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.usefixtures("peak_memory")
@pytest.mark.parametrize("endless", ["exec cat /dev/zero", "yes | cat"])
def test_endless_output_ends_the_command_and_not_the_memory(runner: Runner, tmp_path: Path, endless: str) -> None:
    with pytest.raises(HostError) as caught:
        runner.run(script(tmp_path, endless), deadline=120)
    said = "host lab: a command printed more than 32 MiB on standard output; it was ended"
    assert caught.value.message.startswith(said)
    assert ": `sh -c" in caught.value.message
    assert caught.value.hint
    assert ended(tmp_path)


@pytest.mark.usefixtures("peak_memory")
def test_endless_complaints_end_the_command_sooner(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"printed more than 4 MiB on standard error; it was ended"):
        runner.run(script(tmp_path, "exec yes >&2"), deadline=60, check=False)
    assert ended(tmp_path)


@pytest.mark.usefixtures("peak_memory")
def test_a_large_output_that_has_an_end_is_limited_too(runner: Runner) -> None:
    with pytest.raises(HostError, match="printed more than 32 MiB"):
        runner.run(["head", "-c", str(400 * MIB), "/dev/zero"], deadline=120)


def test_output_up_to_the_limit_is_read_whole(runner: Runner) -> None:
    both = f"head -c {STDERR_BYTES - 4096} /dev/zero >&2; head -c {STDOUT_BYTES} /dev/zero"
    done = runner.run(["sh", "-c", both], deadline=120)
    assert (len(done.stdout), len(done.stderr)) == (STDOUT_BYTES, STDERR_BYTES - 4096)


def test_a_runner_goes_on_after_a_command_that_printed_too_much(runner: Runner) -> None:
    with pytest.raises(HostError, match="printed more"):
        runner.run(["yes"], deadline=60)
    assert runner.run(["echo", "still here"], deadline=20).stdout == "still here\n"


def test_a_command_that_never_ends_is_ended_at_its_deadline(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="was not done after 1 s; it was ended"):
        runner.run(script(tmp_path, "while :; do echo on; sleep 0.1; done"), deadline=1)
    assert ended(tmp_path)


@pytest.mark.parametrize("raw", [b"\xff\xfe\x80abc", b"a\x00b", b"\xed\xa0\x80", bytes(range(256))])
def test_any_bytes_come_back_as_text(runner: Runner, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "raw").write_bytes(raw)
    done = runner.run(["sh", "-c", 'cat "$1"; cat "$1" >&2', "sh", str(tmp_path / "raw")], deadline=20)
    assert done.stdout == done.stderr == raw.decode(errors="replace")


def test_input_that_nobody_reads_and_output_at_once_do_not_block(runner: Runner) -> None:
    done = runner.run(["head", "-c", "20000000", "/dev/zero"], deadline=60, stdin=bytes(20_000_000))
    assert len(done.stdout) == 20_000_000


def test_a_copy_is_readable_by_its_owner_alone(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "initramfs").write_bytes(b"the guest's private host key")
    (tmp_path / "initramfs").chmod(0o644)
    umask = os.umask(0)
    try:
        runner.put(tmp_path / "initramfs", str(tmp_path / "copy"), deadline=20)
    finally:
        os.umask(umask)
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
