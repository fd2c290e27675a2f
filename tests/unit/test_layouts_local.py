"""Layouts on a real loop device: what they are while they last, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import HostError, SafetyError, Unsupported
from harness.lab.created import CreationLog, read_log
from harness.lab.facts import HostFacts, read_facts
from harness.lab.inventory import DiskByFile
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts, built
from harness.layout.disks import partitioned_disks
from harness.layout.regions import Need, partition_disk
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import Lvm, RawFile, find_missing_requirement
from harness.model.mode import Mode
from tests.unit.failing import outcomes
from tests.unit.granted import granted
from tests.unit.loop_disks import (
    NO_HYPERVISOR,
    RUNNER,
    creation_log,
    detach,
    loop,
    mounted,
    require,
    run,
    sparse,
    traces,
)

MIB = 1024**2
RUN = RunId("20260101-000000-abcd")

PASSTHROUGH = Mode("passthrough", Device(), Attach())
RAW = Mode("raw", RawFile(), Attach())
CACHED = Mode("raw-cached", RawFile(), Attach(cache="writeback", aio="threads"))
LVM = Mode("lvm", Lvm(), Attach())


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return read_facts(RUNNER)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskByFile]:
    """A disk of 1 GiB whose file is made when it is needed. Afterwards the machine has to be as it was."""
    require("sfdisk", "mkfs.ext4", "fallocate", "partx")
    _require_direct_io(tmp_path)
    monkeypatch.setattr("harness.layout.storage_files.MOUNT_DIRECTORY", str(tmp_path / "mnt"))
    (tmp_path / "mnt").mkdir()
    (tmp_path / "created").mkdir()
    before = traces(tmp_path)
    yield DiskByFile("loop", tmp_path / "disk.img", 1024 * MIB, destroy=True)
    assert traces(tmp_path) == before


def _require_direct_io(directory: Path) -> None:
    file = sparse(directory / "probe.img", MIB)
    try:
        device = run("losetup", "--find", "--show", "--direct-io=on", str(file)).strip()
    except HostError as error:
        pytest.skip(f"no loop device with direct I/O on the file system of temporary files: {error.message}")
    finally:
        file.unlink()
    detach(device)


def build(disk: DiskByFile, facts: HostFacts, *modes: Mode, span: int = 64 * MIB) -> AbstractContextManager[Layouts]:
    return built(creation_log(disk.file.parent), facts, [disk], modes, span=span)


def loop_device(disk: DiskByFile) -> str:
    listed = json.loads(run("losetup", "--list", "--json", "-j", str(disk.file)))
    name: str = listed["loopdevices"][0]["name"]
    return name


def table(device: str) -> list[tuple[str, int, int]]:
    """(name, offset, bytes) of each partition on the disk."""
    found = json.loads(run("sfdisk", "-J", device))["partitiontable"]["partitions"]
    return [(each["name"], each["start"] * 512, each["size"] * 512) for each in found]


def test_the_partition_table_names_the_run_and_matches_the_regions(disk: DiskByFile) -> None:
    needs = {"device": Need(0, 1), "ext4": Need(36 * MIB + 1, 1)}
    with partitioned_disks(creation_log(disk.file.parent), [disk], [needs], span=64 * MIB) as ((made,), span):
        device, parts = loop_device(disk), made.regions
        assert span == 64 * MIB
        assert table(device) == [(f"voh:{RUN}:device", 1 * MIB, 64 * MIB), (f"voh:{RUN}:ext4", 65 * MIB, 101 * MIB)]
        assert [(part.what, part.offset, part.size) for part in parts.values()] == [
            ("device", 1 * MIB, 64 * MIB),
            ("ext4", 65 * MIB, 101 * MIB),
        ]
        assert parts["ext4"].device.size_bytes == 101 * MIB
        found = json.loads(run("sfdisk", "-J", device))["partitiontable"]["partitions"]
        assert [each["uuid"].lower() for each in found] == [part.partuuid for part in parts.values()]


def test_device_and_files_have_equal_spans_on_one_disk(disk: DiskByFile, facts: HostFacts) -> None:
    with build(disk, facts, PASSTHROUGH, RAW, CACHED) as layouts:
        device = loop_device(disk)
        bare, raw, cached = layouts.device, layouts.guest(RAW), layouts.guest(CACHED)
        assert layouts.span == 64 * MIB
        assert layouts.twin(None) == layouts.guest(PASSTHROUGH) == bare
        assert (bare.path, bare.kind, bare.offset, bare.size) == (device, "block", 1 * MIB, 64 * MIB)
        assert [name for name, _, _ in table(device)] == [f"voh:{RUN}:device", f"voh:{RUN}:ext4"]
        assert table(device)[0] == (f"voh:{RUN}:device", bare.offset, bare.size)
        for source in (raw, cached):
            assert (source.kind, source.offset) == ("file", 0)
            assert Path(source.path).stat().st_size == 64 * MIB
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        assert [fields[2] for fields in mounts if fields[1] == str(Path(raw.path).parent)] == ["ext4"]


def test_building_fills_nothing_and_preallocates_the_files(disk: DiskByFile, facts: HostFacts) -> None:
    with build(disk, facts, PASSTHROUGH, RAW, span=256 * MIB) as layouts:
        file = Path(layouts.guest(RAW).path)
        assert file.stat().st_blocks * 512 >= 256 * MIB
        assert disk.file.stat().st_blocks * 512 < 128 * MIB


def test_without_files_no_file_system_is_made(disk: DiskByFile, facts: HostFacts) -> None:
    with build(disk, facts, PASSTHROUGH):
        assert [name for name, _, _ in table(loop_device(disk))] == [f"voh:{RUN}:device"]


def test_spans_become_smaller_if_the_layouts_do_not_fit(disk: DiskByFile, facts: HostFacts) -> None:
    with build(disk, facts, PASSTHROUGH, RAW, CACHED, span=4096 * MIB) as layouts:
        assert layouts.span == 308 * MIB
        assert Path(layouts.guest(CACHED).path).stat().st_size == layouts.span


def test_a_disk_that_is_too_small_is_refused(disk: DiskByFile, facts: HostFacts) -> None:
    with pytest.raises(Unsupported, match="no room for"), build(replace(disk, size=64 * MIB), facts, RAW):
        pass


def test_nothing_is_left_when_measuring_fails(disk: DiskByFile, facts: HostFacts) -> None:
    with pytest.raises(ZeroDivisionError), build(disk, facts, PASSTHROUGH, RAW):
        raise ZeroDivisionError


@pytest.mark.parametrize("tool", ["losetup", "sfdisk", "mkfs.ext4", "mount", "fallocate"])
def test_nothing_is_left_when_a_step_fails_and_the_step_is_named(
    disk: DiskByFile,
    facts: HostFacts,
    tool: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    break_tool(tool, monkeypatch, tmp_path_factory.mktemp("broken"))
    said = rf"host here: it is broken \(`{tool} .*ended with status 32"
    with pytest.raises(HostError, match=said), build(disk, facts, PASSTHROUGH, RAW):
        pass
    monkeypatch.undo()


def test_after_failed_commands_nothing_is_left_or_reap_removes_it_by_the_log(
    disk: DiskByFile, facts: HostFacts, tmp_path: Path
) -> None:
    require_clean_after_failures(disk, facts, tmp_path, step=3)


def require_clean_after_failures(disk: DiskByFile, facts: HostFacts, tmp_path: Path, *, step: int) -> None:
    """Each `step`-th command of a file system and a device is made to fail; tests/soak has all of them."""
    before = traces(tmp_path)

    def layouts(runner: Runner) -> AbstractContextManager[Layouts]:
        log = CreationLog(runner, RUN, str(tmp_path / "created"))
        return built(log, facts, [disk], [PASSTHROUGH, RAW], span=16 * MIB)

    def check(outcome: str) -> None:
        if outcome == "left":
            entries = read_log(RUNNER, str(tmp_path / "created"))
            assert entries
            reap(RUNNER, NO_HYPERVISOR, entries)
        assert traces(tmp_path) == before

    found = outcomes(RUNNER, layouts, check, step=step)
    # The mount, the partitions, the loop device and its file are removed, each by a command, and one for its record.
    assert found[-1 - 9 // step :].count("left") >= 8 // step
    assert found[-1] == "built"
    assert "clean" in found


def break_tool(tool: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Make `tool` fail when it is asked to change something."""
    real = run("sh", "-c", f"command -v {tool}").strip()
    script = directory / tool
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" --list "*|*" -d "*) exec {real} "$@";; esac\necho it is broken >&2\nexit 32\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)


