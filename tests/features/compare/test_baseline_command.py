"""`virt-overhead baseline`, and comparisons with a baseline: what is stored and printed, and the exit status."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.config.names import RunId
from harness.results import Run, RunStore
from tests.unit.replayed_runs import replayed


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stored(run: Run, reports: str = "reports") -> str:
    """Store the run, and return its id."""
    RunStore.create(Path(reports), RunId(run.run.id)).write_results(run)
    return run.run.id


def on(run: Run, host: str) -> Run:
    return replace(run, lab=replace(run.lab, host=host))


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status, and what was printed."""
    status = main(["compare", *arguments])
    return status, "".join(capsys.readouterr())


def test_a_baseline_stays_when_its_run_is_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = stored(replayed(1, noise=0.02)), stored(replayed(2, noise=0.02))
    assert main(["baseline", "set", "main", first]) == 0
    shutil.rmtree(Path("reports", first))
    status, out = compared(capsys, "--baseline", "main", second)
    assert status == 0
    assert f"before: run {first}" in out
    assert "equal: of 8 figures, 8 equal (margin 5.0 %)" in out
    assert main(["baseline", "list"]) == 0
    assert capsys.readouterr().out.startswith(f"main: run {first} of 2025")


def test_a_baseline_has_a_run_of_each_host(capsys: pytest.CaptureFixture[str]) -> None:
    for number, host in enumerate(("one", "two")):
        main(["baseline", "set", "main", stored(on(replayed(number), host))])
    _, out = compared(capsys, "--baseline", "main", stored(on(replayed(7), "two")))
    assert f"before: run {replayed(1).run.id}" in out
    status, out = compared(capsys, "--baseline", "main", stored(on(replayed(8), "three")))
    assert status == 2
    assert 'baseline "main" has no run of host three; it has runs of: one, two' in out


@pytest.mark.parametrize(
    ("factor", "options", "status"),
    [(0.9, [], 3), (1.1, [], 0), (0.9, ["--margin=15%"], 0), (1.0, ["--margin=0.1", "--inconclusive=fail"], 4)],
)
def test_the_exit_status_is_that_of_the_outcome(factor: float, options: list[str], status: int) -> None:
    runs = [stored(replayed(1, noise=0.02)), stored(replayed(2, factor=factor, noise=0.02))]
    assert main(["compare", *runs, *options]) == status


def test_another_cpu_rules_out_a_baseline_but_not_a_comparison_of_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (replace(replayed(each), provenance={"host": {"cpu": f"CPU {each}"}}) for each in (1, 2))
    ids = [stored(before), stored(after)]
    main(["baseline", "set", "main", ids[0]])
    status, out = compared(capsys, *ids)
    assert status == 0
    assert "may be the cause of a change (1)\n  host.cpu: CPU 1 -> CPU 2" in out
    status, out = compared(capsys, "--baseline=main", ids[1])
    assert status == 5
    assert "not comparable: of 8 figures" in out
    assert "cannot be compared, because they were measured differently: host.cpu: CPU 1 -> CPU 2." in out


def test_another_profile_rules_a_comparison_out_and_another_kernel_does_not() -> None:
    before, other = replayed(1), replayed(2)
    kernel = replace(other, provenance={"host": {"kernel": "6.12"}})
    profile = replace(replayed(3), run=replace(replayed(3).run, profile="standard"))
    ids = [stored(each) for each in (before, kernel, profile)]
    assert main(["compare", *ids[:2]]) == 0
    assert main(["compare", ids[0], ids[2]]) == 5


def test_several_runs_are_compared_with_the_first_one(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [stored(replayed(1, noise=0.02)), *(stored(replayed(each, factor=1 / each, noise=0.02)) for each in (2, 3))]
    status, out = compared(capsys, *runs, "--markdown", "--html=page.html")
    assert status == 3
    assert [line for line in out.splitlines() if "of 8 figures" in line] == [
        "**worse: of 8 figures, 8 worse (margin 5.0 %)**"
    ] * 2
    page = Path("page.html").read_text()
    # In each comparison, 8 arms and 4 figures over all jobs.
    assert page.count('<td><span class="verdict exceeds">worse</span></td>') == 24
    assert all(f"{runs[0]} -&gt; {other}" in page for other in runs[1:])
    assert "<script" not in page


def test_mistakes_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(replayed(1))
    interrupted = stored(replace(replayed(2), run=replace(replayed(2).run, status="interrupted")))
    empty = stored(replace(replayed(3), cells=(), groups=()))
    main(["baseline", "set", "main", run])
    for arguments, said in (
        (["compare", run], "one run: there is nothing to compare it with"),
        (["compare", run, "--baseline=mian"], 'no baseline "mian" in reports/baselines; allowed: main (did you mean'),
        (["baseline", "set", "a/b", run], "baseline a/b: not a valid name"),
        (["baseline", "set", "next", interrupted], "is not complete (interrupted), so it cannot be a baseline"),
        (["baseline", "set", "next", empty], "has no measured cell, so nothing could be compared with it"),
        (["compare", run, interrupted, "--html=/absent/page.html"], "--html /absent/page.html cannot be written"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compare", run, run, "--margin=0"])
    assert "allowed: percent above 0" in capsys.readouterr().err


def test_without_a_baseline_the_list_says_how_to_set_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "list"]) == 0
    assert "set one with: virt-overhead baseline set NAME RUN" in capsys.readouterr().out
