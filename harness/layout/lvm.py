"""Thick LVM volumes on a partition of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from harness.errors import HostError
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner
from harness.layout.source import BlockSource

MIB = 1024**2
OVERHEAD = 4 * MIB
"""The physical volume's metadata before its first extent."""


def group_name(run_id: str) -> str:
    return f"{TAG}-{run_id}"


@contextmanager
def volumes(
    runner: Runner, partition: str, run_id: str, names: Sequence[str], size: int
) -> Iterator[dict[str, BlockSource]]:
    """One linear volume of `size` bytes per name, in a volume group that is removed at the end."""
    group = group_name(run_id)
    try:
        runner.run(["vgcreate", "--yes", "--quiet", group, partition], deadline=60)
        for name in names:
            # Neither zeroed nor wiped: it is filled before anything is read.
            options = ["--yes", "--quiet", "--zero", "n", "--wipesignatures", "n"]
            runner.run(["lvcreate", *options, "--size", f"{size}b", "--name", name, group], deadline=60)
        yield {name: BlockSource(f"/dev/{group}/{name}", "block", 0, size) for name in names}
    finally:
        with suppress(HostError):
            runner.run(["vgremove", "--yes", "--quiet", "--force", group], deadline=60)
            runner.run(["pvremove", "--yes", "--quiet", "--force", partition], deadline=60)
