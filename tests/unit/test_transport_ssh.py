"""Commands over a real SSH connection: the far machine behaves as this one does, and nothing ever hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paramiko import Message
from paramiko.common import cMSG_CHANNEL_EOF

from harness.errors import HostError
from harness.lab.transport import ssh as ssh_module
from harness.lab.transport.ssh import SshRunner, runs_commands_concurrently
from tests.unit.processes import ends
from tests.unit.transport_servers import Server, dropbear, sshd


@pytest.fixture(scope="module", params=[sshd, dropbear], ids=["sshd", "dropbear"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with request.param(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def far(server: Server) -> Iterator[SshRunner]:
    runner = SshRunner.connect(server.target(), name="host lab", deadline=20)
    yield runner
    runner.close()


@pytest.fixture
def doomed(server: Server) -> Iterator[SshRunner]:
    """A connection for tests that break it."""
    runner = SshRunner.connect(server.target(), name="host lab", deadline=20)
    yield runner
    runner.close()


def wait_for(path: Path) -> str:
    give_up_at = time.monotonic() + 300
    while time.monotonic() < give_up_at:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def server_process(runner: SshRunner) -> int:
    return int(runner.run(["sh", "-c", "echo $PPID"], deadline=10).stdout)


def test_both_outputs_and_the_status_come_back(far: SshRunner) -> None:
    done = far.run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline=10, check=False)
    assert (done.status, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_failed_command_is_an_error_that_quotes_the_end_of_stderr(far: SshRunner) -> None:
    with pytest.raises(HostError, match=r"host lab: ls: cannot access .* \(`ls /absent` ended with status 2\)"):
        far.run(["ls", "/absent"], deadline=10)


def test_a_command_killed_by_a_signal_says_so(far: SshRunner) -> None:
    with pytest.raises(HostError, match="was killed by a signal"):
        far.run(["sh", "-c", "kill -9 $$"], deadline=10)


def test_arguments_are_passed_unchanged_and_messages_are_not_translated(far: SshRunner) -> None:
    assert far.run(["printf", "%s", "a b'c\"$HOME\n*"], deadline=10).stdout == "a b'c\"$HOME\n*"
    assert far.run(["sh", "-c", "echo $LC_ALL"], deadline=10).stdout == "C\n"


def test_a_missing_program_says_what_to_install(far: SshRunner) -> None:
    with pytest.raises(HostError, match="the program `fio-of-the-future` is missing") as caught:
        far.run(["fio-of-the-future", "--version"], deadline=10, check=False)
    assert caught.value.hint == "install `fio-of-the-future` on host lab"


def test_status_127_of_a_program_that_exists_is_a_status(far: SshRunner) -> None:
    assert far.run(["sh", "-c", "exit 127"], deadline=10, check=False).status == 127


def test_large_outputs_on_both_streams_do_not_block_each_other(far: SshRunner) -> None:
    both = "head -c 4000000 /dev/zero >&2; head -c 20000000 /dev/zero; echo end >&2"
    done = far.run(["sh", "-c", both], deadline=60)
    assert (len(done.stdout), len(done.stderr)) == (20_000_000, 4_000_004)


def test_stdin_larger_than_any_window_comes_back_while_it_is_sent(far: SshRunner) -> None:
    text = "0123456789abcde\n" * 200_000
    assert far.run(["cat"], deadline=60, stdin=text).stdout == text


def test_a_command_that_does_not_read_stdin_may_get_some(far: SshRunner) -> None:
    assert far.run(["true"], deadline=20, stdin=b"x" * 10_000_000).status == 0


def test_the_deadline_ends_the_far_process_and_its_children_in_other_sessions(far: SshRunner, tmp_path: Path) -> None:
    script = f"setsid sh -c 'echo $$ >{tmp_path}/job; sleep 600' & echo $$ >{tmp_path}/command; wait"
    start = time.monotonic()
    with pytest.raises(HostError, match=r"host lab: a command was not done after 1 s; it was ended there: `sh -c .*`"):
        far.run(["sh", "-c", script], deadline=1)
    assert time.monotonic() - start < 300, "it did not wait for the command"
    assert ends(int((tmp_path / "command").read_text()))
    assert ends(int((tmp_path / "job").read_text()))
    assert far.run(["echo", "next"], deadline=10).stdout == "next\n"


def test_the_deadline_ends_a_command_that_ignores_sigterm(far: SshRunner, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="it was ended there"):
        far.run(["sh", "-c", f"trap '' TERM; echo $$ >{tmp_path}/pid; while :; do sleep 0.1; done"], deadline=1)
    assert ends(int((tmp_path / "pid").read_text()))


def test_an_interrupted_run_leaves_nothing_running(far: SshRunner, tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for(tmp_path / "pid")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        far.run(["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 60"], deadline=30)
    interrupter.join()
    assert ends(int((tmp_path / "pid").read_text()))


def test_two_threads_share_a_connection(far: SshRunner) -> None:
    sampled: list[str] = []

    def sample() -> None:
        sampled.extend(far.run(["echo", str(number)], deadline=20).stdout for number in range(5))

    sampler = threading.Thread(target=sample)
    sampler.start()
    long = far.run(["sh", "-c", "sleep 1; head -c 1000000 /dev/zero"], deadline=20)
    sampler.join()
    assert len(long.stdout) == 1_000_000
    assert sampled == [f"{number}\n" for number in range(5)]


def test_commands_that_start_while_others_end_do_not_break_the_connection(server: Server) -> None:
    """As dropbear 2022.82 to 2024.86 do, in one of ten rounds."""
    outputs: list[str] = []

    def echo(runner: SshRunner) -> None:
        outputs.extend(runner.run(["echo", str(number)], deadline=120).stdout for number in range(5))

    for _ in range(4):
        runner = SshRunner.connect(server.target(), name="host lab", deadline=60)
        threads = [threading.Thread(target=echo, args=(runner,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        runner.close()
    assert sorted(outputs) == sorted(f"{number}\n" for _ in range(12) for number in range(5))


def test_a_command_that_ends_at_once_does_not_break_the_connection(
    doomed: SshRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may send the end of an input late. If the channel is closed then, servers end the connection."""
    transport: Any = doomed._transport
    send = transport._send_user_message

    def send_late(message: Message) -> None:
        if message.asbytes()[:1] == cMSG_CHANNEL_EOF and threading.current_thread() is not transport:
            time.sleep(1)
        send(message)

    monkeypatch.setattr(transport, "_send_user_message", send_late)
    for number in range(3):
        assert doomed.run(["echo", str(number)], deadline=30).stdout == f"{number}\n"
    assert doomed.run(["cat"], deadline=30).stdout == ""
    assert doomed.run(["cat"], stdin="text", deadline=30).stdout == "text"