@pytest.mark.parametrize("contents", [b"", b"\0" * MIB, b"a tar archive, or an image of a VM"])
def test_an_existing_file_is_refused_and_not_changed(disk: DiskByFile, facts: HostFacts, contents: bytes) -> None:
    disk.file.write_bytes(contents)
    said = f"{disk.file}, will not be written to: the file exists already"
    with pytest.raises(SafetyError, match=said) as error, build(disk, facts, RAW):
        pass
    assert disk.file.read_bytes() == contents
    assert error.value.hint is not None
    assert "Name a path that does not exist" in error.value.hint
    disk.file.unlink()


def test_a_link_to_nothing_in_place_of_the_file_is_not_followed(disk: DiskByFile, facts: HostFacts) -> None:
    target = disk.file.parent / "elsewhere"
    disk.file.symlink_to(target)
    with pytest.raises(SafetyError, match="the file exists already"), build(disk, facts, RAW):
        pass
    assert not target.exists()
    disk.file.unlink()


def test_a_file_behind_a_loop_device_is_refused_with_its_name(disk: DiskByFile, facts: HostFacts) -> None:
    sparse(disk.file, disk.size)
    with (
        loop(disk.file) as device,
        pytest.raises(SafetyError, match=f"the file exists already, and is behind {device}"),
        build(disk, facts, RAW),
    ):
        pass
    disk.file.unlink()


