"""Two workers of xdist and one host, for real. tests/unit/test_plugin.py shows which worker gets which cells."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from harness.results import Measurement, RunStore
from tests.e2e.machines import measure


def test_two_cells_of_one_host_never_measure_at_the_same_time_under_xdist(tmp_path: Path) -> None:
    selected = "(optane or sata_ssd) and passthrough and randread"
    done = measure(tmp_path, "-n", "2", "-k", selected, "--profile=smoke", "--rounds=1", "-v")
    assert done.returncode == 0, done.stdout
    # The blocks of one round may leave it open whether the budget is kept.
    assert done.stdout.count("PASSED") + done.stdout.count("INCONCLUSIVE") == 2
    journals = [path for path in tmp_path.glob("*/journal.jsonl") if not path.parent.is_symlink()]
    spans = sorted(span for path in journals for span in _spans(path))
    assert len(spans) == 2  # disks
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start


def _spans(journal: Path) -> list[tuple[float, float]]:
    """When each group of a run was measured, from its first slice to its last."""
    groups: dict[str, list[Measurement]] = {}
    for each in RunStore.open(journal.parent).read_journal().measurements:
        groups.setdefault(each.group, []).append(each)
    return [
        (min(each.started for each in several), max(each.started + each.seconds for each in several))
        for several in groups.values()
    ]
