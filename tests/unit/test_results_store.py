"""The store: what is written comes back, a crash costs one line, and every failure names file and remedy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import JsonValue

from harness.analysis import estimate_drift
from harness.cli import main
from harness.config.names import RunId
from harness.errors import ResultsError
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.layout import Lvm
from harness.model.mode import Budget, Cell, Mode
from harness.model.option import Effective
from harness.results import (
    SCHEMA_VERSION,
    CellContext,
    ConditioningRecord,
    DriftRecord,
    Efficiency,
    GroupRecord,
    Journal,
    LabInfo,
    Measurement,
    RegionSteadiness,
    RoundEvent,
    Run,
    RunInfo,
    RunStore,
    ValidityCheck,
    assemble,
)
from tests.build import RUN_ID, build_measurement, synthetic_run
from tests.unit.transport_servers import small_filesystem

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = json.loads((DOCS / "results.schema.json").read_text())
JOB = Job(rw="randrw", bs=4096, iodepth=32, ramp=1.0, seconds=10.0, read_share=0.7)


def with_everything(arm: str, number: int, iops: float) -> Measurement:
    """A slice that has every kind of value."""
    return build_measurement(
        arm,
        number,
        job=JOB,
        group="nvme0",
        started=1_700_000_000.25 + number,
        seconds=10.001,
        wall=11.5,
        metrics={"iops": iops, "lat_mean": 32 / iops, "clat_p99": 64 / iops},
        io_bytes=40960 * number,
        raw=f"raw/{number}.json",
        counts={"fio_read": 40960, "disk_read": 40960},
        histogram={30_000_000: 9000, 64_000_000: 1000},
        notes=("µs are seconds here",),
    )


def example_run() -> Run:
    cells = [
        Cell("optane", "nvme0", Mode("host", Device(), None), JOB),
        Cell("optane", "nvme0", Mode("lvm", Lvm(), Attach()), JOB),
    ]
    measurements = [
        with_everything(arm, number, iops / number)
        for number in (1, 2, 3)
        for arm, iops in (("host", 1000.0), ("twin:lvm", 901.5), ("guest:lvm", 700.0 + number))
    ]
    context = CellContext(
        host="lab",
        group="nvme0",
        span_bytes=64 << 20,
        budgets={"iops": Budget("iops", 0.4)},
        validity=(ValidityCheck("bytes", ok=True, detail="within 0.1 %"),),
        effective=Effective(aio="native", qemu_queues=2, qemu_iothread=True),
    )
    baseline = replace(context, budgets={}, effective=Effective())
    change = estimate_drift([1.0, 2.0, 3.0], [1000.0, 500.0, 333.0])
    return Run(
        schema=SCHEMA_VERSION,
        run=RunInfo(
            id=RUN_ID,
            started=1_700_000_000.0,
            finished=None,
            command="pytest -k lvm",
            profile="quick",
            seed=7,
            status="running",
            scenarios={"optane": "An Optane disk"},
            phases={"layouts": 1.5},
            efficiency=Efficiency.of(99.0, 110.0),
            published={"optane": "local_disks.optane"},
        ),
        lab=LabInfo("lab", "embedded", "tcg", representative=False, why="no /dev/kvm"),
        provenance={"host": {"kernel": "6.1", "cpus": 2}},
        groups=(
            GroupRecord(
                id="nvme0",
                disk="nvme0",
                orders=(("host", "twin:lvm", "guest:lvm"),) * 3,
                looks=(3,),
                stopped="most rounds",
                conditioning=ConditioningRecord(
                    "steady", JOB.id, (RegionSteadiness("device", (900.0, 800.0), 0.12, -0.12, steady=False),), False
                ),
                drift=(DriftRecord(JOB.id, change, too_much=True),),
                rounds=(1, 2, 4),
                abandoned=(3,),
            ),
        ),
        cells=tuple(assemble(cells, measurements, {cells[0].id: baseline, cells[1].id: context})),
    )


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "reports", RUN_ID)


# --- round trips ---


def test_results_come_back_as_they_were_written(store: RunStore) -> None:
    store.write_results(example_run())
    assert store.read_results() == example_run()
    assert store.read_results().cell("optane-lvm-randrw-4k-qd32-r70").verdict == "within"


def test_results_without_the_names_of_published_figures_are_read(store: RunStore) -> None:
    store.write_results(example_run())
    document = json.loads(store.results_path.read_text())
    assert document["run"].pop("published") == {"optane": "local_disks.optane"}
    store.results_path.write_text(json.dumps(document))
    assert store.read_results().run.published == {}


def test_the_journal_comes_back_in_order(store: RunStore) -> None:
    written = tuple(with_everything("host", number, 1000.0 / 3 * number) for number in (1, 2, 3))
    for measurement in written:
        store.append(measurement)
    assert store.read_journal().measurements == written
    assert store.read_journal().notes == ()
    assert len(store.journal_path.read_text().splitlines()) == 3


def test_rounds_come_back_with_their_measurements(store: RunStore) -> None:
    written = RoundEvent("begun", "nvme0", 1, 2, None), RoundEvent("abandoned", "nvme0", 1, None, "the guest was lost")
    store.append(written[0])
    store.append(with_everything("host", 1, 1000.0))
    store.append(written[1])
    assert store.read_journal() == Journal((with_everything("host", 1, 1000.0),), written)


def test_a_new_run_has_an_empty_journal(store: RunStore) -> None:
    assert store.read_journal().measurements == ()


@pytest.mark.parametrize("where", [f"reports/{RUN_ID}", "reports/latest", f"reports/{RUN_ID}/results.json"])
def test_a_run_is_opened_by_directory_link_or_file(store: RunStore, tmp_path: Path, where: str) -> None:
    store.write_results(example_run())
    assert RunStore.open(tmp_path / where).read_results() == example_run()


def test_latest_points_at_the_newest_run_and_survives_a_move(store: RunStore, tmp_path: Path) -> None:
    newer = RunStore.create(store.path.parent, RunId("20260101-120000-0002"))
    (tmp_path / "reports").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "latest").resolve().name == newer.path.name


def test_the_report_is_next_to_the_results(store: RunStore) -> None:
    assert store.write_page("index.html", "<p>µ").read_text(encoding="utf-8") == "<p>µ"
    assert sorted(path.name for path in store.path.iterdir()) == ["index.html", "raw"]


# --- raw outputs ---


def test_raw_output_is_stored_as_printed_with_its_command(store: RunStore) -> None:
    relative = store.save_raw("round1-guest:lvm-randread.json", "fio: note\n{}", command="fio --rw=randread")
    assert relative == "raw/round1-guest-lvm-randread.json"
    assert (store.path / relative).read_text() == "fio: note\n{}"
    assert (store.path / f"{relative}.command").read_text() == "fio --rw=randread\n"


def test_raw_output_is_never_overwritten_or_written_outside(store: RunStore) -> None:
    assert [store.save_raw(name, name) for name in ("a/b.json", "a:b.json", "a b.json", "../../x.json")] == [
        "raw/a-b.json",
        "raw/a-b-2.json",
        "raw/a-b-3.json",
        "raw/x.json",
    ]


def test_raw_output_that_is_not_text_keeps_its_bytes(store: RunStore) -> None:
    printed = b"disk \xff\r\n{}"
    relative = store.save_raw("x.json", printed.decode(errors="surrogateescape"))
    assert (store.path / relative).read_bytes() == printed


# --- crashes ---


def test_a_truncated_line_is_left_out_and_the_others_are_read(store: RunStore) -> None:
    store.append(with_everything("host", 1, 1000))
    whole = store.journal_path.read_bytes()
    store.journal_path.write_bytes(whole + whole[:70])
    store.append(with_everything("host", 2, 1000))
    journal = store.read_journal()
    assert [measurement.round for measurement in journal.measurements] == [1, 2]
    assert len(journal.notes) == 1
    assert "line 2 is truncated" in journal.notes[0]


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_journal_that_is_truncated_at_its_end_is_read(store: RunStore, kept: int) -> None:
    store.append(with_everything("host", 1, 1000))
    whole = store.journal_path.read_bytes()
    store.journal_path.write_bytes(whole + whole.rstrip()[:kept])
    assert len(store.read_journal().measurements) == 1
    assert len(store.read_journal().notes) == 1


def test_a_line_that_lost_only_its_end_of_line_is_whole(store: RunStore) -> None:
    store.append(with_everything("host", 1, 1000))
    store.journal_path.write_bytes(store.journal_path.read_bytes().rstrip())
    store.append(with_everything("host", 2, 1000))
    assert [measurement.round for measurement in store.read_journal().measurements] == [1, 2]


# --- full disks ---


def test_a_full_disk_is_named_when_the_journal_grows(tmp_path: Path) -> None:
    with small_filesystem(tmp_path):
        store = RunStore.create(tmp_path, RUN_ID)
        store.append(with_everything("host", 1, 1000))
        with pytest.raises(OSError, match="No space left on device"):
            (store.path / "filler").write_bytes(bytes(4 << 20))
        line = with_everything("host", 2, 1000)
        free = 4096 - store.journal_path.stat().st_size % 4096
        for _ in range(free // store.journal_path.stat().st_size):
            store.append(line)
        with pytest.raises(ResultsError, match="No space left on device") as caught:
            store.append(line)
    assert str(store.journal_path) in caught.value.message
    assert "free space on the file system of" in str(caught.value.hint)


def test_a_file_system_that_became_read_only_points_to_its_disk(tmp_path: Path) -> None:
    with small_filesystem(tmp_path):
        store = RunStore.create(tmp_path, RUN_ID)
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(ResultsError, match="Read-only file system") as caught:
            store.write_results(example_run())
    assert "see `dmesg`: the file system of" in str(caught.value.hint)


def test_a_full_disk_leaves_the_old_results(tmp_path: Path) -> None:
    with small_filesystem(tmp_path):
        store = RunStore.create(tmp_path, RUN_ID)
        store.write_results(example_run())
        filler = store.path / "filler"
        with pytest.raises(OSError, match="No space left on device"):
            filler.write_bytes(bytes(4 << 20))
        with pytest.raises(ResultsError, match="No space left on device"):
            store.write_results(example_run())
        assert store.read_results() == example_run()
        assert {each.name for each in store.path.iterdir()} == {"raw", "results.json", "filler"}


# --- what cannot be read or written ---


def says(error: pytest.ExceptionInfo[ResultsError], *words: str) -> bool:
    return error.value.hint is not None and all(word in str(error.value) for word in words)


def test_a_run_is_never_overwritten(store: RunStore) -> None:
    with pytest.raises(ResultsError) as caught:
        RunStore.create(store.path.parent, RUN_ID)
    assert says(caught, str(store.path), "exists already", "choose another run id")


def test_a_latest_that_is_not_a_link_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(ResultsError, match="is not a link"):
        RunStore.create(tmp_path, RUN_ID)
    assert (tmp_path / "latest").is_dir()


def test_a_missing_run_and_missing_results_are_different_errors(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(ResultsError) as no_run:
        RunStore.open(tmp_path / "none")
    assert says(no_run, "none is not the directory of a run", "reports/latest")
    with pytest.raises(ResultsError) as no_results:
        store.read_results()
    assert says(no_results, "results.json does not exist", "journal.jsonl")


def test_a_latest_whose_run_was_removed_names_the_newest_that_is_there(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_results(synthetic_run(status="complete"))
    monkeypatch.chdir(tmp_path)
    reports = store.path.parent.rename("reports")
    gone = RunStore.create(reports, RunId("20270101-000000-0001"))
    shutil.rmtree(gone.path)
    assert main(["report"]) == 1
    assert capsys.readouterr().err == (
        "virt-overhead: reports/latest is a link to a run that is gone\n"
        f"  -> give reports/RUN-ID, or reports/{RUN_ID} for the newest run\n"
    )
    assert main([]) == 0
    assert f"Runs: {tmp_path}/reports/latest is a link to a run that is gone" in capsys.readouterr().out


def test_results_of_a_newer_version_say_so(store: RunStore) -> None:
    store.results_path.write_text(json.dumps({"schema": SCHEMA_VERSION + 1, "new": []}))
    with pytest.raises(ResultsError) as caught:
        store.read_results()
    assert says(caught, str(store.results_path), f"schema {SCHEMA_VERSION + 1}", "newer one")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', "\x00\x01"])
def test_damaged_results_are_named(store: RunStore, content: str) -> None:
    store.results_path.write_text(content)
    with pytest.raises(ResultsError) as caught:
        store.read_results()
    assert says(caught, str(store.results_path), "changed or damaged")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("run", "started"), 1e12),
        (("run", "finished"), -1.0),
        (("cells", 1, "confidence"), 0.0),
        (("cells", 1, "metrics", "iops", "guest"), []),
        (("cells", 1, "metrics", "iops", "guest", 0), 1e31),
        (("cells", 1, "metrics", "iops", "adjusted"), {"twin": [0.0]}),
        (("cells", 1, "metrics", "iops", "adjusted"), {"twin": [1e308]}),
        (("cells", 1, "accounting", "cpu", "guest", 0), -1e308),
        (("cells", 1, "metrics", "lat_mean", "host", 0), 1e-300),
        (("cells", 1, "metrics", "iops", "against"), [1.0]),
        (("cells", 1, "rounds"), [1]),
        (("cells", 1, "blocks"), [1]),
        (("cells", 1, "ios"), {"host": [1]}),
        (("cells", 1, "job", "iodepth"), 0),
        (("cells", 1, "histograms"), {"ios": {"host": {"per_octave": 0, "bins": {"4096": 1}}}}),
        (("cells", 1, "histograms"), {"ios": {"host": {"per_octave": 64, "bins": {"4096": 0}}}}),
        (("cells", 1, "histograms"), {"ios": {"host": {"per_octave": 64, "bins": {"4096": 1 << 63}}}}),
        (("cells", 1, "metrics", "iops", "overhead", "n"), 1 << 63),
        (("groups", 0, "rounds"), [1]),
    ],
)
def test_results_that_no_run_writes_are_named(store: RunStore, path: tuple[Any, ...], value: Any) -> None:
    store.write_results(synthetic_run(modes=["host", "passthrough"], workloads=["randread-4k"]))
    document = json.loads(store.results_path.read_text())
    place = document
    for key in path[:-1]:
        place = place[key]
    if path[-1] == "guest":
        place["adjusted"] = {}
    place[path[-1]] = value
    store.results_path.write_text(json.dumps(document))
    with pytest.raises(ResultsError) as caught:
        store.read_results()
    assert says(caught, str(store.results_path), ".".join(map(str, path[:2])), "changed or damaged")


@pytest.mark.parametrize("name", ["results.json", "journal.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file_is_not_waited_for(store: RunStore, name: str, kind: str) -> None:
    path = store.path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(ResultsError) as caught:
        store.read_results() if name == "results.json" else store.read_journal()
    assert says(caught, str(path), "directory" if kind == "directory" else "not a regular file")


def test_an_unknown_key_in_the_journal_is_an_error_and_not_a_crash(store: RunStore) -> None:
    store.append(with_everything("host", 1, 1000))
    line = json.loads(store.journal_path.read_text())
    store.journal_path.write_text(json.dumps(line | {"iosp": 1}) + "\n")
    with pytest.raises(ResultsError) as caught:
        store.read_journal()
    assert says(caught, str(store.journal_path), "line 1: iosp")


def test_an_unknown_counter_in_the_journal_is_named(store: RunStore) -> None:
    store.append(with_everything("host", 1, 1000))
    line = json.loads(store.journal_path.read_text())
    line["counters"]["gpu"] = 1.0
    store.journal_path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ResultsError) as caught:
        store.read_journal()
    assert says(caught, str(store.journal_path), "line 1: counters.gpu")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("job", "bs"), "4096"),
        (("job", "bs"), 4096.0),
        (("job", "iodepth"), True),
        (("job", "ramp"), "1.0"),
        (("effective", "qemu_queues"), "2"),
        (("effective", "qemu_iothread"), 1),
        (("mode_detail", "layout", "chunk"), "64k"),
        (("mode_detail", "layout", "chunk"), 65536.0),
        (("mode_detail", "attach", "logical_block_size"), "512"),
    ],
)
def test_a_number_of_another_type_in_the_results_is_named(
    store: RunStore, path: tuple[str, ...], value: JsonValue
) -> None:
    results = document(store)
    node = results["cells"][1]
    node["mode_detail"]["layout"] = {"kind": "lvm-thin", "chunk": 65536, "on": {"kind": "device"}}
    store.results_path.write_text(json.dumps(results))
    store.read_results()
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    store.results_path.write_text(json.dumps(results))
    with pytest.raises(ResultsError) as caught:
        store.read_results()
    assert says(caught, str(store.results_path), f".{path[-1]} = {json.dumps(value)}: Input should be")


@pytest.mark.parametrize("value", ["40960", 40960.0, True])
def test_a_counter_of_another_type_in_the_journal_is_named(store: RunStore, value: JsonValue) -> None:
    store.append(with_everything("host", 1, 1000))
    line = json.loads(store.journal_path.read_text())
    line["counters"]["fio"]["read"] = value
    store.journal_path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ResultsError) as caught:
        store.read_journal()
    assert says(caught, str(store.journal_path), f"line 1: counters.fio.read = {json.dumps(value)}: Input should be")


def test_a_value_that_json_cannot_hold_is_refused(store: RunStore) -> None:
    with pytest.raises(ResultsError) as caught:
        store.append(with_everything("host", 1, float("inf")))
    assert says(caught, str(store.journal_path), "Measurement", "finite")


# --- the documented schema ---


def document(store: RunStore) -> dict[str, Any]:
    store.write_results(example_run())
    loaded: dict[str, Any] = json.loads(store.results_path.read_text())
    return loaded


def test_results_follow_the_documented_schema(store: RunStore) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(document(store))


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("run",),
        ("lab",),
        ("cells", 1),
        ("cells", 1, "job"),
        ("cells", 1, "metrics", "iops"),
        ("cells", 1, "metrics", "iops", "overhead"),
        ("cells", 1, "budget", 0),
        ("cells", 1, "metrics", "clat_p99", "pooled", "guest"),
        ("groups", 0),
        ("groups", 0, "conditioning"),
        ("groups", 0, "conditioning", "regions", 0),
        ("groups", 0, "drift", 0),
        ("cells", 1, "validity", 0),
    ],
)
def test_an_unknown_key_fails_schema_and_reader(store: RunStore, path: tuple[str | int, ...]) -> None:
    results: Any = document(store)
    node = results
    for step in path:
        node = node[step]
    node["unknown"] = 1
    with pytest.raises(jsonschema.ValidationError, match="unknown"):
        jsonschema.Draft202012Validator(SCHEMA).validate(results)
    store.results_path.write_text(json.dumps(results))
    if not path:
        assert store.read_results().unknown == ("unknown",)  # of a feature that is not installed
        return
    with pytest.raises(ResultsError, match="unknown"):
        store.read_results()


EVIDENT = {"name", "path", "value"}
"""Keys that need no explanation beside that of their object."""


def test_every_key_is_explained() -> None:
    objects = {"the document": SCHEMA, **SCHEMA["$defs"]}
    unexplained = {
        f"{name}.{key}"
        for name, definition in objects.items()
        for key, value in definition.get("properties", {}).items()
        if not value.get("description") and key not in EVIDENT
    }
    assert unexplained == set()
