"""Runs that end at random moments, by kill -9 and SIGTERM, and an owner who then puts files of his own at their paths.

Nothing of the owner is touched, and nothing of the run stays. The host is reached over SSH. Runs measure by turns a
directory in use and a disk that is a file (`file =`), because these leave files. VIRT_OVERHEAD_KILLS and
VIRT_OVERHEAD_SEED are as in test_kill.py.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.pin import CREATED_DIRECTORY
from harness.lab.transport.ssh import SshRunner
from tests.e2e.machines import background, command, lab_file, on_lab_host, pytest_command, traces
from tests.soak.own_disks import own_disks
from tests.soak.storages_in_use import EXT4
from tests.soak.test_kill import KILLS, LONGEST_SECONDS, SEED

DISK = NullBlkDisk("owner", 4 << 30, completion_ns=100_000, queue_depth=64)
SELECTED = {
    "storage": ("-k", "storage and (raw or qcow2) and not blk and not uring and randread-4k"),
    "optane": ("-k", "optane and (lvm or raw) and not cached and randread-4k"),
}
PROFILE = ("--profile=smoke", "--rounds=2")
_TARGETS = {
    "storage": f'[host.kvm1.storage.storage]\ndirectory = "{EXT4.at}"\n',
    "optane": f'[host.kvm1.disk.optane]\nfile = "{EXT4.at}/disk.img"\nsize = "2 GiB"\ndestroy = true\n',
}
# $1: "whole" or "inside", $2...: paths. The owner removes what a run left at each path, or the files in the directory
# that it left there, and makes files of his own. ext4 gives them the inodes that became free, if nobody has the old
# files open. Prints the owner's files.
_REPLACE = """
how=$1 && shift
replace() { rm -rf "$1" && echo "of the owner: $1" >"$1" && echo "$1"; }
for path; do
    [ -d "${path%/*}" ] || continue
    if [ "$how" = inside ] && [ -d "$path" ]; then
        for file in "$path"/*; do [ ! -f "$file" ] || replace "$file" || exit; done
    else
        replace "$path" || exit
    fi
done
sync
"""
_SUMS = 'for file; do sha256sum "$file" || exit; done'
_LOG = f"find {CREATED_DIRECTORY} -name '*.json' -exec cat {{}} + 2>/dev/null; true"


@dataclass(frozen=True, slots=True)
class OwnersHost:
    """The lab host, with a file system of its owner."""

    runner: SshRunner

    def run(self, script: str, *words: str) -> str:
        return self.runner.run(["sh", "-c", EXT4.script(script), "sh", *words], deadline=180).stdout

    def read_state(self) -> str:
        """All that a run could leave, and what is on the owner's file system."""
        return traces(self.runner) + self.run(EXT4.listing)

    def read_recorded_paths(self) -> list[str]:
        """The paths of files on the owner's file system that the creation log names."""
        records = [json.loads(line) for line in self.run(_LOG).splitlines()]
        paths = {value for record in records for value in record.values() if str(value).startswith(f"{EXT4.at}/")}
        return sorted(paths)


@pytest.fixture(scope="module")
def owners_host() -> Iterator[OwnersHost]:
    with on_lab_host() as runner, own_disks(runner, DISK):
        host = OwnersHost(runner)
        host.run(EXT4.make, f"/dev/{DISK.device}")
        try:
            yield host
        finally:
            host.run(EXT4.remove)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
@pytest.mark.parametrize("number", range(KILLS))
def test_an_owner_keeps_the_files_that_he_put_where_a_run_ended(
    tmp_path: Path, owners_host: OwnersHost, number: int, ending: signal.Signals
) -> None:
    target = ("storage", "optane")[number % 2]
    path = lab_file(tmp_path)
    path.write_text(path.read_text().partition("[host.kvm1.disk")[0] + _TARGETS[target])
    before = owners_host.read_state()
    moment = random.Random(SEED * 1000 + number * 2 + (ending == signal.SIGTERM)).uniform(2.0, LONGEST_SECONDS)
    with background(pytest_command(tmp_path, f"--lab={path}", *SELECTED[target], *PROFILE)) as run:
        try:
            output, _ = run.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            os.kill(run.pid, ending)
            output, _ = run.communicate(timeout=180)
    where = f"seed {SEED}, run {number}, {target}, {ending.name} after {moment:.1f} s"
    if ending == signal.SIGTERM:
        assert owners_host.read_state() == before, f"{where}: the run left something:\n{output}"
    paths = owners_host.read_recorded_paths()
    how = ("whole", "inside")[number // 2 % 2]
    files = owners_host.run(_REPLACE, how, *paths).splitlines()
    sums = owners_host.run(_SUMS, *files)
    where += f", the owner's files ({how}): {files}"

    reaped = command("reap", f"--lab={path}", "--yes")
    assert owners_host.run(_SUMS, *files) == sums, f"{where}: {reaped.stdout}{reaped.stderr}"
    if how == "whole" or not files:
        assert reaped.returncode == 0, f"{where}: {reaped.stdout}{reaped.stderr}"
    # A directory of the run can go when the owner has taken his files out of it.
    owners_host.run('for file; do rm -f "$file"; done', *files)
    again = command("reap", f"--lab={path}", "--yes")
    assert again.returncode == 0, f"{where}: {reaped.stdout}{reaped.stderr}{again.stdout}{again.stderr}"
    assert owners_host.read_state() == before, f"{where}: {reaped.stdout}{again.stdout}"
    assert "nothing was left" in command("reap", f"--lab={path}", "--yes").stdout, where