@pytest.mark.parametrize(
    ("banner", "concurrent"),
    [
        ("SSH-2.0-dropbear_2020.81", True),
        ("SSH-2.0-dropbear_2022.82", False),
        ("SSH-2.0-dropbear_2022.83", False),
        ("SSH-2.0-dropbear_2024.86", False),
        ("SSH-2.0-dropbear_2025.87", True),
        ("SSH-2.0-dropbear", True),
        ("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7", True),
    ],
)
def test_a_server_that_drops_connections_is_recognised(banner: str, concurrent: bool) -> None:
    assert runs_commands_concurrently(banner) is concurrent


def test_a_connection_cut_in_the_middle_is_named_with_the_command(
    doomed: SshRunner, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = server_process(doomed)
    pid_file = tmp_path / "pid"

    def cut() -> None:
        wait_for(pid_file)
        os.kill(victim, signal.SIGKILL)

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(
        HostError, match=r"host lab: the connection was lost: the remote side closed it \(while running `sh -c"
    ):
        doomed.run(["sh", "-c", f"echo $$ >{pid_file}; exec sleep 60"], deadline=30)
    cutter.join()
    os.kill(int(pid_file.read_text()), signal.SIGTERM)
    assert not doomed.alive
    with pytest.raises(HostError, match=r"host lab: the connection was lost: \w.* \(while running `true`\)"):
        doomed.run(["true"], deadline=5)
    assert capfd.readouterr() == ("", "")


def test_a_machine_that_freezes_does_not_hang_the_caller(
    doomed: SshRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_module, "ENDING_SECONDS", 0.5)
    frozen = server_process(doomed)
    (tmp_path / "image").write_bytes(bytes(40_000_000))
    os.kill(frozen, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(HostError, match=r"was not done after 500 ms; .*: `true`"):
            doomed.run(["true"], deadline=0.5)
        with pytest.raises(HostError, match=r"was not done after 500 ms; .*: `copy of .*image to .*copy`"):
            doomed.put(tmp_path / "image", str(tmp_path / "copy"), deadline=0.5)
        doomed.close()
        assert time.monotonic() - start < 300
    finally:
        os.kill(frozen, signal.SIGCONT)


def test_a_machine_that_freezes_during_a_copy_does_not_hang_the_caller(
    doomed: SshRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_module, "ENDING_SECONDS", 0.5)
    frozen = server_process(doomed)
    pid_file = tmp_path / "pid"

    def freeze() -> None:
        wait_for(pid_file)
        os.kill(frozen, signal.SIGSTOP)

    freezer = threading.Thread(target=freeze)
    freezer.start()
    try:
        with pytest.raises(HostError, match="the machine does not answer, so the command may still run there"):
            doomed.run(["sh", "-c", f"echo $$ >{pid_file}; cat >/dev/null"], deadline=3, stdin=bytes(200_000_000))
        doomed.close()
    finally:
        freezer.join()
        os.kill(frozen, signal.SIGCONT)


def test_put_copies_a_large_file_and_leaves_nothing_else(far: SshRunner, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(os.urandom(20 << 20))
    (tmp_path / "far side").mkdir()
    far.put(tmp_path / "image", str(tmp_path / "far side" / "it's the image"), deadline=60)
    assert (tmp_path / "far side" / "it's the image").read_bytes() == (tmp_path / "image").read_bytes()
    assert [entry.name for entry in (tmp_path / "far side").iterdir()] == ["it's the image"]


def test_put_to_a_full_disk_says_so_and_leaves_nothing(far: SshRunner, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(os.urandom(8 << 20))
    full = tmp_path / "full"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(full)]
    # Mounted from the far side: the dropbear of these tests has a mount namespace of its own.
    if far.run(mount, deadline=10, check=False).status != 0:
        pytest.skip("a small tmpfs cannot be mounted here: root is needed")
    try:
        with pytest.raises(HostError, match=r"host lab: no space left for .*/image \(8 MiB\)"):
            far.put(tmp_path / "image", str(full / "image"), deadline=30)
        assert far.run(["ls", "-A", str(full)], deadline=10).stdout == ""
    finally:
        far.run(["umount", str(full)], deadline=10)


def test_put_cut_by_its_deadline_leaves_nothing(far: SshRunner, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as sparse:
        sparse.truncate(8 << 30)
    (tmp_path / "far").mkdir()
    with pytest.raises(HostError, match="it was ended there"):
        far.put(tmp_path / "huge", str(tmp_path / "far" / "copy"), deadline=1)
    assert list((tmp_path / "far").iterdir()) == []


def test_a_pipe_cannot_be_copied(far: SshRunner, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HostError, match="it is not a regular file"):
        far.put(tmp_path / "pipe", str(tmp_path / "copy"), deadline=5)


def test_put_of_a_missing_file_names_it(far: SshRunner, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot copy .*/absent: No such file"):
        far.put(tmp_path / "absent", "/tmp/copy", deadline=5)


def test_put_to_a_missing_directory_names_the_target(far: SshRunner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HostError, match=r"host lab: cannot write .*/no/copy: .*"):
        far.put(tmp_path / "file", str(tmp_path / "no" / "copy"), deadline=10)
