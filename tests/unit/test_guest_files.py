"""The guest's files on a host: copied once, and readable by root alone, for the guest's private host key is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.events import Events
from harness.lab.hosts import copy_guest
from harness.lab.transport.base import Runner
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner
from tests.unit.transport_servers import sshd

NAMES = ("initramfs", "vmlinuz")
AS_ANOTHER_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture(params=["local", "ssh"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    if request.param == "local":
        yield LocalRunner("host lab")
        return
    (tmp_path / "server").mkdir()
    with sshd(tmp_path / "server") as server:
        far = SshRunner.connect(server.target(), name="host lab", deadline=20)
        yield far
        far.close()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    found = tmp_path / "image"
    found.mkdir()
    for name in NAMES:
        (found / name).write_text(f"the {name}")
        (found / name).chmod(0o444)
    return found


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in sorted(directory.iterdir())}


def test_the_files_are_roots_alone_and_qemus_user_may_enter(runner: Runner, image: Path, tmp_path: Path) -> None:
    there = tmp_path / "lib" / "images" / "0123"
    umask = os.umask(0)
    try:
        copy_guest(runner, image, str(there), Events())
    finally:
        os.umask(umask)
    assert modes(there) == {"initramfs": 0o600, "vmlinuz": 0o600}
    assert (there / "initramfs").read_text() == "the initramfs"
    assert there.stat().st_mode & 0o777 == 0o711


def test_another_user_reads_them_once_libvirt_has_made_them_his(image: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("another user is needed, and so is root")
    there = Path(f"/var/tmp/voh-test-{os.getpid()}")
    runner = LocalRunner("host lab")
    read = [*AS_ANOTHER_USER, "cat", str(there / "initramfs")]
    try:
        copy_guest(runner, image, str(there), Events())
        assert runner.run(read, deadline=20, check=False).status != 0
        # As libvirt's driver `dac` does at the start of a guest.
        os.chown(there / "initramfs", 65534, 65534)
        assert runner.run(read, deadline=20).stdout == "the initramfs"
    finally:
        runner.run(["rm", "-rf", str(there)], deadline=20)


def test_copies_of_earlier_versions_are_closed_and_not_copied_again(
    runner: Runner, image: Path, tmp_path: Path
) -> None:
    there = tmp_path / "0123"
    there.mkdir()
    for name in NAMES:
        (there / name).write_bytes((image / name).read_bytes())
        (there / name).chmod(0o644)
    before = (there / "initramfs").stat().st_ino
    copy_guest(runner, image, str(there), Events())
    assert modes(there) == {"initramfs": 0o600, "vmlinuz": 0o600}
    assert (there / "initramfs").stat().st_ino == before


def test_a_copy_with_another_content_of_the_same_size_and_time_is_replaced(
    runner: Runner, image: Path, tmp_path: Path
) -> None:
    there = tmp_path / "0123"
    copy_guest(runner, image, str(there), Events())
    before = (there / "initramfs").stat()
    (there / "initramfs").write_text("another one!!")
    os.utime(there / "initramfs", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (there / "initramfs").stat().st_size == before.st_size
    copy_guest(runner, image, str(there), Events())
    assert (there / "initramfs").read_text() == "the initramfs"


def test_files_on_a_read_only_file_system_are_used_as_they_are(runner: Runner, image: Path, tmp_path: Path) -> None:
    there = tmp_path / "0123"
    there.mkdir()
    here = LocalRunner("host lab")
    if here.run(["mount", "--bind", str(image), str(there)], deadline=20, check=False).status != 0:
        pytest.skip("nothing can be mounted here: root is needed")
    try:
        here.run(["mount", "-o", "remount,ro,bind", str(there)], deadline=20)
        copy_guest(runner, image, str(there), Events())
        assert modes(there) == {"initramfs": 0o444, "vmlinuz": 0o444}
    finally:
        here.run(["umount", str(there)], deadline=20)
