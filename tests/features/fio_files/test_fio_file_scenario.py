"""A user's own fio file in a scenario: its cells, its errors, what a run stores of it, and what reports show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.errors import ConfigError
from harness.features.compare.comparison import compare
from harness.features.fio_files.reading import read_fio_files
from harness.measure.resume import Earlier, collect_fio_texts, requested
from harness.model.job import Job
from harness.model.values import STORED
from harness.model.workloads import OneWorkload
from harness.report.markdown import markdown_table
from harness.report.terminal import summary_lines
from harness.results import Run
from harness.scenario.load import load_scenario
from harness.scenario.plan import expand
from harness.scenario.scenario import Scenario
from tests.build import synthetic_run
from tests.features.fio_files.fio_files import DATABASE, job_of, read, read_in
from tests.unit.pages import page
from tests.unit.test_resume import ran, spec

SCENARIO = """
title = "A disk"
modes = ["host", "lvm"]
workloads = ["my-database.fio", "wal", "randread-4k"]
write_rate = "1 GiB/s"
"""
READ_ONLY = '[mode.ro]\nlayout = { kind = "lvm" }\nattach = { read_only = true }\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (DATABASE.name, "log.inc"):
        (tmp_path / name).write_text((DATABASE.parent / name).read_text())
    return tmp_path


def load(folder: Path, text: str = SCENARIO) -> Scenario:
    (folder / "disk.toml").write_text(text)
    return load_scenario(folder / "disk.toml")


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(folder, text)
    return error.value.message.replace(str(folder / "disk.toml"), "disk.toml")


def a_run(folder: Path) -> Run:
    """A run of the file, in which everything only reads: the imagined disk has no mixed patterns."""
    file = folder / "my-database.fio"
    file.write_text(file.read_text().replace("rw=write", "rw=randread"))
    scenario = load(folder)
    run = synthetic_run(workloads=scenario.workloads[:2], modes=["host", "lvm"])
    return replace(run, provenance=run.provenance | collect_fio_texts(spec(scenario)))


# --- scenario ---


def test_the_jobs_of_a_file_are_cells_beside_those_of_other_workloads(folder: Path) -> None:
    ids = [cell.id for cell in expand(load(folder), "smoke") if cell.mode.name == "lvm"]
    assert ids == [
        "disk-lvm-my-database-reader-and-1",
        "disk-lvm-my-database-backup",
        "disk-lvm-wal",
        "disk-lvm-randread-4k-qd32",
    ]


def test_a_budget_can_be_for_the_jobs_of_a_file(folder: Path) -> None:
    budget = '[[budget]]\nmetric = "sync_p99"\nshare = "30 %"\nworkloads = ["my-database.fio"]\n'
    (rule,) = load(folder, SCENARIO + budget).budgets
    assert [each.name for each in rule.workloads or ()] == ["my-database-reader-and-1", "my-database-backup"]


def test_a_budget_for_a_file_that_is_not_measured_is_refused(folder: Path) -> None:
    (folder / "small.fio").write_text("[a]\n")
    budget = '[[budget]]\nmetric = "iops"\nshare = "30 %"\nworkloads = ["small.fio"]\n'
    message = complaint(folder, SCENARIO + budget)
    assert message.startswith(
        'disk.toml: budget[0].workloads[0] = "small.fio": not a fio file in the scenario\'s workloads; allowed: '
    )


def test_a_file_is_refused_where_one_workload_with_a_rate_of_our_own_is_needed(folder: Path) -> None:
    (folder / "small.fio").write_text("[a]\nrw=randread\n")
    files = read_fio_files(folder, ["small.fio"]).workloads
    with pytest.raises(ValidationError, match="a fio file cannot be used here"):
        TypeAdapter(OneWorkload).validate_python("small.fio", context={"fio_files": files})


def test_a_file_may_be_in_a_folder_below(folder: Path) -> None:
    (folder / "fio").mkdir()
    (folder / "fio" / "small.fio").write_text("[a]\nrw=read\n")
    scenario = load(folder, SCENARIO.replace("my-database.fio", "fio/small.fio"))
    assert scenario.workloads[0].name == "fio-small-a"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "my-database.fio",
            "my-databse.fio",
            'workloads[0] = "my-databse.fio": no such file; allowed: my-database.fio',
        ),
        ("my-database.fio", "../x.fio", 'workloads[0] = "../x.fio": allowed: a file in the scenario\'s folder'),
        ("my-database.fio", "/x.fio", 'workloads[0] = "/x.fio": allowed: a file in the scenario\'s folder'),
        ('"wal"', '"my-database.fio"', 'workloads[1] = "my-database.fio": the same as workloads[0]'),
        (
            '"lvm"]',
            '"ro"]',
            'mode.ro.attach.read_only = true: conflicts with workloads[0] = "my-database-reader-and-1"',
        ),
    ],
)
def test_a_file_that_a_scenario_cannot_use_is_an_error_of_the_scenario(
    folder: Path, old: str, new: str, message: str
) -> None:
    changed = SCENARIO.replace(old, new) + (READ_ONLY if "ro" in new and "fio" not in new else "")
    assert f"disk.toml: {message}" in complaint(folder, changed)


def test_every_problem_in_a_file_is_named_with_its_line(folder: Path) -> None:
    (folder / "my-database.fio").write_text("[reader]\nprofile=tiobench\nioengine=null\n")
    lines = complaint(folder, SCENARIO).splitlines()
    assert [line.partition(" = ")[0] for line in lines] == ["disk.toml: workloads[0]"] * 2
    assert (
        "my-database.fio, line 2: [reader] profile = tiobench: a profile of fio replaces the whole workload" in lines[0]
    )
    assert "my-database.fio, line 3: [reader] ioengine = null: this engine is not one that reads" in lines[1]


def test_two_files_whose_jobs_would_have_one_name_are_refused(folder: Path) -> None:
    (folder / "a.fio").write_text("[b-c]\n")
    (folder / "a-b.fio").write_text("[c]\n")
    message = complaint(folder, SCENARIO.replace('"wal"', '"a.fio", "a-b.fio"'))
    assert message == (
        'disk.toml: workloads: "a-b-c" of a-b.fio has the name of another one; rename its section, or the file'
    )


# --- what a run stores ---


def test_a_run_stores_the_texts_of_the_file_and_of_those_that_it_includes(folder: Path) -> None:
    texts = {name: (folder / name).read_text() for name in ("my-database.fio", "log.inc")}
    assert collect_fio_texts(spec(load(folder))) == {"fio_files": {"optane": {"my-database.fio": texts}}}
    assert collect_fio_texts(spec(load(folder, SCENARIO.replace('"my-database.fio", ', "")))) == {}


def test_a_job_is_the_same_after_it_was_stored() -> None:
    stored = TypeAdapter(Job)
    for workload in read_in(DATABASE.parent, DATABASE.name):
        job = job_of(workload)
        assert stored.validate_json(stored.dump_json(job), context=STORED) == job


def test_a_run_is_not_resumed_with_another_text_of_the_file(folder: Path) -> None:
    before = json.loads(json.dumps(requested(spec(load(folder)))))
    earlier: Earlier = ran({"asked": before})
    earlier.require_same({"asked": requested(spec(load(folder)))})
    with (folder / "log.inc").open("a") as file:
        file.write("bs=8k\n")
    with pytest.raises(ConfigError, match=r"optane\.file\.my-database\.fio was sha256 \w{64}, is sha256 \w{64}"):
        earlier.require_same({"asked": requested(spec(load(folder)))})


# --- reports ---


def test_the_page_lists_what_fio_got_and_what_applied_instead_of_the_rest(folder: Path) -> None:
    text = page(a_run(folder)).text
    for expected in (
        "ioengine=libaio rw=randread bssplit=4k/60:16k/40 iodepth=8 numjobs=2",
        "ioengine=libaio rw=randread bs=4k fdatasync=1 thinktime=1000",
        "size=8g",
        "the arm's region of the disk",
        "runtime=5m",
        "the times of the profile",
        "# What etcd does.",
    ):
        assert expected in text


def test_terminal_and_markdown_name_the_options_that_did_not_apply(folder: Path) -> None:
    run = a_run(folder)
    sentence = (
        "my-database.fio was measured without its own filesize, size, runtime, time_based, direct, group_reporting: "
        "the report says what applied instead."
    )
    assert sentence in summary_lines(run)
    assert sentence.replace("_", "\\_") in markdown_table(run)


def test_a_comparison_names_the_section_whose_options_changed(tmp_path: Path) -> None:
    runs = [synthetic_run(workloads=read(tmp_path, f"[a]\nbs={bs}\n"), modes=["host", "lvm"]) for bs in ("4k", "8k")]
    later = replace(runs[1], run=replace(runs[1].run, id="20260102-120000-0001"))
    found = {each.what: (each.before, each.after) for each in compare(runs[0], later).differences}
    assert found["job.[a]"] == ("ioengine=psync bs=4k", "ioengine=psync bs=8k")
