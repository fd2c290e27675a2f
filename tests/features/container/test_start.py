"""The start of a container, commands in it, its end and its removal, with programs that stand for those of LXC."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.config.names import RunId
from harness.errors import GuestError, Unsupported
from harness.events import Events
from harness.features.container.lxc import Container, RunningContainer, refuse_lxc, start_container
from harness.guest.protocol import GuestDisk
from harness.lab.created import CreationLog, read_log
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.layout import BlockSource
from harness.measure.reap import HOST_THINGS
from harness.model.attach import InContainer
from harness.model.guest import GuestOptions
from tests.unit.granted import granted
from tests.unit.loop_disks import loop, require, sparse
from tests.unit.processes import ends

RUN = RunId("20260101-000000-abcd")
# As in LXC: --lxcpath DIRECTORY --name NAME. The first process has what the configuration gives it, and nothing else.
PROGRAMS = {
    "lxc-start": """
[ "$1" = --version ] && { echo 6.0.4; exit; }
mark=$(sed -n 's/^lxc.environment = //p' "$2/$4/config")
[ ! -d "$2/devices" ] || stat -c '%n %t:%T %u:%g %a' "$2"/devices/* "$2/$4/rootfs/disks" >"$2/shown"
env -i "$mark" sleep 100 >/dev/null 2>&1 &
echo $! >"$2/$4/running"
""",
    "lxc-info": 'cat "$2/$4/running"',
    "lxc-attach": 'shift 5; exec "$@"',
    "lxc-stop": 'read -r pid <"$2/$4/running" && rm "$2/$4/running" && kill "$pid"',
}


@pytest.fixture(autouse=True)
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


@pytest.fixture
def host() -> Host:
    return Host(
        spec=HostSpec("node1", "local", ssh=None, disks=()),
        runner=LocalRunner("host node1"),
        ssh=None,
        target=None,
        facts=HostFacts({"cpus": "4", "memory_bytes": str(8 << 30), "os_id": "debian", "fio": "fio-3.39"}),
        guest_files=GuestFiles("", "", Path(), ""),
        acceleration=Acceleration("kvm", "it was tried"),
    )


@pytest.fixture
def disk(tmp_path: Path) -> GuestDisk:
    image = tmp_path / "disk"
    image.write_bytes(b"\0" * 4096)
    source = BlockSource(str(image), "file", 0, 4096, grant=granted(str(image), LocalRunner()))
    return GuestDisk("own-container", source, InContainer())


def start(host: Host, disk: GuestDisk, created: Path) -> AbstractContextManager[RunningContainer]:
    log = CreationLog(host.runner, RUN, str(created))
    return start_container(host, log, [disk], GuestOptions(), cpus=2, events=Events())


def recorded(created: Path) -> Container:
    (entry,) = read_log(LocalRunner(), str(created))
    thing = entry.parsed(HOST_THINGS)
    assert isinstance(thing, Container)
    return thing


def test_a_container_is_recorded_runs_commands_and_leaves_nothing(host: Host, disk: GuestDisk, tmp_path: Path) -> None:
    created = tmp_path / "created"
    with start(host, disk, created) as container:
        thing = recorded(created)
        directory = Path(thing.directory)
        pid = int((directory / "pid").read_text())
        assert Path(f"/proc/{pid}/environ").read_text().rstrip("\0") == thing.mark
        root = directory / thing.name / "rootfs"
        assert {path.name for path in root.iterdir()} >= {"proc", "sys", "dev", "run", "usr", "bin", "disks"}
        config = (directory / thing.name / "config").read_text()
        assert f"lxc.mount.entry = {disk.source.path} disks/own-container none bind,create=file 0 0" in config
        assert "lxc.mount.entry = /usr usr none bind,ro 0 0" in config
        assert "lxc.cgroup2.cpuset.cpus = 2-3" in config
        assert container.device("own-container") == "/disks/own-container"
        done = container.runner.run(["sh", "-c", "cat; exit 3"], stdin="job", deadline=20, check=False)
        assert (done.stdout, done.status) == ("job", 3)
        assert container.evidence["container"] == "lxc"
        assert container.post_mortem() is None
    assert ends(pid)
    assert not directory.exists()
    assert read_log(LocalRunner(), str(created)) == []
    assert thing.remove(LocalRunner()).outcome == "absent"


def test_the_root_of_an_unprivileged_container_has_nodes_that_only_its_name_space_shows(
    host: Host, tmp_path: Path
) -> None:
    require("unshare")
    created = tmp_path / "created"
    with loop(sparse(tmp_path / "disk", 1 << 20)) as device:
        source = BlockSource(device, "block", 0, 1 << 20, grant=granted(device, LocalRunner()))
        disk = GuestDisk("own-container", source, InContainer(unprivileged=True))
        with start(host, disk, created):
            thing = recorded(created)
            directory = Path(thing.directory)
            config = (directory / thing.name / "config").read_text()
            node, disks = (directory / "shown").read_text().splitlines()
            number = Path(device).stat().st_rdev
            kernel = f"{os.major(number):x}:{os.minor(number):x}"
            assert node == f"{directory}/devices/own-container {kernel} 100000:100000 600"
            assert disks.split()[2] == "100000:100000"
            assert list((directory / "devices").iterdir()) == []
            assert "lxc.idmap = u 0 100000 65536\nlxc.idmap = g 0 100000 65536" in config
            assert f"lxc.mount.entry = {directory}/devices/own-container disks/own-container none bind" in config
            assert f"lxc.cgroup2.devices.allow = b {os.major(number)}:{os.minor(number)} rw" in config
            (directory / "shown").unlink()
        assert not directory.exists()


def test_an_unprivileged_container_gets_no_file_of_the_host(host: Host, disk: GuestDisk, tmp_path: Path) -> None:
    disk = replace(disk, attach=InContainer(unprivileged=True))
    with (
        pytest.raises(Unsupported, match="is a file, which the root of an unprivileged container may not open"),
        start(host, disk, tmp_path / "created"),
    ):
        pytest.fail("it must not start")
    assert read_log(LocalRunner(), str(tmp_path / "created")) == []


def test_a_container_that_ends_meanwhile_is_named_and_removed(host: Host, disk: GuestDisk, tmp_path: Path) -> None:
    created = tmp_path / "created"
    with start(host, disk, created) as container:
        thing = recorded(created)
        os.kill(int((Path(thing.directory) / "pid").read_text()), 9)
        assert ends(int((Path(thing.directory) / "pid").read_text()))
        assert container.post_mortem() == f"the container {thing.name} has ended on node1"
    assert not Path(thing.directory).exists()


def test_a_container_that_does_not_start_is_explained_and_leaves_nothing(
    host: Host, tmp_path: Path, disk: GuestDisk
) -> None:
    program = tmp_path / "bin" / "lxc-start"
    line = "lxc-start voh 20261127173938.938 ERROR    apparmor - ../src/lxc/lsm/apparmor.c:set:1231 - No such profile"
    program.write_text(f'#!/bin/sh\nfor line in 1 2 3 4 5; do echo "{line} $line" >>"$2/log"; done\nexit 1\n')
    created = tmp_path / "created"
    with (
        pytest.raises(GuestError, match=r"did not start: No such profile 1\nNo such profile 2\nNo such profile 3\n"),
        start(host, disk, created),
    ):
        pytest.fail("it must not start")
    assert read_log(LocalRunner(), str(created)) == []


def test_a_backup_is_not_offered(host: Host, disk: GuestDisk, tmp_path: Path) -> None:
    with start(host, disk, tmp_path / "created") as container, pytest.raises(Unsupported, match="no backup"):
        container.backup("own-container", "/backup")


def test_a_host_without_lxc_is_skipped_with_the_command(host: Host, tmp_path: Path) -> None:
    (tmp_path / "bin" / "lxc-start").unlink()
    assert refuse_lxc(host, GuestOptions()) == "LXC is not installed there, which runs containers: apt-get install lxc"


class Gives(LocalRunner):
    """A host on which root may give these ranges of users to containers."""

    def __init__(self, users: str, groups: str) -> None:
        super().__init__("host node1")
        self._lines = f"version=6.0.4\ngroups=cgroup2fs\ncommon=yes\nsubuid={users}\nsubgid={groups}\n"

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        return Completed(tuple(argv), 0, self._lines, "")


@pytest.mark.parametrize(
    ("users", "groups", "allowed"),
    [
        ("100000:65536 ", "100000:65536 ", True),
        ("5000:10 90000:100000 ", "90000:100000 ", True),
        ("100000:65536 ", "", False),
        ("100000:65535 ", "100000:65536 ", False),
        ("", "", False),
    ],
)
def test_the_users_of_an_unprivileged_container_must_be_given_to_root(
    host: Host, users: str, groups: str, *, allowed: bool
) -> None:
    host = replace(host, runner=Gives(users, groups))
    assert refuse_lxc(host, GuestOptions()) is None
    why = refuse_lxc(host, GuestOptions(), unprivileged=True)
    assert why is None if allowed else "usermod --add-subuids 100000-165535 " in str(why)
