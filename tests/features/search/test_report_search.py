"""Searches in the report: the same loads in the sentences, the tables, the chart, the terminal and in Markdown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.features.search.curve import LimitedBy
from harness.features.search.report import load_words, search_sentences
from harness.features.search.request import SearchArm, SearchRecord
from harness.report.markdown import markdown_table
from harness.report.terminal import summary_lines
from harness.results import Run, RunStore
from harness.scenario.scenario import PRESETS
from tests.build import RUN_ID, with_records
from tests.features.search.queueing import searched_run, searching
from tests.unit import killed_campaign
from tests.unit.pages import figures, page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    here: Path = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        killed_campaign.record()
        modes = tuple(mode for mode in PRESETS if mode.name in ("host", "passthrough", "lvm"))
        return searched_run(RunStore.create(here / "reports", RUN_ID), replace(searching(), modes=modes))


KEY = "disk1-search1"


def sentences(run: Run) -> tuple[str, ...]:
    (search,) = run.of(SearchRecord)
    return search_sentences(search, ("passthrough", "lvm"))


def changed(run: Run, **changes: object) -> Run:
    """The run with these changes of the guest's arm in mode lvm."""
    (search,) = run.of(SearchRecord)
    arms = tuple(_changed(arm, changes) if arm.arm == "guest:lvm" else arm for arm in search.arms)
    return with_records(run, "searches", (replace(search, arms=arms),))


def _changed(arm: SearchArm, changes: dict[str, object]) -> SearchArm:
    return replace(arm, **changes)  # type: ignore[arg-type]


def sentence_of_lvm(run: Run) -> str:
    (found,) = (each for each in sentences(run) if "mode lvm" in each)
    return found


def test_a_sentence_per_mode_compares_the_guest_its_twin_and_the_host(run: Run) -> None:
    assert len(sentences(run)) == 2
    sentence = sentence_of_lvm(run)
    assert sentence.startswith("randread-4k-qd32 at p99 < 500 us: the VM in mode lvm sustains 40")
    assert "; its twin sustains 101" in sentence
    assert "; the host sustains 111" in sentence
    assert sentence.count(" IOPS [") == 3


def test_page_terminal_and_markdown_show_the_loads(run: Run) -> None:
    sentence = sentence_of_lvm(run)
    assert sentence in summary_lines(run)
    guest = next(arm for arm in run.of(SearchRecord)[0].arms if arm.arm == "guest:lvm")
    assert (
        f"| `guest:lvm` | {load_words(guest).replace('[', chr(92) + '[').replace(']', chr(92) + ']')} |"
        in markdown_table(run)
    )
    assert "the VM in mode lvm sustains" in page(run).text


def test_the_page_has_a_row_for_each_rate_of_each_arm(run: Run) -> None:
    rows = [row for row in page(run).rows if len(row) == 8 and row[0] in ("host", "twin:lvm", "guest:lvm")]
    (search,) = run.of(SearchRecord)
    assert len(rows) == sum(len(arm.rates) for arm in search.arms if arm.arm != "guest:passthrough")
    assert {row[1] for row in rows} > {"full speed"}


def test_the_chart_has_the_curve_of_each_arm_and_its_result_on_the_bound(run: Run) -> None:
    found = figures(run)[KEY]
    arms = {arm.arm: arm for arm in run.of(SearchRecord)[0].arms}
    for name, arm in arms.items():
        _, curve, result = (trace for trace in found["data"] if trace["meta"] == name)
        assert len(curve["x"]) == len([rate for rate in arm.rates if rate.latency is not None])
        assert (result["x"], result["y"]) == ([arm.iops], [pytest.approx(500)])
    assert len(found["data"]) == 3 * len(arms)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"doubt": "bytes guest:lvm"}, "the VM in mode lvm: not a result: bytes guest:lvm;"),
        ({"limited_by": None, "iops": None, "low": None, "high": None}, "the VM in mode lvm: too few samples;"),
        ({"limited_by": LimitedBy.LOWEST, "iops": None, "low": None}, "the VM in mode lvm: none, not even 6 1"),
        (
            {"limited_by": LimitedBy.HIGHEST, "iops": 30_000.0, "high": None},
            "the VM in mode lvm sustains 30 000 IOPS or more (the highest rate measured);",
        ),
        (
            {"limited_by": LimitedBy.FULL_SPEED, "iops": 49_000.0, "low": 48_900.0, "high": 49_100.0},
            "the VM in mode lvm sustains 49 000 IOPS [48 900, 49 100] (its full speed);",
        ),
        ({"low": None, "high": 45_000.0}, " IOPS [0, 45 000];"),
    ],
)
def test_the_sentence_says_what_limits_the_load(run: Run, changes: dict[str, object], words: str) -> None:
    assert words in sentence_of_lvm(changed(run, **changes))


def test_an_arm_that_is_not_a_result_has_no_marker_in_the_chart(run: Run) -> None:
    doubtful = changed(run, doubt="bytes guest:lvm")
    found = figures(doubtful)[KEY]
    assert len([trace for trace in found["data"] if trace["meta"] == "guest:lvm"]) == 2


def test_a_run_without_searches_has_no_such_part(run: Run) -> None:
    plain = with_records(run, "searches", ())
    assert "Highest load within a bound" in page(run).text
    assert "Highest load within a bound" not in page(plain).text
