"""`virt-overhead export`: what other tools read from a run, of an import and of a run of virt-overhead."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import merged, percentile
from harness.cli import main
from harness.config.names import RunId
from harness.features.exchange.exporting import COLUMNS
from harness.model.job import Job
from harness.model.mode import Cell
from harness.results import (
    CellContext,
    Efficiency,
    GroupRecord,
    LabInfo,
    Measurement,
    Run,
    RunInfo,
    RunStore,
    assemble,
)
from harness.scenario.scenario import PRESETS
from tests.features.exchange.exchanged import RECORDED, import_bench_fio, imported

JOB = Job("randread", 4096, iodepth=32, ramp=0.0, seconds=0.5)
PNG = b"\x89PNG\r\n"


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def own_run() -> RunStore:
    """A run with the two recorded blocks of a run of virt-overhead: host, twin and guest on LVM."""
    store = RunStore.create(Path("reports"), RunId("20260101-120000-0001"))
    for name in ("own-host.json", "own-guest.json"):
        store.save_raw(name, (RECORDED / name).read_text())
    store.journal_path.write_bytes((RECORDED / "own-journal.jsonl").read_bytes())
    cells = [Cell("optane", "optane", mode, JOB) for mode in PRESETS if mode.name in ("host", "lvm")]
    contexts = {cell.id: CellContext("lab", "optane-batch1", 64 << 20) for cell in cells}
    records = assemble(cells, store.read_journal().measurements, contexts)
    info = RunInfo(store.path.name, 0.0, 1.0, "pytest", "smoke", 1, "complete", {}, {}, Efficiency.of(1.0, 1.0))
    lab = LabInfo("lab", "embedded", "kvm", representative=False, why="emulated")
    group = GroupRecord("optane-batch1", "optane", (), (), None, None, ())
    store.write_results(Run(1, info, lab, {}, (group,), tuple(records)))
    return store


def export(*arguments: str | Path) -> int:
    return main(["export", *map(str, arguments)])


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def of_arm(store: RunStore, arm: str) -> list[Measurement]:
    return [each for each in store.read_journal().measurements if each.arm == arm]


def job_in(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())["jobs"][0]
    return found


def test_csv_has_a_row_for_each_measurement_with_what_identifies_it() -> None:
    store = own_run()
    assert export("--csv", "run.csv") == 0
    measurements = store.read_journal().measurements
    found = rows("run.csv")
    assert [(row["arm"], float(row["iops"]), row["raw"]) for row in found] == [
        (each.arm, each.metrics["iops"], each.raw) for each in measurements
    ]
    guest = next(row for row in found if row["arm"] == "guest:lvm")
    expected = {"disk": "optane", "mode": "lvm", "rw": "randread", "bs": "4096", "iodepth": "32", "numjobs": "1"}
    assert guest.items() >= (expected | {"cell": "optane-lvm-randread-4k-qd32", "counts": "true"}).items()


def test_an_abandoned_round_is_in_the_table_but_does_not_count() -> None:
    store = own_run()
    text = store.journal_path.read_text()
    gone = {"event": "abandoned", "group": "optane-batch1", "round": 2, "measurements": None, "why": "ended"}
    store.journal_path.write_text(text + json.dumps(gone) + "\n")
    assert export("--csv", "run.csv", "--fio-plot", "tree") == 0
    assert {row["counts"] for row in rows("run.csv")} == {"false"}
    assert list(Path().glob("tree/**/*.json")) == []


def test_parquet_has_the_same_values_with_types() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import_bench_fio()
    assert export("--csv", "run.csv", "--parquet", "run.parquet") == 0
    table = parquet.read_table("run.parquet").to_pylist()
    assert [str(row["iops"]) for row in table] == [row["iops"] for row in rows("run.csv")]
    assert {type(row["iodepth"]) for row in table} == {int}
    assert {row["counts"] for row in table} == {True}


def test_parquet_without_pyarrow_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_bench_fio()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert export("--parquet", "run.parquet") == 2
    assert "pip install 'virt-overhead[parquet]'" in capsys.readouterr().err
    assert not Path("run.parquet").exists()


@pytest.mark.parametrize("arm", ["host", "twin:lvm", "guest:lvm"])
def test_the_slices_of_an_arm_are_merged_as_fio_would_have_counted_them(arm: str) -> None:
    slices = of_arm(own_run(), arm)
    assert export("--fio-plot", "tree") == 0
    entry = job_in(f"tree/optane/{arm.replace(':', '-')}/4k/randread-32-1.json")
    side = entry["read"]
    ios = [sum(each.histogram.values()) for each in slices]
    assert len(slices) == 2
    assert side["io_bytes"] == sum(each.io_bytes for each in slices)
    assert side["total_ios"] == sum(ios)
    assert side["iops"] == pytest.approx(sum(ios) / sum(each.seconds for each in slices))
    assert side["bw_bytes"] == pytest.approx(side["iops"] * 4096, rel=1e-6)
    mean = sum(each.metrics["lat_mean"] * n for each, n in zip(slices, ios, strict=True)) / sum(ios)
    assert side["lat_ns"]["mean"] == pytest.approx(mean * 1e9)
    exact = percentile(merged(each.histogram for each in slices), 0.99)
    assert exact is not None
    assert side["clat_ns"]["percentile"]["99.000000"] == pytest.approx(exact * 1e9)
    assert min(each.metrics["iops"] for each in slices) < side["iops"] < max(each.metrics["iops"] for each in slices)
    assert entry["write"]["total_ios"] == 0


def test_a_tree_of_bench_fio_comes_back_with_the_same_names() -> None:
    import_bench_fio()
    assert export("--fio-plot", "tree") == 0
    assert sorted(path.relative_to("tree").as_posix() for path in Path().glob("tree/**/*.json")) == [
        "ssd/guest-lvm/4k/randread-8-2.json",
        "ssd/guest-lvm/randrw70/4k/randrw-8-2.json",
        "ssd/host/4k/randread-8-2.json",
        "ssd/host/randrw70/4k/randrw-8-2.json",
    ]
    moved = sum(each.io_bytes for each in of_arm(imported(), "host") if each.job == "randrw-4k-qd8-nj2-r70")
    mixed = job_in("tree/ssd/host/randrw70/4k/randrw-8-2.json")
    assert mixed["read"]["io_bytes"] + mixed["write"]["io_bytes"] == moved
    assert mixed["job options"] == {"rw": "randrw", "bs": "4k", "iodepth": "8", "numjobs": "2", "rwmixread": "70"}


@pytest.mark.skipif(find_spec("fio_plot") is None, reason="fio-plot is not installed")
@pytest.mark.parametrize(
    ("kind", "directories"),
    [
        ("--bargraph2d-qd", ["host/4k"]),
        ("--compare-graph", ["host/4k", "guest-lvm/4k"]),
        ("--histogram", ["guest-lvm/4k"]),
    ],
)
def test_fio_plot_draws_the_tree(kind: str, directories: list[str]) -> None:
    own_run()
    assert export("--fio-plot", "tree") == 0
    inputs = [f"tree/optane/{each}" for each in directories]
    options = ["-T", "lvm", "-r", "randread", "-d", "32", "-n", "1", "-o", "chart.png"]
    command = [sys.executable, "-m", "fio_plot", "-i", *inputs, kind, *options]
    environment = {**os.environ, "MPLBACKEND": "agg", "MPLCONFIGDIR": str(Path.cwd())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path("chart.png").read_bytes().startswith(PNG)


def test_a_changed_raw_file_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    store = own_run()
    raw = store.path / "raw/own-guest.json"
    raw.write_text(raw.read_text().replace('"runtime": 5', '"runtime": 6'))
    assert export("--fio-plot", "tree") == 1
    assert "raw/own-guest.json has no result with" in capsys.readouterr().err


def test_void_cells_are_left_out_of_the_tree_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    store = own_run()
    text = store.results_path.read_text()
    document = json.loads(text)
    document["cells"][1]["verdict"] = "void"
    store.results_path.write_text(json.dumps(document))
    assert export("--fio-plot", "tree") == 0
    assert "optane-lvm-randread-4k-qd32 is void: left out of the files for fio-plot" in capsys.readouterr().out
    assert [path.parts[2] for path in Path().glob("tree/**/*.json")] == ["host"]


def test_nothing_to_export_and_a_directory_with_files_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    own_run()
    assert export() == 2
    assert (
        "--csv FILE, --parquet FILE, --fio-plot DIR, --openmetrics FILE, --share FILE or --post URL"
        in capsys.readouterr().err
    )
    assert export("--fio-plot", ".") == 2
    assert "it has files already" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--csv", "--fio-plot"])
def test_a_place_that_cannot_be_written_is_a_usage_error(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    own_run()
    Path("file").touch()
    assert export(option, "file/inside") == 2
    assert "file/inside cannot be written: Not a directory" in capsys.readouterr().err


def test_an_export_never_replaces_the_run_or_another_form(capsys: pytest.CaptureFixture[str]) -> None:
    import_bench_fio()
    results = imported().results_path
    before = results.read_bytes()
    assert main(["export", "--csv", "reports/latest/results.json"]) == 2
    assert "reports/latest/results.json is a file of the run, which would be lost" in capsys.readouterr().err
    assert results.read_bytes() == before
    assert main(["export", "--csv", "run", "--openmetrics", "./run"]) == 2
    assert "run is given for two forms, and one would replace the other" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_run_without_its_journal_has_no_measurements_to_export(capsys: pytest.CaptureFixture[str]) -> None:
    import_bench_fio()
    imported().journal_path.unlink()
    assert main(["export", "--csv", "run.csv"]) == 1
    assert "journal.jsonl does not exist, so there are no measurements to export" in capsys.readouterr().err
    assert not Path("run.csv").exists()
    assert main(["export", "--openmetrics", "run.prom"]) == 0


def test_the_docs_explain_every_column() -> None:
    docs = (Path(__file__).parents[3] / "docs/exchange.md").read_text()
    assert [column.name for column in COLUMNS if f"`{column.name}`" not in docs] == []
