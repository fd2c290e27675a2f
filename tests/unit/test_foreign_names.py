"""Names in the files of somebody else never lead to another place than a name of ours."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError, HarnessError, ResultsError
from harness.features.compare.command import set_baseline
from harness.features.compare.history_store import HistoryStore
from harness.features.exchange.exporting import ExportRequest, export_run, make_rows, write_csv
from harness.files import read_regular
from harness.image import manifest as manifests
from harness.results import RunStore

RECORDED = Path(__file__).parent / "data/stored_run"
OUTSIDE = [
    "../../victim/evil",
    "..",
    ".",
    "",
    "/etc/evil",
    "a/b",
    "a\\b",
    "a\x00b",
    "a\nb",
    "-rf",
    ".hidden",
    "a b; rm -rf x",
    "\u202eevil",
    "x" * 300,
    "=1+1",
]


def _copy(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    run = tmp_path / "reports" / "foreign"
    (run / "raw").mkdir(parents=True)
    document = json.loads((RECORDED / "results.json").read_text())
    change(document)
    (run / "results.json").write_text(json.dumps(document))
    (run / "journal.jsonl").write_text((RECORDED / "journal.jsonl").read_text())
    return run


def _host(document: dict[str, Any], name: str) -> None:
    document["lab"]["host"] = name


def _id(document: dict[str, Any], name: str) -> None:
    document["run"]["id"] = name


def _disk(document: dict[str, Any], name: str) -> None:
    document["groups"][0]["disk"] = name


def _group(document: dict[str, Any], name: str) -> None:
    document["groups"][0]["id"] = name


def _scenario(document: dict[str, Any], name: str) -> None:
    document["cells"][0]["scenario"] = name


def _mode(document: dict[str, Any], name: str) -> None:
    document["cells"][0]["mode"] = name


def _raw(document: dict[str, Any], name: str) -> None:
    document["cells"][0]["raw"] = [name]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("place", [_host, _id, _disk, _group, _scenario, _mode, _raw])
def test_a_name_of_a_results_json_that_is_no_name_is_refused(
    tmp_path: Path, place: Callable[[dict[str, Any], str], None], name: str
) -> None:
    store = RunStore.open(_copy(tmp_path, lambda document: place(document, name)))
    with pytest.raises(ResultsError, match=r"not a valid results\.json"):
        store.read_results()
    with pytest.raises(HarnessError):
        set_baseline(tmp_path / "reports", "main", store)
    with pytest.raises(HarnessError):
        HistoryStore.at(str(tmp_path / "history")).add(store, {})
    with pytest.raises(HarnessError):
        export_run(ExportRequest(store.path, None, None, tmp_path / "plot"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reports"]
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["foreign"]


def _budgeted(document: dict[str, Any]) -> dict[str, Any]:
    return next(cell for cell in document["cells"] if cell["budget"])


def test_a_metric_that_no_version_knows_is_refused(tmp_path: Path) -> None:
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda document: _budgeted(document)["budget"][0].update(metric="odd"),
        lambda document: _budgeted(document)["metrics"].update(odd=_budgeted(document)["metrics"]["iops"]),
    ]
    for number, change in enumerate(changes):
        with pytest.raises(ResultsError, match="no such metric"):
            RunStore.open(_copy(tmp_path / str(number), change)).read_results()


@pytest.mark.parametrize("place", ["host", "guest"])
@pytest.mark.parametrize("value", [0, -1, 1e308])
def test_a_value_without_a_ratio_to_the_hosts_is_refused(tmp_path: Path, place: str, value: float) -> None:
    def change(document: dict[str, Any]) -> None:
        _budgeted(document)["metrics"]["iops"][place][0] = value

    with pytest.raises(
        ResultsError, match=rf"metrics\.iops\.{place}\.0 = .*: (Input should be greater|the number is too)"
    ):
        RunStore.open(_copy(tmp_path, change)).read_results()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("raw", "/etc/passwd"),
        ("raw", "raw/../../secret"),
        ("raw", "raw/a/b"),
        ("raw", "raw/.."),
        ("arm", "guest:../../x"),
        ("arm", "/tmp/x"),
        ("job", "../x"),
        ("group", "../x"),
    ],
)
def test_a_name_of_a_journal_that_is_no_name_is_refused(tmp_path: Path, key: str, value: str) -> None:
    run = _copy(tmp_path, lambda _: None)
    first, *rest = (run / "journal.jsonl").read_text().splitlines()
    while "event" in first:
        first, *rest = rest
    (run / "journal.jsonl").write_text("\n".join([json.dumps(json.loads(first) | {key: value}), *rest]) + "\n")
    with pytest.raises(ResultsError, match=f"{key} = "):
        export_run(ExportRequest(run, None, None, tmp_path / "plot"))
    assert not (tmp_path / "plot").exists()


def test_an_output_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(OSError, match=r"symbolic links|not a regular file|Is a directory"):
            read_regular(tmp_path / name, flags=os.O_NOFOLLOW)
    with pytest.raises(OSError, match="is larger than"):
        read_regular(tmp_path / "secret", most_bytes=1)
    assert read_regular(tmp_path / "secret", most_bytes=2) == b"{}"


def test_a_baseline_of_a_host_whose_name_differs_only_in_case_is_not_overwritten(tmp_path: Path) -> None:
    lower = RunStore.open(_copy(tmp_path / "1", lambda document: _host(document, "node")))
    upper = RunStore.open(_copy(tmp_path / "2", lambda document: _host(document, "Node")))
    set_baseline(tmp_path / "reports", "main", lower)
    with pytest.raises(ConfigError, match="the same name in another case"):
        set_baseline(tmp_path / "reports", "main", upper)
    with pytest.raises(ConfigError, match="the same name in another case"):
        set_baseline(tmp_path / "reports", "Main", lower)
    set_baseline(tmp_path / "reports", "main", lower)


def test_no_text_of_a_run_is_a_formula_and_every_number_stays_a_number(tmp_path: Path) -> None:
    store = RunStore.open(RECORDED)
    rows = make_rows(store.read_results(), store.read_journal())
    hostile = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", " =1", "\n=1", "\uff1dx", "a\nb", '=HYPERLINK("x")']
    kept = ["-1.5", "+2", "1e-9", "optane", "a=b", "", "-0"]
    for text, is_kept in (*((each, False) for each in hostile), *((each, True) for each in kept)):
        changed = replace(rows[0], host=text, measurement=replace(rows[0].measurement, metrics={"iops": -1.5}))
        write_csv([changed], tmp_path / "run.csv")
        row = next(csv.DictReader(io.StringIO((tmp_path / "run.csv").read_text())))
        assert float(row["iops"]) == -1.5
        assert not row["host"].lstrip().startswith(("=", "@", "\uff1d"))
        assert "\n" not in row["host"]
        assert (row["host"] == text) == is_kept
        if row["host"].startswith(("-", "+")):
            float(row["host"])


@pytest.mark.parametrize("name", ["../x", "/x", "a\u0000b", "..", "manifest.json", "Manifest.JSON"])
def test_a_bundle_cannot_name_a_file_outside_of_its_image(name: str) -> None:
    record = {"size_bytes": 1, "sha256": "", "mtime_ns": 1}
    texts = dict.fromkeys(("name", "recipe_digest", "suite", "built_at", "fio_version", "kernel", "host_key"), "guest")
    manifest = texts | {"version": 1, "build_s": 1.0, "packages": {}, "inputs": {}, "files": {"root.img": record}}
    assert manifests.parse(json.dumps(manifest).encode()).name == "guest"
    with pytest.raises(manifests.DamagedError):
        manifests.parse(json.dumps(manifest | {"files": {name: record}}).encode())
    with pytest.raises(manifests.DamagedError):
        manifests.parse(json.dumps(manifest | {"files": {"a": record, "A": record}}).encode())
    with pytest.raises(manifests.DamagedError):
        manifests.parse(json.dumps(manifest | {"files": {"a": record | {"mtime_ns": 1 << 70}}}).encode())
