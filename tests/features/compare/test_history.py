"""`virt-overhead history`: what machines store, which trends and change points it shows, and mistakes."""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.config.names import RunId
from harness.errors import ConfigError, HarnessError, ResultsError
from harness.features.compare.history_store import HISTORY_COLUMNS, HistoryStore
from harness.features.compare.trends import find_trends
from harness.results import Run, RunStore
from tests.features.compare.history_files import run_id, write_history
from tests.unit.command_docs import read_command
from tests.unit.replayed_runs import replayed

duckdb = pytest.importorskip("duckdb")
fsspec = pytest.importorskip("fsspec")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NOISE = 0.02


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stored(run: Run, reports: str = "reports") -> RunStore:
    store = RunStore.create(Path(reports), RunId(run.run.id))
    store.write_results(run)
    return store


def kernel(run: Run, version: str, number: int) -> Run:
    """The run, `number` days later and with this kernel."""
    info = replace(run.run, started=run.run.started + 86_400 * number)
    return replace(run, run=info, provenance={"host": {"kernel": version}})


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["history", *arguments]) == 0
    return capsys.readouterr().out


def test_the_change_points_are_written_as_gauges(capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(2)
    write_history(Path("history"), 20, 2, lambda run, _: (0.9 if run < 12 else 0.8) * chance.gauss(1, 0.005))
    said(capsys, "job0", "--store=history", "--openmetrics=changes.prom")
    lines = [line for line in Path("changes.prom").read_text().splitlines() if not line.startswith("#")]
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert values["virt_overhead_history_runs"] == 20
    assert values["virt_overhead_last_change_worse"] == 1
    assert values["virt_overhead_last_change_timestamp_seconds"] == 1.7e9 + 12 * 86_400
    assert values["virt_overhead_last_change_ratio"] == pytest.approx(0.8 / 0.9 - 1, abs=0.01)
    assert all('cell="nvme-lvm-job0"' in line for line in lines)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100, b"PAR1" + bytes(20) + b"\xff\xff\xff\x7fPAR1"])
def test_a_damaged_file_of_a_run_is_named_when_the_run_is_added_again(content: bytes) -> None:
    store = stored(replayed(1))
    history = HistoryStore.at("history")
    history.add(store, {})
    (file,) = Path("history").iterdir()
    file.write_bytes(content)
    with pytest.raises(ResultsError, match=rf"{file.name} cannot be read"):
        history.add(store, {})
    assert file.read_bytes() == content


@pytest.mark.parametrize("url", ["a\0b", "data:x", "http://[::1/x"])
def test_a_url_that_no_store_has_is_an_error_of_ours(url: str) -> None:
    with pytest.raises(HarnessError, match=r"history|--store"):
        HistoryStore.at(url).add(stored(replayed(1)), {})
    with pytest.raises(HarnessError, match=r"history|--store"):
        HistoryStore.at(url).query("SELECT 1 FROM history", {})


def test_runs_are_added_once_and_can_be_queried_by_the_user() -> None:
    ids = [stored(replayed(number)).path.name for number in (1, 2)]
    assert main(["history", "add", *ids, "--store=history", "--label=commit=4f1c2a"]) == 0
    assert main(["history", "add", ids[0], "--store=history"]) == 0
    assert sorted(path.stem for path in Path("history").iterdir()) == sorted(ids)
    sql = "SELECT count(DISTINCT run), count(*), any_value(facts) FROM read_parquet('history/*.parquet')"
    ((runs, rows, facts),) = duckdb.sql(sql).fetchall()
    assert (runs, rows) == (2, 2 * len(replayed(1).cells))
    assert '"label.commit": "4f1c2a"' in facts
    columns = parquet.read_schema(f"history/{ids[0]}.parquet").names
    assert columns == [column.name for column in HISTORY_COLUMNS]


def test_the_values_are_those_of_the_run() -> None:
    run = replayed(1)
    HistoryStore.at("history").add(stored(run), {})
    cell = run.cell("optane-lvm-randread-4k-qd32").metrics["iops"]
    (trend,) = find_trends(
        HistoryStore.at("history"), cell="lvm-randread-4k-qd32", metric=None, quantity="guest", most=9
    )
    assert trend.values[0] == pytest.approx(sum(cell.guest) / len(cell.guest), rel=0.01)
    (trend,) = find_trends(
        HistoryStore.at("history"), cell="lvm-randread-4k-qd32", metric=None, quantity="overhead", most=9
    )
    assert cell.overhead is not None
    assert trend.relative
    assert trend.values[0] == pytest.approx(1 - cell.overhead.point)


