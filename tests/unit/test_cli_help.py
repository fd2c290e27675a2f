"""The command line explains itself: examples that are valid, JSON, tracebacks on request, and what comes next."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import Command, commands, main, make_parser
from harness.features.init import commands as first_steps
from harness.features.init.commands import look_around
from harness.results import RunStatus, RunStore
from tests.build import RUN_ID, synthetic_run

HEAVY = ("numpy", "paramiko", "plotly", "proxmoxer", "pydantic", "pytest", "requests", "rich", "scipy", "libvirt")
HEAVY_OF_HARNESS = ("harness.lab", "harness.layout", "harness.measure", "harness.plugin", "harness.results")

COMMANDS = [each for each in commands(make_parser()) if isinstance(each, Command)]
WITHOUT_JSON = {
    "virt-overhead run": "pytest",
    "virt-overhead quick": "pytest",
    "virt-overhead quickstart": "pytest",
    "virt-overhead lab": "a group",
    "virt-overhead lab ssh": "ssh",
    "virt-overhead baseline": "a group",
    "virt-overhead completion": "a script",
    "virt-overhead man": "a page",
}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VIRT_OVERHEAD_LAB", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    store = RunStore.create(tmp_path / "reports", RUN_ID)
    store.write_results(synthetic_run())
    return store


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: str(each.prog))
def test_the_help_of_each_command_has_an_example_that_is_valid(command: Command) -> None:
    assert command.format_help().endswith(f"example:\n  {command.example}\n")
    program, *words = shlex.split(command.example)
    options, rest = make_parser().parse_known_args(words)
    assert program == "virt-overhead"
    assert command.example.startswith(command.prog)
    assert not rest or getattr(options, "takes_rest", False)
    assert callable(options.run)


def test_every_command_line_in_the_docs_is_valid() -> None:
    root = Path(__file__).parents[2]
    found = []
    for page in (root / "README.md", *root.glob("docs/*.md")):
        for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S):
            if language in ("", "sh", "bash"):
                commented = re.sub(r"(?:^|\s)#.*", "", block.replace("\\\n", " "), flags=re.M)
                found += re.findall(r"(?:^|\s)(virt-overhead(?: [^\n|&;>]*)?)", commented)
    lines = [line.strip() for line in found if not re.search(r"virt-overhead:|\[|[A-Z]{3}", line)]
    assert len(lines) > 40
    for line in lines:
        words = shlex.split(line)[1:]
        options, rest = make_parser().parse_known_args(words)
        assert not rest or getattr(options, "takes_rest", False), line


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: str(each.prog))
def test_each_command_prints_json_on_request_and_tracebacks(command: Command) -> None:
    options = set(command._option_string_actions)
    passed_on = command.get_default("takes_rest") is True
    assert ("--json" in options) != (command.prog in WITHOUT_JSON)
    assert ("--debug" in options) != passed_on


@pytest.mark.parametrize("words", [["report"], ["history"], ["baseline", "list"], ["lab", "status"], ["reap"], []])
def test_with_json_standard_output_is_one_document(
    words: list[str], run: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    if words == ["history"]:
        pytest.importorskip("duckdb")
        assert main(["history", "add", run.path.name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == [{"run": run.path.name, "added": True}]
    if words == ["baseline", "list"]:
        assert main(["baseline", "set", "before", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "before"
    main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    if words == ["report"]:
        assert found["run"] == synthetic_run().run.id
        assert found["sections"][0]["headline"].startswith("optane: `passthrough` loses least (55.6 %")
        assert Path(found["report"]).exists()
    if words in (["history"], ["baseline", "list"]):
        assert found
    if words == ["lab", "status"]:
        assert found == {"running": False}


def test_a_failure_is_one_message_and_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "absent"]) == 1
    message = capsys.readouterr().err
    assert main(["report", "absent", "--debug"]) == 1
    traced = capsys.readouterr().err
    assert "Traceback" not in message
    assert message.count("\n") == 2
    assert traced.startswith("Traceback")
    assert traced.endswith(message)


def test_a_mistake_of_the_program_is_one_message_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_steps, "look_around", lambda *_: dict[str, str]()["nothing"])
    assert main([]) == 1
    assert capsys.readouterr().err == (
        "virt-overhead: internal error: KeyError: 'nothing'\n  -> report it with the output of --debug\n"
    )


def test_a_run_is_found_by_its_name_and_a_misspelt_one_is_suggested(
    run: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", run.path.name]) == 0
    assert capsys.readouterr().out.endswith(f"report: {run.report_path}\n")
    assert main(["report", "absent"]) == 1
    assert "reports/absent is not the directory of a run" in capsys.readouterr().err
    assert main(["report", "reports/lates"]) == 1
    assert '(did you mean "latest"?)' in capsys.readouterr().err


LAB = '[host.node1]\nkind = "local"\n[host.node1.disk.fast]\nid = "/dev/disk/by-id/nvme-x"\nserial = "x"\n'


@pytest.mark.parametrize(
    ("lab", "status", "first", "said"),
    [
        ("", None, "virt-overhead quickstart", "there is no lab.toml here"),
        (LAB, None, "virt-overhead doctor --lab lab.toml", "lab.toml has the disks fast on node1"),
        ("[host.x]\nknd = 1\n", None, "virt-overhead doctor --lab lab.toml", 'did you mean "kind"?'),
        (LAB, "complete", "virt-overhead report", "status complete"),
        ("", "running", "virt-overhead watch", "status running"),
        ("", "interrupted", f"virt-overhead run --resume=reports/{synthetic_run().run.id}", "status interrupted"),
    ],
)
def test_without_a_command_the_first_step_fits_the_directory(
    lab: str, status: RunStatus | None, first: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path = Path.cwd()
    if lab:
        (tmp_path / "lab.toml").write_text(lab)
    if status:
        RunStore.create(tmp_path / "reports", RUN_ID).write_results(synthetic_run(status=status))
    situation = look_around(tmp_path, {})
    assert situation.steps[0].command == first
    for step in situation.steps:
        make_parser().parse_known_args(shlex.split(step.command)[1:])
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert said in printed
    assert first in printed


def test_a_lab_of_storages_alone_is_measured_without_erasing_a_disk(tmp_path: Path) -> None:
    storage = '[host.node1]\nkind = "local"\n[host.node1.storage.vms]\nvolume_group = "vms"\n'
    (tmp_path / "lab.toml").write_text(storage)
    assert look_around(tmp_path, {}).steps[-1].command == "virt-overhead run -k storage"
    (tmp_path / "lab.toml").write_text(storage + LAB.partition('local"\n')[2])
    assert "erases" in look_around(tmp_path, {}).steps[-1].purpose


def test_a_help_text_waits_for_nothing_that_takes_long_to_import() -> None:
    program = "import sys, harness.cli; harness.cli.make_parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert not {*HEAVY, *HEAVY_OF_HARNESS} & set(done.stdout.split())


def test_listing_cells_waits_for_nothing_that_measures_or_writes_the_report() -> None:
    program = "import sys, pytest; pytest.main(sys.argv[1:]); print(); print(*sys.modules)"
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-k", "optane", "scenarios"]
    argv = [sys.executable, "-c", program, *options]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=600)
    assert "optane-lvm-randread-4k-qd32" in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "harness.scenario.plan" in loaded
    measures = {"harness.lab.facts", "harness.lab.pin", "harness.measure.campaign", "harness.guest", "harness.image"}
    measures |= {"harness.results", "harness.report.blocks", "harness.features.arrays.records"}
    assert not {"numpy", "paramiko", "plotly", "proxmoxer", "requests", "rich", "scipy", "libvirt", *measures} & loaded
