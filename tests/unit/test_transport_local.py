"""Commands on this machine: status, streams, deadline and copies."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.transport.base import WRAPPED, in_words
from harness.lab.transport.local import LocalRunner
from tests.unit.processes import ends
from tests.unit.transport_servers import small_filesystem

RUNNER = LocalRunner()


def test_both_outputs_and_the_status_come_back() -> None:
    done = RUNNER.run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline=5, check=False)
    assert (done.status, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_failed_command_is_an_error_that_quotes_the_end_of_stderr() -> None:
    with pytest.raises(
        HostError,
        match=r"this machine: no such volume \(`sh -c 'echo no such volume >&2; exit 5'` ended with status 5\)",
    ):
        RUNNER.run(["sh", "-c", "echo no such volume >&2; exit 5"], deadline=5)


def test_a_message_quotes_a_line_of_megabytes_in_part() -> None:
    with pytest.raises(HostError, match="characters left out") as caught:
        RUNNER.run(
            ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo 'the cause' >&2; exit 5"], deadline=20
        )
    assert len(caught.value.message) < 10_000
    assert "xthe cause (`sh -c" in caught.value.message


def test_large_outputs_on_both_streams_do_not_block_each_other() -> None:
    done = RUNNER.run(["sh", "-c", "head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero"], deadline=20)
    assert (len(done.stdout), len(done.stderr)) == (3_000_000, 3_000_000)


@pytest.mark.parametrize("stdin", ["grüße\n", "grüße\n".encode()])
def test_stdin_reaches_the_command_as_text_or_bytes(stdin: str | bytes) -> None:
    assert RUNNER.run(["cat"], deadline=5, stdin=stdin).stdout == "grüße\n"


def test_a_command_that_does_not_read_stdin_may_get_some() -> None:
    assert RUNNER.run(["true"], deadline=5, stdin=b"x" * 1_000_000).status == 0


def test_arguments_are_passed_as_they_are() -> None:
    assert RUNNER.run(["printf", "%s", "a b'c\"$HOME\n*"], deadline=5).stdout == "a b'c\"$HOME\n*"


def test_messages_of_commands_are_not_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert RUNNER.run(["sh", "-c", "echo $LC_ALL"], deadline=5).stdout == "C\n"


def test_a_missing_program_says_what_to_install() -> None:
    with pytest.raises(HostError, match="the program `fio-of-the-future` is missing") as caught:
        RUNNER.run(["fio-of-the-future", "--version"], deadline=5, check=False)
    assert caught.value.hint == "install `fio-of-the-future` on this machine"


def test_the_deadline_ends_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! >{tmp_path}/child; echo $$ >{tmp_path}/parent; wait"
    start = time.monotonic()
    with pytest.raises(HostError, match=r"was not done after 500 ms; it was ended"):
        RUNNER.run(["sh", "-c", script], deadline=0.5)
    assert time.monotonic() - start < 300, "it did not wait for the child"
    assert all(ends(int((tmp_path / name).read_text())) for name in ("child", "parent"))


def test_the_deadline_ends_a_command_that_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.lab.transport.local.GRACE_SECONDS", 0.3)
    with pytest.raises(HostError, match="it was ended"):
        RUNNER.run(["sh", "-c", f"trap '' TERM; echo $$ >{tmp_path}/pid; while :; do sleep 0.1; done"], deadline=0.3)
    assert ends(int((tmp_path / "pid").read_text()))


def test_put_replaces_the_target_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(os.urandom(3_000_000))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "image").write_text("old")
    RUNNER.put(tmp_path / "new", str(tmp_path / "there" / "image"), deadline=10)
    assert (tmp_path / "there" / "image").read_bytes() == (tmp_path / "new").read_bytes()
    assert [entry.name for entry in (tmp_path / "there").iterdir()] == ["image"]


def test_put_of_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot copy .*/absent: No such file"):
        RUNNER.put(tmp_path / "absent", str(tmp_path / "copy"), deadline=5)


def test_put_to_a_missing_directory_names_the_target(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HostError, match=r"this machine: cannot write .*/no/copy: No such file"):
        RUNNER.put(tmp_path / "file", str(tmp_path / "no" / "copy"), deadline=5)


def test_put_to_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(os.urandom(8 << 20))
    full = tmp_path / "full"
    full.mkdir()
    with small_filesystem(full):
        with pytest.raises(HostError, match=r"this machine: no space left for .*/image \(8 MiB\)"):
            RUNNER.put(tmp_path / "image", str(full / "image"), deadline=30)
        assert list(full.iterdir()) == []


def test_a_message_shows_the_beginning_of_a_script_and_of_many_arguments() -> None:
    script = "sleep 5\n" + "true\n" * 1000
    with pytest.raises(HostError) as caught:
        RUNNER.run(["sh", "-c", script, "sh", *map(str, range(20))], deadline=0.2)
    assert caught.value.message.startswith(
        "this machine: a command was not done after 200 ms; it was ended: `sh -c 'sleep"
    )
    assert "0 1 2 3 4 5 6 7 and 12 more words`" in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["env", "VIRT_OVERHEAD=1", "perl", "-e", "1"], "perl -e 1"),
        (["sh", "-c", "check", "sh", "/dev/vdb", WRAPPED, "mkfs.ext4", "/dev/vdb"], "mkfs.ext4 /dev/vdb"),
        (
            ["blkid", *["/dev/mapper/a-volume-with-a-long-name"] * 5],
            f"blkid{' /dev/mapper/a-volume-with-a-long-name' * 2} and 3 more words",
        ),
        (["x" * 300], f"{'x' * 40}..."),
    ],
)
def test_a_command_in_a_message_is_what_ran_and_short(argv: list[str], shown: str) -> None:
    assert in_words(argv) == shown


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        ("blockdev: ioctl error on BLKGETSIZE64: Input/output error", "see `dmesg` on this machine"),
        ("mkfs.ext4: No such device or address", "a disk or a layer below it failed or is gone"),
        ("tee: /mnt/x: Read-only file system", "mount it writable"),
        ("fallocate: No space left on device", "free space on this machine"),
        ("cat: /dev/vdb: Permission denied", "use root on this machine"),
    ],
)
def test_an_error_of_the_system_comes_first_and_has_a_remedy(printed: str, remedy: str) -> None:
    with pytest.raises(HostError) as caught:
        RUNNER.run(["sh", "-c", f"echo '{printed}' >&2; exit 1"], deadline=20)
    assert caught.value.message.startswith(f"this machine: {printed} (`sh -c")
    assert remedy in str(caught.value.hint)


def test_a_command_that_prints_nothing_says_its_status() -> None:
    with pytest.raises(HostError) as caught:
        RUNNER.run(["false"], deadline=20)
    assert (caught.value.message, caught.value.hint) == (
        "this machine: `false` ended with status 1 and printed nothing",
        None,
    )