def test_a_run_that_was_changed_is_refused_and_the_stored_one_stays() -> None:
    store = stored(replayed(1))
    history = HistoryStore.at("history")
    assert history.add(store, {})
    before = Path("history", f"{store.path.name}.parquet").read_bytes()
    store.write_results(replace(replayed(2), run=replayed(1).run))
    with pytest.raises(ConfigError, match="has another run with the id"):
        history.add(store, {})
    assert Path("history", f"{store.path.name}.parquet").read_bytes() == before


def test_a_run_of_a_clock_that_was_wrong_does_not_stay_the_newest_one() -> None:
    with pytest.raises(ConfigError, match=r"began on 20\d\d-\d\d-\d\d, in the future") as caught:
        HistoryStore.at("history").add(stored(kernel(replayed(1), "6.1", 20_000)), {})
    assert "set the clock" in str(caught.value.hint)
    assert not Path("history").exists()


def test_a_run_of_a_clock_that_was_not_set_does_not_stay_the_oldest_one() -> None:
    run = replayed(1)
    with pytest.raises(ConfigError, match="began on 1970-01-01, by a clock that was not set, so it is not added"):
        HistoryStore.at("history").add(stored(replace(run, run=replace(run.run, started=60.0, finished=90.0))), {})


def test_many_machines_add_at_the_same_time_and_one_run_is_added_once() -> None:
    stores = [stored(replayed(number), reports=f"machine{number}") for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda store: HistoryStore.at("history").add(store, {}), stores * 2))
    assert sorted(added) == [False] * 4 + [True] * 4
    assert len(list(Path("history").iterdir())) == 4


def test_an_object_store_has_the_same_runs_as_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    url = "memory://bucket/history"
    ids = [stored(replayed(number)).path.name for number in (1, 2)]
    for where in (url, "history"):
        assert main(["history", "add", *ids, f"--store={where}"]) == 0
    assert main(["history", "add", ids[0], f"--store={url}"]) == 0
    capsys.readouterr()
    assert said(capsys, f"--store={url}") == said(capsys, "--store=history")
    assert len(fsspec.filesystem("memory").ls("/bucket/history")) == 2


def test_a_change_is_shown_with_the_kernel_that_changed_at_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(24):
        run = replayed(number, factor=1.0 if number < 14 else 0.85, noise=0.03)
        HistoryStore.at("reports/history").add(stored(kernel(run, "6.1" if number < 14 else "6.12", number)), {})
    out = said(capsys, "host-randread-4k-qd32", "--html=page.html")
    change = f"run {replayed(14).run.id}"
    lines = out.splitlines()
    assert lines[0] == "1 cell, 24 runs; change points in 1 of the cells"
    assert lines[2].startswith(f"  {change}: ")
    assert "worse: value x 0.8" in lines[2]
    assert lines[3] == f"    with {change}, host.kernel: 6.1 -> 6.12"
    page = Path("page.html").read_text()
    assert "1 of 1 cells changed" in page
    assert "host.kernel: 6.1 -&gt; 6.12" in page
    assert said(capsys, "host-randread-4k-qd32", "--runs=8").endswith("in the newest of 8 runs\n")


PLANTED: Mapping[int, tuple[int, float]] = {1: (60, -0.05), 4: (100, 0.1), 7: (150, -0.1), 9: (197, -0.12)}
"""By cell, the run with the change, and the change of the guest's share."""


def history_of_200_runs(planted: Mapping[int, tuple[int, float]]) -> HistoryStore:
    chance = random.Random(16)

    def share(run: int, cell: int) -> float:
        at, change = planted.get(cell, (0, 0.0))
        return 0.8 * (1 + (change if run >= at else 0)) * (1 + chance.gauss(0, NOISE))

    write_history(Path("history"), 200, 10, share, lambda run: {"host.qemu": "10.0" if run < 100 else "10.1"})
    return HistoryStore.at("history")


def test_planted_changes_in_200_runs_are_found_within_3_runs_and_no_others() -> None:
    found = find_trends(history_of_200_runs(PLANTED), cell="", metric=None, quantity="overhead", most=200)
    shifts = {int(trend.cell.removeprefix("nvme-lvm-job")): trend.shifts for trend in found}
    for cell, (at, change) in PLANTED.items():
        (shift,) = shifts.pop(cell)
        assert abs(shift.at - at) <= 3
        assert shift.better == (change > 0)
        changed = [(each.run, each.what) for each in shift.nearby]
        assert changed == ([(run_id(100), "host.qemu")] if cell == 4 else [])
    assert not any(shifts.values())


def test_200_runs_without_a_planted_change_have_at_most_one_change_point() -> None:
    found = find_trends(history_of_200_runs({}), cell="", metric=None, quantity="overhead", most=200)
    assert sum(len(trend.shifts) for trend in found) <= 1


