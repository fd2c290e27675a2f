"""A file is replaced whole or not at all, and what replaced it is on the disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.files import move, replacing, write_atomically
from tests.unit.transport_servers import small_filesystem

HERE = Path(__file__).parents[2]


def test_the_new_content_is_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("old")
    write_atomically(tmp_path / "record", "grüße\n")
    assert (tmp_path / "record").read_text() == "grüße\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_decides_whether_others_may_read_it(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "record", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "record").stat().st_mode & 0o777 == mode


def test_an_error_during_the_write_leaves_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("old")

    def interrupted() -> None:
        with replacing(tmp_path / "record") as file:
            file.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "record").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record"]


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "1").write_text("old")
    (tmp_path / "latest").symlink_to("pages/1")
    write_atomically(tmp_path / "latest", "new")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "pages" / "1").read_text() == "new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_stays_and_a_disk_is_never_written(tmp_path: Path) -> None:
    os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(tmp_path / "disk", 0o600 | stat.S_IFBLK, os.makedev(7, 255))
    write_atomically(tmp_path / "null", "page")
    assert (tmp_path / "null").is_char_device()
    with pytest.raises(OSError, match="it is a disk"):
        write_atomically(tmp_path / "disk", "page")
    assert (tmp_path / "disk").is_block_device()


def test_a_pipe_gets_the_content() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from harness.files import *; write_atomically(Path('/dev/stdout'), 'page')"],
        cwd=HERE,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout == b"page"
    assert Path("/dev/stdout").is_symlink()


def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    with small_filesystem(tmp_path):
        write_atomically(tmp_path / "record", "old")
        with pytest.raises(OSError, match="No space left"):
            write_atomically(tmp_path / "record", bytes(4 << 20))
        assert (tmp_path / "record").read_text() == "old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["record"]


def test_a_process_that_is_killed_during_the_write_leaves_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("old")
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom harness.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'new'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "record")], cwd=HERE, check=False, timeout=600)
    assert done.returncode == -9
    assert (tmp_path / "record").read_text() == "old"


def calls(tmp_path: Path, action: str) -> list[str]:
    """The calls to the kernel that decide what a power failure leaves, in their order, as strace shows them."""
    script = f"import sys\nfrom pathlib import Path\nfrom harness.files import *\np = Path(sys.argv[1])\n{action}\n"
    names = "fsync,fdatasync,rename,renameat,renameat2"
    strace = ["strace", "-f", "-y", "-o", str(tmp_path / "trace"), "-e", f"trace={names}"]
    try:
        done = subprocess.run(
            [*strace, sys.executable, "-c", script, str(tmp_path)], cwd=HERE, check=False, timeout=600, text=True,
            capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no strace here: install strace")
    if done.returncode != 0 and "ptrace" in done.stderr.lower():
        pytest.skip("processes cannot be traced here")
    assert done.returncode == 0, done.stderr
    lines = [line for line in (tmp_path / "trace").read_text().splitlines() if str(tmp_path) in line]
    return [line.split(None, 1)[1] for line in lines]


def test_the_content_is_synced_before_the_rename_and_the_directory_after_it(tmp_path: Path) -> None:
    content, rename, directory = calls(tmp_path, "write_atomically(p / 'record', 'new')")
    assert content.startswith("fsync(")
    assert ".part>" in content
    assert rename.startswith("rename")
    assert directory.startswith("fsync(")
    assert f"<{tmp_path}>" in directory


def test_a_move_syncs_the_directory(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("x")
    move(tmp_path / "made", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "x"
    (tmp_path / "made").write_text("y")
    rename, directory = calls(tmp_path, "move(p / 'made', p / 'there')")
    assert rename.startswith("rename")
    assert f"<{tmp_path}>" in directory
