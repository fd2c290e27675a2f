"""Directories and files of a host that another user could exchange while a run uses them by path."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import SafetyError, Unsupported
from harness.features.neighbours.backups import backup_file, find_no_room
from harness.files import why_exchangeable
from harness.lab.created import CreationLog, Processes, read_log
from harness.lab.inventory import DiskByFile, HostSpec
from harness.lab.pin import why_unsafe
from harness.lab.storages import look_at
from harness.layout import BlockSource
from harness.layout.disks import block_device
from tests.unit.loop_disks import NO_PROCESS, RUNNER, creation_log

OTHER = 65534
MIB = 1 << 20

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give directories to other users")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A directory that only root can change, with everything above it."""
    if why := why_unsafe(RUNNER, str(tmp_path)):
        pytest.skip(f"the directory for temporary files is not safe: {why}")
    path = tmp_path / "mine"
    path.mkdir(mode=0o755)
    return path


def test_a_directory_of_root_is_safe_also_by_a_link_of_root_and_in_a_sticky_directory(mine: Path) -> None:
    (mine / "link").symlink_to("../mine/inner/.")
    (mine / "inner").mkdir()
    sticky = mine / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "run").mkdir()
    for path in (mine, mine / "link", mine / "inner" / "..", sticky, sticky / "run", mine / "not" / "there"):
        assert why_unsafe(RUNNER, str(path)) is None


def test_what_another_user_can_change_is_not_safe(mine: Path) -> None:
    other = mine / "other"
    (other / "of-root").mkdir(parents=True)
    os.chown(other, OTHER, OTHER)
    open_to_all = mine / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    of_group = mine / "group"
    of_group.mkdir()
    os.chown(of_group, 0, OTHER)
    of_group.chmod(0o775)
    link = mine / "link"
    link.symlink_to(mine)
    os.lchown(link, OTHER, OTHER)
    through = mine / "through"
    through.symlink_to("other/of-root")
    file = mine / "file"
    file.touch()
    os.chown(file, OTHER, OTHER)
    expected = {
        other: f"{other} belongs to user {OTHER}",
        other / "of-root": f"{other} belongs to user {OTHER}",
        open_to_all: f"all users may write to {open_to_all}",
        of_group: f"may write to {of_group}, as a member of group {OTHER}",
        link: f"{link} belongs to user {OTHER}",
        link / "not-there": f"{link} belongs to user {OTHER}",
        through: f"{other} belongs to user {OTHER}",
        file: f"{file} belongs to user {OTHER}",
    }
    for path, why in expected.items():
        assert why in (why_unsafe(RUNNER, str(path)) or "nothing"), path


def let_write(path: Path, user: int) -> None:
    """Give the file or directory an access control list that lets this user write, as `setfacl -m u:USER:rwx` does."""
    everybody = 0xFFFFFFFF
    # Tags of acl(5), as in the kernel's posix_acl_xattr.h: the owner, a user, the group, the mask, and others.
    entries = ((1, 7, everybody), (2, 7, user), (4, 5, everybody), (16, 7, everybody), (32, 5, everybody))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError:
        pytest.skip("the file system for temporary files has no access control lists")


def test_what_an_access_control_list_lets_others_write_to_is_not_safe(mine: Path) -> None:
    let_write(mine, OTHER)
    why = f"the access control list of {mine} lets others write"
    assert why_unsafe(RUNNER, str(mine / "inner")) == why
    local = why_exchangeable(mine / "inner")
    assert local == f"{mine} has an access control list that lets others change it"
    with pytest.raises(SafetyError, match="the access control list of"):
        block_device(creation_log(mine), DiskByFile("d", mine / "d.img", MIB, destroy=True)).__enter__()


def test_records_that_another_user_may_have_written_are_not_used(mine: Path) -> None:
    log = creation_log(mine)
    log.record(Processes(mark=NO_PROCESS))
    directory = mine / "created"
    assert len(read_log(RUNNER, str(directory))) == 1
    os.chown(directory, OTHER, OTHER)
    (mine / "link").symlink_to(directory)
    for path in (directory, mine / "link"):
        with pytest.raises(SafetyError, match=f"another user may have written records to it: {directory} belongs to"):
            read_log(RUNNER, str(path))
    os.chown(directory, 0, 0)
    mine.chmod(0o777)
    with pytest.raises(SafetyError, match="all users may write to"):
        read_log(RUNNER, str(directory))


def test_nobody_else_may_write_beside_the_log_whatever_the_umask_is(mine: Path) -> None:
    before = os.umask(0)
    try:
        CreationLog(RUNNER, RunId("20260101-000000-abcd"), f"{mine}/state/created").record(Processes(mark=NO_PROCESS))
    finally:
        os.umask(before)
    assert (mine / "state").stat().st_mode & 0o022 == 0
    assert (mine / "state" / "created").stat().st_mode & 0o077 == 0


def test_no_file_is_made_in_a_directory_of_another_user(mine: Path) -> None:
    other = mine / "other"
    other.mkdir()
    os.chown(other, OTHER, OTHER)
    log = creation_log(mine)
    spec = HostSpec("here", "local", None, (), backup_directory=other)
    source = BlockSource(str(mine / "disk"), "block", 0, MIB)
    (mine / "disk").write_bytes(b"\0" * MIB)
    assert "another user could exchange" in (find_no_room(RUNNER, spec, MIB) or "")
    with pytest.raises(SafetyError, match="the backup of raw will not be made: another user could exchange"):
        backup_file(log, spec, "raw", source).__enter__()
    disk = DiskByFile("loop", other / "disk.img", 64 * MIB, destroy=True)
    with pytest.raises(SafetyError, match=f"another user could exchange what is in {other}") as refused:
        block_device(log, disk).__enter__()
    assert "chown root" in (refused.value.hint or "")
    with pytest.raises(Unsupported, match="another user could exchange the files of a run there"):
        look_at(RUNNER, "directory", str(other))
    assert list(other.iterdir()) == []