def test_a_file_for_which_there_is_no_room_is_not_made(disk: DiskByFile, facts: HostFacts) -> None:
    vast = replace(disk, size=1 << 50)
    said = r"the run needs 1024 TiB, .* are free, and .* must stay free"
    with pytest.raises(SafetyError, match=said), build(vast, facts, RAW):
        pass
    assert not disk.file.exists()


def test_a_loop_device_that_is_open_for_a_moment_is_waited_for(disk: DiskByFile, facts: HostFacts) -> None:
    with build(disk, facts, RAW):
        held = os.open(loop_device(disk), os.O_RDONLY)
        closing = threading.Timer(1.0, os.close, [held])
        closing.start()
    closing.join()


def make_filesystem(device: str, stack: ExitStack, at: Path) -> None:  # noqa: ARG001
    run("mkfs.ext4", "-q", device)


def mount_filesystem(device: str, stack: ExitStack, at: Path) -> None:
    run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0", device)
    stack.enter_context(mounted(device, at))


def write_table(device: str, stack: ExitStack, at: Path) -> None:  # noqa: ARG001
    run("sfdisk", "--quiet", "--no-reread", device, text="label: dos\n")


def claim(device: str, stack: ExitStack, at: Path) -> None:  # noqa: ARG001
    """As a volume group or an array does."""
    stack.callback(os.close, os.open(device, os.O_RDONLY | os.O_EXCL))


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (make_filesystem, "there is a signature on it: ext4"),
        (mount_filesystem, "is in use: Device or resource busy"),
        (write_table, "there is a signature on it: dos"),
        (claim, "is in use: Device or resource busy"),
    ],
)
def test_a_disk_that_somebody_uses_after_the_guards_check_is_not_written_to(
    tmp_path: Path, use: Callable[[str, ExitStack, Path], None], why: str
) -> None:
    require("sfdisk", "mkfs.ext4")
    file = sparse(tmp_path / "disk.img", 64 * MIB)
    with loop(file) as device, ExitStack() as stack:
        permission = granted(device)
        use(device, stack, tmp_path / "theirs")
        run("sync")
        before = file.read_bytes()
        with (
            pytest.raises(SafetyError) as refused,
            partition_disk(
                creation_log(tmp_path), DiskByFile("loop", file, 64 * MIB, destroy=True), permission, [("a", 16 * MIB)]
            ),
        ):
            pass
        run("sync")
        assert file.read_bytes() == before
        assert f"since the guard checked it, somebody began to use {device}" in refused.value.message
        assert why in refused.value.message
        reap(RUNNER, NO_HYPERVISOR, read_log(RUNNER, str(tmp_path / "created")))
        run("sync")
        assert file.read_bytes() == before


def test_a_disk_without_destroy_is_not_created(disk: DiskByFile, facts: HostFacts) -> None:
    with (
        pytest.raises(SafetyError, match="the lab file does not have `destroy = true`"),
        build(replace(disk, destroy=False), facts, RAW),
    ):
        pass
    assert not disk.file.exists()


@pytest.mark.parametrize("tool", ["sfdisk", "wipefs"])
def test_the_refusal_of_a_host_without_the_tools_names_the_packages(
    disk: DiskByFile, facts: HostFacts, tool: str
) -> None:
    lacking = HostFacts({**facts.values, f"tool_{tool}": ""})
    with pytest.raises(Unsupported, match=f"{tool} is not installed") as error, build(disk, lacking, RAW):
        pass
    assert error.value.hint == "apt-get install fdisk util-linux"


def test_volumes_are_as_large_as_the_other_spans(disk: DiskByFile, facts: HostFacts) -> None:
    if why := find_missing_requirement(LVM.layout, facts):
        pytest.skip(why)
    with build(disk, facts, PASSTHROUGH, LVM) as layouts:
        assert int(run("blockdev", "--getsize64", layouts.guest(LVM).path)) == layouts.span
