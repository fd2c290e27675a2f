"""What reports, cards and comparisons say about imported results: only what is known of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis import Estimate
from harness.features.answers.card import card, markdown
from harness.features.compare.comparison import list_differences
from harness.report.contents import headline_of
from harness.report.markdown import markdown_table
from harness.report.modes import Comparison, ModeSummary, headline
from harness.report.section import find_sections
from harness.results import Run
from tests.features.exchange.exchanged import document, fio_file, import_here, imported


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(name: str, iops: Sequence[float], **options: str) -> list[str]:
    """A result for each of `iops`, a minute apart."""
    for number, value in enumerate(iops):
        found = document(fio_file("3.33"))
        side = found["jobs"][0]["read"]
        ios = round(value * side["runtime"] / 1000)
        # The latencies must fit to the I/Os in flight.
        latency = {"mean": 4e9 / value, "min": 1000, "max": int(8e9 / value), "stddev": 1.0}
        side |= {"total_ios": ios, "io_bytes": ios * 4096, "iops": ios * 1000 / side["runtime"]}
        side |= {"bw_bytes": side["io_bytes"] * 1000 // side["runtime"]}
        side |= {"clat_ns": latency, "lat_ns": latency, "slat_ns": {"mean": 0.0}}
        found["jobs"][0]["job options"] |= options
        found["timestamp_ms"] += number * 60_000
        Path(f"{name}{number}.json").write_text(json.dumps(found))
    return [f"{name}{number}.json" for number in range(len(iops))]


def imported_run(host: Sequence[float], guest: Sequence[float], **options: str) -> Run:
    first, *others = files("guest", guest, **options)
    assert import_here("--host", *files("host", host), "--guest", f"vm={first}", *others) == 0
    return imported().read_results()


def sentence(run: Run) -> str:
    return headline_of(find_sections(run)[0]).sentence


def test_an_interval_from_much_better_to_much_worse_is_undecided() -> None:
    run = imported_run([1000, 1300, 800], [1300, 900, 1100])
    assert sentence(run).startswith("disk: it is undecided whether `vm` loses throughput (")
    assert sentence(run) in card(run).headline


@pytest.mark.parametrize("guest", [900.0, 1100.0])
def test_one_sample_is_no_conclusion(guest: float) -> None:
    assert "`vm` has one sample, which shows no loss and rules out none" in sentence(imported_run([1000], [guest]))


def test_no_loss_is_stated_only_if_more_than_two_percent_is_ruled_out() -> None:
    close = imported_run([1000, 1010, 990, 1005, 995, 1000], [1001, 1012, 990, 1004, 996, 1001])
    assert "`vm` loses nothing (" in sentence(close)
    assert "`vm` loses 10." in sentence(imported_run([1000, 1010, 990, 1005], [900, 905, 890, 900]))


def of(*intervals: tuple[float, float | None, float | None]) -> str:
    """The headline of modes `a`, `b`, ... that cannot be told apart, with these overheads and their intervals."""
    modes = tuple(
        ModeSummary("abc"[at], 1, Estimate(point, low, high, 5), None, Estimate(point, low, high, 5))
        for at, (point, low, high) in enumerate(intervals)
    )
    names = tuple(mode.mode for mode in modes)
    return headline("d", Comparison(modes, names, names, 1, 1, (), (), (), "95 %")).sentence


def test_modes_that_cannot_be_told_apart_lose_what_their_intervals_show() -> None:
    apart = "d: `a` and `b` cannot be told apart: "
    assert of((0.1, 0.05, 0.15), (0.12, 0.06, 0.2)) == f"{apart}they lose 10.0 % to 12.0 %"
    assert of((0.0, -0.01, 0.01), (0.01, -0.01, 0.02)) == f"{apart}they lose nothing (0.0 % to 1.0 %)"
    assert of((0.1, -0.2, 0.3), (0.0, -0.3, 0.3)) == (
        f"{apart}it is undecided whether they lose throughput (0.0 % to 10.0 %)"
    )
    assert of((0.1, 0.05, 0.15), (0.12, -0.1, 0.3)) == (
        f"{apart}they lose 10.0 % to 12.0 %, and a loss is shown for `a` only"
    )


def test_nothing_claims_that_virt_overhead_measured_an_imported_run() -> None:
    run = imported_run([1000, 1010, 990], [900, 905, 890])
    texts = [markdown(card(run), "card.png"), markdown_table(run), (imported().path / "index.html").read_text()]
    for text in texts:
        for claim in (
            "in short alternating slices",
            "easured with virt-overhead",
            "alternate,",
            "random order",
            "is responsible",
        ):
            assert claim not in text.partition('type="application/gzip"')[0], claim
    assert "Results of fio from elsewhere: who measured them, and how, is not known" in texts[0]
    assert "Imported by virt-overhead" in texts[0]


def test_two_imported_runs_differ_in_versions_and_options_and_not_in_their_files() -> None:
    before = imported_run([1000, 1010], [900, 905])
    after = imported_run([1000, 1010], [900, 905], size="2g")
    changed = [
        each.what for each in list_differences(before, after, [("imported", "imported")], (), same_machine=False)
    ]
    assert changed == ["imported.guest:vm.randread-4k-qd4.size"]
    assert import_here("--host", fio_file("3.36"), "--guest", f"vm={fio_file('3.41')}") == 0
    other = imported().read_results()
    changed = [
        each.what for each in list_differences(before, other, [("imported", "imported")], (), same_machine=False)
    ]
    assert {"imported.host.fio", "imported.guest:vm.fio"} <= set(changed)
    assert not [what for what in changed if "sha256" in what or what.endswith((".from", ".arm"))]