def test_mistakes_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    run = stored(replayed(1)).path.name
    interrupted = stored(replace(replayed(2), run=replace(replayed(2).run, status="interrupted"))).path.name
    for arguments, message in (
        (["--store=history"], "the history in history has no run"),
        (["add"], "history add: no run"),
        (["add", interrupted], "is not complete (interrupted), so it is not added"),
        (["add", run, "--label=commit"], "--label commit: it must be NAME=VALUE"),
        (["one", "two"], "history takes one CELL, not 2"),
        (["--store=absent://bucket"], "--store absent://bucket: Protocol not known: absent"),
    ):
        assert main(["history", *arguments]) == 2
        assert message in capsys.readouterr().err
    main(["history", "add", run])
    assert main(["history", "xfs"]) == 2
    assert "it has 6 cells, for example optane-host-randread-4k-qd1" in capsys.readouterr().err


def test_a_damaged_file_is_an_error_that_names_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    main(["history", "add", stored(replayed(1)).path.name, "--store=history"])
    Path("history/other.parquet").write_text("no Parquet")
    assert main(["history", "--store=history"]) == 1
    assert "the history in history cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("overhead", math.nan),
        ("host_mean", math.inf),
        ("started", math.nan),
        ("started", None),
        ("metric", "of-no-run"),
        ("run", None),
    ],
)
def test_a_file_with_a_value_that_no_run_has_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, value: object
) -> None:
    write_history(tmp_path / "history", 3, 1, lambda _run, _cell: 0.9)
    file = sorted((tmp_path / "history").iterdir())[1]
    table = parquet.read_table(file)
    at = table.schema.get_field_index(column)
    changed = pyarrow.array([value] * len(table), table.schema.field(column).type)
    parquet.write_table(table.set_column(at, column, changed), file)
    assert main(["history", f"--store={tmp_path / 'history'}"]) == 1
    assert f"{file} cannot be used: it has values that no run has\n  -> each .parquet" in capsys.readouterr().err


def test_a_copy_of_a_file_does_not_count_as_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_history(tmp_path / "history", 3, 1, lambda _run, _cell: 0.9)
    file = sorted((tmp_path / "history").iterdir())[1]
    copy = shutil.copy(file, tmp_path / "history" / "copy.parquet")
    assert main(["history", f"--store={tmp_path / 'history'}"]) == 1
    why = f"{copy} cannot be used: it has run {file.stem}, whose file has another name"
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("facts", ["{", "[1]", "null"])
def test_facts_that_are_damaged_are_named_with_their_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: str
) -> None:
    write_history(tmp_path / "history", 30, 1, lambda run, _cell: 0.9 if run < 15 else 0.5)
    for file in (tmp_path / "history").iterdir():
        table = parquet.read_table(file)
        changed = table.set_column(table.schema.get_field_index("facts"), "facts", [[facts] * len(table)])
        parquet.write_table(changed, file)
    assert main(["history", f"--store={tmp_path / 'history'}"]) == 1
    assert "virt-overhead: the facts of run 2" in capsys.readouterr().err


def test_a_directory_that_cannot_be_read_is_not_an_empty_history() -> None:
    main(["history", "add", stored(replayed(1)).path.name, "--store=history"])
    Path("history").chmod(0)
    no_rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*no_rights, sys.executable, "-m", "harness.cli", "history", "--store=history"]
    shown = subprocess.run(command, check=False, capture_output=True, text=True)
    Path("history").chmod(0o700)
    assert (shown.returncode, shown.stderr.splitlines()[0]) == (
        1,
        "virt-overhead: the history in history cannot be used: Permission denied",
    )


def test_a_file_is_not_an_empty_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["history", f"--store={tmp_path / 'file'}"]) == 1
    assert "/file cannot be used: Not a directory\n" in capsys.readouterr().err


def test_without_duckdb_the_message_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["history", "add", stored(replayed(1)).path.name])
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    assert main(["history"]) == 2
    assert "pip install 'virt-overhead[history]'" in capsys.readouterr().err


def test_the_docs_explain_every_column_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    docs = (Path(__file__).parents[3] / "docs/history.md").read_text()
    assert [column.name for column in HISTORY_COLUMNS if f"`{column.name}`" not in docs] == []
    with pytest.raises(SystemExit):
        main(["history", "--help"])
    options = {word.strip(",[]") for word in capsys.readouterr().out.split() if word.startswith(("--", "[--"))}
    reference = read_command("history")
    assert [option for option in options - {"--help", "--debug"} if f"`{option}" not in reference] == []
