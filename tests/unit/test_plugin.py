"""pytest with the plugin, as a user runs it: selection, plans, how wrong files and options are reported, and outcomes.

Nothing is measured here: the lab's one host is a closed port of this machine, and where cells have outcomes, their
rounds are played back (`recorded_campaign`). Each run is a process of its own (`warm_pytest`). What only a new Python
shows, the workers of `--numprocesses` show.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from platformdirs import user_data_path

from harness.features.compare.command import set_baseline
from harness.image import Cache, Missing, choose_cache
from harness.image.build import load_recipes
from harness.image.keys import ensure_key
from harness.results import RunStore
from tests.unit.recorded_campaign import Played, write_recording
from tests.unit.transport_servers import closed_port, make_key
from tests.unit.warm_pytest import Request, WarmPytest, warm_pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TEST_FILE = "scenarios/test_overhead.py"

# As they are for the user: pytester's runs have a home directory of their own.
CACHE = choose_cache()
DATA = user_data_path("virt-overhead")

SCENARIO = """
title = "A disk"
modes = ["host", "passthrough"]
workloads = ["randread-4k", "seqwrite-256k"]
write_rate = "1 GiB/s"
"""
LAB = """
profile = "smoke"
[host.node1]
kind = "ssh"
address = "127.0.0.1"
port = {port}
key = "{key}"
[host.node1.disk.alpha]
id = "/dev/disk/by-id/nvme-alpha"
serial = "A"
destroy = true
[host.node1.disk.beta]
id = "/dev/disk/by-id/nvme-beta"
serial = "B"
destroy = true
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPytest]:
    with warm_pytest() as ready:
        yield ready


@pytest.fixture
def run(warm: WarmPytest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs pytest in a directory with two scenarios and a lab whose host does not answer."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("VIRT_OVERHEAD_CACHE", str(CACHE))
    monkeypatch.setenv("XDG_DATA_HOME", str(DATA.parent))
    for name in ("VIRT_OVERHEAD_LAB", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    here = pytester.path
    make_key(here / "key")
    (here / "scenarios").mkdir()
    (here / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (here / TEST_FILE).write_text((ROOT / TEST_FILE).read_text())
    for disk in ("alpha", "beta"):
        (here / "scenarios" / f"{disk}.toml").write_text(SCENARIO)
    with closed_port() as port:
        yield _project(warm, here, port)


def _project(warm: WarmPytest, here: Path, port: int) -> Run:
    (here / "lab.toml").write_text(LAB.format(port=port, key=here / "key"))
    addopts = " ".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"])
    (here / "tox.ini").write_text(f"[pytest]\naddopts = {addopts}\nfilterwarnings = error\ntestpaths = scenarios\n")

    def run(*arguments: str) -> pytest.RunResult:
        output, errors = here / "stdout", here / "stderr"
        always = [f"--basetemp={here / 'temporary'}", "-p", "no:cacheprovider"]
        request = Request([*always, *arguments], str(here), dict(os.environ), str(output), str(errors))
        started = time.monotonic()
        status = warm.run(request, timeout=600)
        sys.stdout.write(output.read_text())
        sys.stderr.write(errors.read_text())
        ret = pytest.ExitCode(status) if status in set(pytest.ExitCode) else status
        seconds = time.monotonic() - started
        return pytest.RunResult(ret, output.read_text().splitlines(), errors.read_text().splitlines(), seconds)

    return run


@pytest.fixture
def _images() -> None:
    """The images come before the first contact with a host; they are not built for a test."""
    if not (DATA / "ssh").is_dir():
        pytest.skip("the images are not built: virt-overhead images")
    images: dict[str, object] = {}
    for recipe in load_recipes(ensure_key(DATA / "ssh").public):
        images[recipe.name] = found = Cache(CACHE).find(recipe, images)  # type: ignore[arg-type]
        if isinstance(found, Missing):
            pytest.skip(f"the {recipe.name} image is not built: virt-overhead images")


def cells(result: pytest.RunResult) -> list[str]:
    """The ids of the cells that were collected."""
    return [line.partition("[")[2].removesuffix("]") for line in result.outlines if line.startswith(f"{TEST_FILE}::")]


ALPHA = [
    "alpha-host-randread-4k-qd32",
    "alpha-passthrough-randread-4k-qd32",
    "alpha-host-seqwrite-256k-qd32",
    "alpha-passthrough-seqwrite-256k-qd32",
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-k", "alpha"], ALPHA),
        (["-k", "alpha and passthrough and seqwrite"], ALPHA[3:]),
        (["-m", "cell(disk='alpha', mode='host')"], [ALPHA[0], ALPHA[2]]),
        (["-m", "cell(scenario='alpha', bs='256k') and not cell(mode='host')"], ALPHA[3:]),
        (["-k", "alpha", "-m", "cell(pattern='randread', iodepth=32, numjobs=1)"], ALPHA[:2]),
        ([f"{TEST_FILE}::test_overhead[alpha-host-randread-4k-qd32]"], ALPHA[:1]),
    ],
)
def test_cells_are_selected_by_name_and_by_what_they_measure(
    run: Run, arguments: list[str], expected: list[str]
) -> None:
    result = run("--collect-only", "-q", *arguments)
    assert result.ret == pytest.ExitCode.OK
    assert cells(result) == expected


@pytest.fixture
def run_with_others(run: Run, pytester: pytest.Pytester) -> Run:
    """A scenario for any disk and one for NVMe disks, and two more disks in the lab, whose names have special marks."""
    (pytester.path / "scenarios" / "any_disk.toml").write_text('disk = "any"' + SCENARIO)
    (pytester.path / "scenarios" / "nvme_cold.toml").write_text('disk = "nvme"' + SCENARIO)
    with (pytester.path / "lab.toml").open("a") as lab:
        for name, link in (("my-nvme", "nvme-C"), ("old.1", "ata-D")):
            lab.write(f'[host.node1.disk."{name}"]\nid = "/dev/disk/by-id/{link}"\nserial = "{name}"\n')
    return run


def of_disk(name: str) -> list[str]:
    return [cell.replace("alpha", name) for cell in ALPHA]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-k", "any_disk"], [*of_disk("my-nvme"), *of_disk("old_1")]),
        (["-k", "any_disk", "--disk=my-nvme"], of_disk("my-nvme")),
        (["--disk=my-nvme"], [*of_disk("my-nvme"), *of_disk("my-nvme_cold")]),
        (["-k", "nvme_cold"], of_disk("my-nvme_cold")),
        (["-m", "cell(scenario='any_disk', disk='old.1', mode='host')"], of_disk("old_1")[::2]),
        (["--disk=beta", "--disk=old.1"], [*of_disk("old_1"), *of_disk("beta")]),
        (["-k", "alpha"], ALPHA),
    ],
)
def test_a_class_of_disks_is_measured_on_each_disk_under_its_own_name(
    run_with_others: Run, arguments: list[str], expected: list[str]
) -> None:
    result = run_with_others("--collect-only", "-q", *arguments)
    assert result.ret == pytest.ExitCode.OK
    assert cells(result) == expected


def test_the_collection_says_what_it_assumed_of_a_disk(run_with_others: Run) -> None:
    result = run_with_others("--collect-only", "-q", "-k", "any_disk")
    result.stdout.fnmatch_lines(
        [
            "my-nvme: any_disk on disk my-nvme, class nvme assumed from its link nvme-C",
            "old_1: any_disk on disk old.1, its class is not known before the host is asked",
        ]
    )


def test_a_selection_without_a_disk_says_why(run_with_others: Run) -> None:
    result = run_with_others("--collect-only", "-q", "-k", "any_disk", "--disk=alpha")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    why = "not on alpha: measure it with the scenario of its name: -k alpha"
    result.stdout.fnmatch_lines([f"any_disk: {why}"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-k", "alhpa"], '-k: no cell has "alhpa" in its id (did you mean "alpha"?)'),
        (["-k", "alpha+host"], '-k: no cell has "alpha+host" in its id (did you mean "alpha"?)'),
        (
            ["-m", "cell(mode='hots')"],
            "-m: no cell has mode='hots'; allowed: 'host', 'passthrough' (did you mean \"'host'\"?)",
        ),
        (["-m", "cell(iodepth='32')"], "-m: no cell has iodepth='32'; allowed: 32"),
        (
            ["-m", "cell(qd=32)"],
            "-m: a cell has no `qd`; allowed: scenario, disk, mode, workload, pattern, bs, iodepth, ",
        ),
        (["-o", "addopts=", "-m", "cel(mode='host')"], '-m: no mark `cel`; allowed: cell (did you mean "cell"?)'),
        (
            ["-k", "alpha and beta"],
            "no cell has all that -k and -m require; without them, --collect-only lists all cells",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_selection_of_nothing_says_why_and_nothing_about_other_scenarios(
    run_with_others: Run, arguments: list[str], why: str
) -> None:
    result = run_with_others("--collect-only", "-q", *arguments)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    (line, *end) = [line for line in result.outlines if line]
    assert line.startswith(why)
    assert len(end) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-k", "alpha beta"], '-k "alpha beta": expected end of input; got identifier'),
        (["-k", "alpha && beta"], '-k "alpha && beta": unexpected character "&"'),
        (["-m", "cell(mode=host)"], '-m "cell(mode=host)": unexpected character/s "host"'),
        (["alpha"], "alpha: a scenario is not selected by its path\n  -> use -k alpha"),
        (["scenarios/alpha.toml"], "alpha.toml: a scenario is not selected by its path\n  -> use -k alpha"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_selection_that_cannot_be_read_is_one_message_with_an_example(
    run: Run, arguments: list[str], said: str
) -> None:
    message = usage_error(run("--collect-only", *arguments))
    assert said in message
    assert "  -> " in message
    assert "passthrough" not in message.replace("-k", "")


def test_a_run_names_its_lab_and_why_it_is_the_embedded_one(run: Run, pytester: pytest.Pytester) -> None:
    named = run("--collect-only", "-k", "alpha")
    assert f"lab: {pytester.path / 'lab.toml'}" in named.outlines
    (pytester.path / "lab.toml").unlink()
    (pytester.path / "scenarios" / "optane.toml").write_text(SCENARIO)
    embedded = run("--collect-only", "-k", "optane")
    assert "lab: the embedded lab, as neither --lab nor lab.toml in this directory names another" in embedded.outlines


def test_two_workers_find_the_host_of_a_disk_whose_name_has_a_hyphen(run_with_others: Run) -> None:
    result = run_with_others("-n", "2", "-v", "-k", "any_disk")
    workers = {line.partition("]")[0] for line in result.outlines if "[gw" in line and TEST_FILE in line}
    assert len(workers) == 1


def test_the_collection_shows_the_plan_of_the_selected_cells(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--collect-only", "-k", "passthrough")
    result.stdout.fnmatch_lines(
        [
            "alpha: 2 cells in 1 group, 2 arms, 2 rounds: about * min, at most * GiB written to alpha",
            "beta: 2 cells in 1 group, 2 arms, 2 rounds: about * min, at most * GiB written to beta",
        ]
    )
    assert not (pytester.path / "reports").exists()


def test_a_host_that_was_never_calibrated_is_one_line_with_the_command(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--collect-only", "-k", "passthrough")
    what = "node1: the smallest overhead that 4 cells can show is not known, because this host was never calibrated"
    lines = [line for line in result.outlines if "smallest overhead" in line]
    assert lines == [f"{what}; run: virt-overhead calibrate --lab={pytester.path / 'lab.toml'} --host=node1"]


def test_rounds_and_profile_of_the_command_line_go_into_the_plan(run: Run) -> None:
    result = run("--collect-only", "-q", "-k", "alpha and host and randread", "--profile", "standard", "--rounds", "7")
    assert cells(result) == [f"alpha-host-randread-4k-qd{2**power}" for power in range(9)]
    result.stdout.fnmatch_lines(["alpha: 9 cells in 1 group, 1 arm, 7 rounds: *"])


def usage_error(result: pytest.RunResult) -> str:
    """What a run says that ends as a usage error: one message, and no traceback."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stderr.str()
    assert "Traceback" not in said + result.stdout.str()
    assert "INTERNALERROR" not in said + result.stdout.str()
    assert said.count("ERROR") == 1
    return said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "fast"], "--profile: invalid choice: 'fast' (choose from 'smoke', 'standard', 'publish')"),
        (["--rounds", "0"], 'argument --rounds: "0": allowed: a whole number from 1 to 10000'),
        (["--rounds", "10001"], 'argument --rounds: "10001": allowed: a whole number from 1 to 10000'),
        (["--rounds", "9" * 5000], 'argument --rounds: "999'),
        (["--seed", "x"], 'argument --seed: "x": allowed: a whole number from 0 to 2147483647'),
        (["--seed", "2147483648"], 'argument --seed: "2147483648": allowed: a whole number from 0 to 2147483647'),
        (["--project=absent"], "--project=absent: no such directory"),
        (["--lab="], "argument --lab: the value is empty; allowed: a path"),
        (["--resume=absent"], "absent is not the directory of a run\n  -> give reports/RUN-ID"),
        (["--resume=scenarios"], "results.json does not exist: the run ended before its first results"),
        (["--lab", "lap.toml"], 'lap.toml: no such lab file; allowed: lab.toml (did you mean "lab.toml"?)'),
        (["--disk=alhpa"], 'lab.toml has no disk "alhpa"; allowed: alpha, beta (did you mean "alpha"?)'),
        (["--host", "node2"], 'lab.toml: no host "node2"; allowed: node1 (did you mean "node1"?)'),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_option_is_reported_with_what_is_allowed(run: Run, arguments: list[str], said: str) -> None:
    assert said in usage_error(run(*arguments))


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])
@pytest.mark.parametrize(
    "mistake",
    [
        ("lab.toml", 'serial = "B"', 'serail = "B"', 'lab.toml: host.node1.disk.beta.serail = "B": no such key'),
        ("scenarios/beta.toml", '"host"', '"hots"', 'scenarios/beta.toml: modes[0] = "hots": no such mode'),
        ("scenarios/beta.toml", '"A disk"', "A disk", "scenarios/beta.toml: line 2"),
    ],
    ids=["lab", "scenario", "not TOML"],
)
def test_a_broken_file_is_one_message_naming_file_and_key(
    run: Run, pytester: pytest.Pytester, mistake: tuple[str, str, str, str], workers: list[str]
) -> None:
    file, old, new, said = mistake
    path = pytester.path / file
    path.write_text(path.read_text().replace(old, new))
    message = usage_error(run(*workers))
    assert f"{pytester.path / said}" in message
    assert "\n  -> " in message


def test_a_broken_lab_file_does_not_prevent_other_tests(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "lab.toml").write_text("nothing")
    pytester.mkdir("tests").joinpath("test_one.py").write_text("def test_one(): pass\n")
    run("tests").assert_outcomes(passed=1)


def test_selecting_only_disks_that_the_lab_lacks_is_a_usage_error(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "scenarios" / "gamma.toml").write_text(SCENARIO)
    assert 'no disk "gamma"; allowed: alpha, beta' in usage_error(run("-k", "gamma"))


ARRAYS = """
title = "Arrays"
disks = ["alpha", "beta", "gamma"]
modes = ["pair", "three"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"
[mode.pair]
layout = { kind = "md", level = 0, disks = 2 }
attach = {}
[mode.three]
layout = { kind = "lvm", on = { kind = "md", level = 5, disks = 3 } }
attach = {}
"""


def test_the_lab_needs_only_the_disks_of_the_selected_cells_of_an_array(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "scenarios" / "arrays.toml").write_text(ARRAYS)
    result = run("--collect-only", "-q", "-k", "arrays and pair")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["arrays: 1 cell in 1 group, * written to alpha, beta"])
    assert 'no disk "gamma"' in usage_error(run("--collect-only", "-k", "arrays"))


def test_skips_because_of_a_missing_disk_are_announced_before_measuring(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "scenarios" / "gamma.toml").write_text(SCENARIO)
    result = run("--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(['gamma: will be skipped: */lab.toml: no disk "gamma"; allowed: alpha, beta'])


@pytest.mark.usefixtures("_images")
def test_an_unreachable_host_is_reported_once_with_the_remedy_and_is_not_a_success(
    run: Run, pytester: pytest.Pytester
) -> None:
    result = run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(skipped=8)
    said = result.stdout.str()
    # In the summary of the run, and in that of pytest.
    assert said.count("-> check that the machine is up and that its SSH server listens there") == 2
    result.stdout.fnmatch_lines(
        [
            "*= nothing was measured =*",
            "no cell could be measured on node1; therefore the exit status is 1",
            "SKIPPED [[]1] *: host node1: 127.0.0.1:* does not answer: Connection refused",
            "SKIPPED [[]7] *: not tried: host node1 failed before: *Connection refused",
        ]
    )
    assert "Traceback" not in said + result.stderr.str()
    result.stdout.fnmatch_lines(["This run failed: host node1: 127.0.0.1:* does not answer: Connection refused *"])
    stored = json.loads((pytester.path / "reports" / "latest" / "results.json").read_text())
    assert stored["lab"]["why"].startswith("the host was never reached: host node1: 127.0.0.1:")


@pytest.mark.usefixtures("_images")
def test_an_unreachable_host_is_an_error_if_the_lab_is_required(run: Run) -> None:
    result = run("--require-lab", "-k", "alpha")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1, skipped=3)
    result.stdout.fnmatch_lines(["host node1: 127.0.0.1:* does not answer: Connection refused", "  -> check that *"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.usefixtures("_images")
def test_two_workers_leave_all_cells_of_a_host_to_one_of_them(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--numprocesses=2", "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(skipped=8)
    workers = [line[:5] for line in result.outlines if line.startswith("[gw") and "SKIPPED" in line]
    assert len(workers) == 8
    assert len(set(workers)) == 1
    assert [path.is_symlink() for path in (pytester.path / "reports").iterdir()].count(False) == 1
    assert result.stdout.str().count("= nothing was measured =") == 1


def test_workers_share_tests_that_are_not_cells(run: Run, pytester: pytest.Pytester) -> None:
    text = "import time, pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_one(n): time.sleep(0.2)\n"
    (pytester.path / "scenarios" / "test_other.py").write_text(text)
    result = run("-n", "2", "-v", "scenarios/test_other.py")
    assert {line[:5] for line in result.outlines if line.startswith("[gw") and "PASSED" in line} == {"[gw0]", "[gw1]"}


@pytest.mark.parametrize(
    ("distribution", "together"),
    [("loadfile", "test_{file}.py"), ("loadscope", "test_{file}.py::Test{cls}")],
)
def test_tests_that_are_not_cells_stay_together_as_requested(
    run: Run, pytester: pytest.Pytester, distribution: str, together: str
) -> None:
    tests = "".join(f"class Test{cls}:\n def test_1(self): pass\n def test_2(self): pass\n" for cls in "AB")
    for file in "ab":
        (pytester.path / "scenarios" / f"test_{file}.py").write_text(tests)
    result = run("-n", "2", "-v", "--dist", distribution, "scenarios/test_a.py", "scenarios/test_b.py")
    result.assert_outcomes(passed=8)
    lines = [line for line in result.outlines if "PASSED" in line]
    parts = {together.format(file=file, cls=cls) for file in "ab" for cls in "AB"}
    assert [len({line[:5] for line in lines if part in line}) for part in sorted(parts)] == [1] * len(parts)


# --- outcomes ---

# A test that appends lines goes on with the last function.
PLAYBACK = """


def pytest_sessionfinish():
    from tests.substitutes import require_no_bypass

    require_no_bypass()


def pytest_configure():
    from harness import image
    from harness.measure import host_measurer
    from tests.substitutes import substitute
    from tests.unit.recorded_campaign import RecordedMeasurer

    substitute(host_measurer, HostMeasurer=RecordedMeasurer)
    substitute(image, ensure_images=lambda events: None)
"""
JUDGED = """
title = "A disk"
modes = ["host", "passthrough"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "1 GiB/s"
[profile.smoke]
runtime = "3 s"
rounds = 3
most_rounds = 3
blocks = 1
round_limit = "6 s"       # each job is a group of its own
[[budget]]
metric = "iops"
share = "10 %"
"""
HALF = [0.51, 0.5, 0.49]
CLEARLY = [0.801, 0.8, 0.799]
NEAR = [0.89, 0.93, 0.86]
BARELY = [0.883, 0.874, 0.866]
"""Above 10 % with p = 0.019: evidence enough for one cell, and not for the first of two."""
FINE = [0.98, 0.97, 0.975]

Play = Callable[..., Callable[..., pytest.RunResult]]


@pytest.fixture
def play(run: Run, pytester: pytest.Pytester) -> Play:
    """Has the randread and the randwrite guest of `alpha` show these shares of the host's IOPS in their rounds."""

    def play(
        randread: list[float],
        randwrite: list[float] = FINE,
        *,
        disk: float = 1.0,
        scenario: str = JUDGED,
        lacks: tuple[str, ...] = (),
    ) -> Callable[..., pytest.RunResult]:
        (pytester.path / "conftest.py").write_text((ROOT / "conftest.py").read_text() + PLAYBACK)
        (pytester.path / "scenarios" / "alpha.toml").write_text(scenario)
        (pytester.path / "scenarios" / "beta.toml").unlink(missing_ok=True)
        recording: dict[str, Played] = {
            "randread-4k-qd32": {"guest": randread, "disk": disk},
            "randwrite-4k-qd32": {"guest": randwrite, "disk": 1.0},
        }
        skipped = {mode: f"host node1: {mode}: no device-mapper" for mode in lacks}
        write_recording(pytester.path / "recording.json", recording, skipped)
        return run

    return play


def test_cells_within_their_budget_and_the_host_pass(play: Play) -> None:
    result = play(FINE)()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*overhead on node1, profile smoke*", "*within*"])


def test_a_run_says_what_its_cells_can_show_if_they_scatter_as_in_an_earlier_run(
    play: Play, pytester: pytest.Pytester
) -> None:
    run = play(FINE)
    assert any(line.startswith("node1: the smallest overhead that 2 cells can show") for line in run().outlines)
    name = next(path.name for path in (pytester.path / "reports").iterdir() if not path.is_symlink())
    result = run("-v", "-k", "randread")
    cell = "alpha-passthrough-randread-4k-qd32"
    summary = f"alpha: the smallest overhead that a cell can show is * % ({cell}); noise from: run {name} (1)"
    result.stdout.fnmatch_lines([summary, f"  {cell}: * % with 3 blocks (run {name})"])
    assert not any(line.startswith("node1: the smallest overhead") for line in result.outlines)


def test_a_cell_that_exceeds_its_budget_fails_with_the_figures(play: Play) -> None:
    result = play(CLEARLY)()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["*alpha-passthrough-randread-4k-qd32: exceeds: iops overhead 20.0 %*budget 10 %*n = 3 blocks*"]
    )


def test_a_cell_whose_bytes_never_reached_the_disk_is_an_error_in_setup(play: Play) -> None:
    result = play(FINE, disk=0.25)()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*alpha-passthrough-randread-4k-qd32 is void: *the host's page cache served it*"])
    assert "Traceback" not in result.stdout.str()


CHECK = """

from harness.results import ValidityCheck


def pytest_virt_overhead_checks(cell, measurements):
    hot = cell.job.id == "randread-4k-qd32" and cell.mode.attach is not None
    yield ValidityCheck("temperature", ok=not hot, detail=f"71 degrees in one of {len(measurements)} measurements")
"""


def test_a_check_of_a_user_makes_a_cell_void_like_one_of_the_harness(play: Play, pytester: pytest.Pytester) -> None:
    run = play(FINE)
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(CHECK)
    result = run()
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*alpha-passthrough-randread-4k-qd32 is void: temperature: 71 degrees in one of 4 *"])


def test_a_cell_that_memory_serves_is_measured_if_that_is_declared_and_void_if_it_is_not(play: Play) -> None:
    declared = JUDGED.replace("write_rate", 'expect_void = ["passthrough"]\nwrite_rate')
    play(FINE, disk=0.25, scenario=declared)().assert_outcomes(passed=4)
    result = play(FINE, disk=0.25, scenario=JUDGED)()
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*declare it with cached = true*"])


def test_a_cell_that_its_rounds_do_not_decide_has_its_own_outcome(play: Play) -> None:
    result = play(NEAR)("-v")
    assert result.ret == pytest.ExitCode.OK
    counted = result.parseoutcomes()
    assert {name: number for name, number in counted.items() if name != "seconds"} == {"passed": 3, "inconclusive": 1}
    result.stdout.fnmatch_lines(["*alpha-passthrough-randread-4k-qd32[]] INCONCLUSIVE*"])


def test_an_inconclusive_cell_is_an_i_among_the_dots(play: Play) -> None:
    result = play(NEAR)("-q")
    assert [line for line in result.outlines if line.startswith(".i")]
    result.stdout.fnmatch_lines(["3 passed, 1 inconclusive in *"])


def test_an_inconclusive_cell_fails_the_run_if_requested(play: Play) -> None:
    result = play(NEAR)("--inconclusive=fail")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*alpha-passthrough-randread-4k-qd32: inconclusive: iops overhead *"])


def test_another_meaning_of_inconclusive_is_a_usage_error(run: Run) -> None:
    assert "--inconclusive: invalid choice: 'pass'" in usage_error(run("--inconclusive=pass"))


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])
def test_a_cell_that_exceeds_only_once_the_others_are_known_is_reported_at_the_end(
    play: Play, workers: list[str]
) -> None:
    result = play(BARELY, HALF)(*workers)
    # The progress of a worker is shown by its controller.
    result.stdout.re_match_lines([r"  \[gw[01]\]  measure alpha-batch1 " if workers else r"  measure alpha-batch1 "])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    counted = result.parseoutcomes()
    assert (counted["passed"], counted["failed"], counted["inconclusive"]) == (2, 1, 1)
    result.stdout.fnmatch_lines(
        ["*= exceeds, after the correction for all cells of the run =*", "alpha-passthrough-randread-4k-qd32"]
    )


# --- a run without a verdict ---

UNJUDGED = JUDGED.replace('share = "10 %"', 'share = "10 %"\nlab = ["nested"]')
WORKERS = pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])


def results(pytester: pytest.Pytester) -> dict[str, Any]:
    """The results.json of the only run."""
    found: dict[str, Any] = json.loads((the_run(pytester.path / "reports") / "results.json").read_text())
    return found


@WORKERS
def test_a_run_that_judged_nothing_says_so_and_fails_if_a_verdict_is_required(
    play: Play, pytester: pytest.Pytester, workers: list[str]
) -> None:
    result = play(FINE, scenario=UNJUDGED)(*workers, "--require-verdict", "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "--require-verdict: nothing was judged on node1: No budget was decided. Of 2 cells with a guest: 2 with*",
            "*= nothing was judged on node1 =*",
        ]
    )
    cases = {case.get("name"): case for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")}
    failure = cases["verdict[node1]"].find("failure")
    assert failure is not None
    assert "nothing was judged on node1" in str(failure.text)
    suite = next(ElementTree.parse(pytester.path / "junit.xml").iter("testsuite"))
    assert (suite.get("tests"), suite.get("failures")) == ("5", "1")
    assert results(pytester)["judged"] == {
        "decided": False,
        "within": 0,
        "exceeds": 0,
        "inconclusive": 0,
        "unjudged": 2,
        "void": 0,
        "skipped": 0,
        "why": results(pytester)["judged"]["why"],
    }


def test_a_run_that_judged_nothing_is_no_failure_without_the_option(play: Play, pytester: pytest.Pytester) -> None:
    result = play(FINE, scenario=UNJUDGED)()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*= nothing was judged on node1 =*", "No budget was decided.*"])
    assert "Nothing was judged" in (the_run(pytester.path / "reports") / "index.html").read_text()


def test_one_verdict_is_enough(play: Play, pytester: pytest.Pytester) -> None:
    result = play(FINE, NEAR)("--require-verdict")
    assert result.ret == pytest.ExitCode.OK
    assert "nothing was judged" not in result.stdout.str()
    assert results(pytester)["judged"]["decided"]


def test_only_inconclusive_cells_are_no_verdict(play: Play) -> None:
    result = play(NEAR, NEAR)("--require-verdict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*Of 2 cells with a guest: 2 inconclusive. To get a verdict: measure longer*"])


def test_a_selection_of_only_the_host_is_no_verdict(play: Play) -> None:
    result = play(FINE)("-k", "host", "--require-verdict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*nothing was judged on node1: No cell with a guest was measured*"])


def test_only_skipped_cells_are_no_verdict(play: Play) -> None:
    result = play(FINE, lacks=("passthrough",))("--require-verdict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*Of 2 cells with a guest: 2 not measured.*"])


def test_collecting_needs_no_verdict(play: Play) -> None:
    assert play(FINE)("--collect-only", "--require-verdict").ret == pytest.ExitCode.OK


# --- a baseline ---


@WORKERS
def test_a_run_that_is_worse_than_its_baseline_fails(play: Play, pytester: pytest.Pytester, workers: list[str]) -> None:
    play(FINE, scenario=UNJUDGED)()
    set_baseline(pytester.path / "reports", "main", RunStore.open(pytester.path / "reports" / "latest"))
    result = play([0.5, 0.51, 0.5], scenario=UNJUDGED)(*workers, "--baseline=main")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "--baseline=main: worse: of 4 figures, * worse, *",
            "*= compared with the baseline main =*",
            "guest:passthrough * worse*",
        ]
    )


def test_a_run_like_its_baseline_succeeds_and_an_unknown_baseline_is_a_usage_error(
    play: Play, pytester: pytest.Pytester
) -> None:
    go = play(FINE, scenario=UNJUDGED)
    assert 'no baseline "main"' in usage_error(go("--baseline=main"))
    go()
    set_baseline(pytester.path / "reports", "main", RunStore.open(pytester.path / "reports" / "latest"))
    result = go("--baseline=main")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*= compared with the baseline main =*"])


# --- a limit of the bytes written ---

ENDURANCE = 'serial = "A"\nendurance = "0.1 TBW"'
"""Of the disk alpha, of which 1 % is 1 GB."""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--max-writes=2TB", '--max-writes: "2TB": TB is ambiguous; allowed: TiB'),
        ("--max-writes=0", 'argument --max-writes: "0": allows no write at all'),
        ("--max-writes=1%", "--max-writes=1%: the rated endurance of disk alpha is not known"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_a_usage_error(play: Play, option: str, said: str) -> None:
    assert said in usage_error(play(FINE)(option))


def test_the_limit_and_what_is_left_out_are_announced_before_the_run(play: Play, pytester: pytest.Pytester) -> None:
    go = play(FINE)
    lab = pytester.path / "lab.toml"
    lab.write_text(lab.read_text().replace('serial = "A"', ENDURANCE))
    result = go("--collect-only", "--max-writes=1%")
    result.stdout.fnmatch_lines(
        [
            "alpha: 2 cells in 1 group*at most 64 MiB written to alpha",
            "alpha: --max-writes=1%: at most 953.7 MiB written to alpha, 1.0 % of its endurance; the layouts and*",
            "alpha: --max-writes leaves out the workloads randwrite-4k (2 cells)",
        ]
    )


@WORKERS
def test_cells_that_the_limit_leaves_out_are_skipped_with_the_reason_also_if_the_lab_is_required(
    play: Play, pytester: pytest.Pytester, workers: list[str]
) -> None:
    result = play(FINE)(*workers, "--max-writes=1GiB", "--require-lab", "-rs")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["*--max-writes=1GiB: the plan leaves out the workloads randwrite-4k*"])
    result.stdout.fnmatch_lines(["Limited writes: alpha: *--max-writes=1GiB allows 1 GiB. Left out: *"])
    found = results(pytester)
    assert found["run"]["max_writes"] == "1GiB"
    assert [writes["disk"] for writes in found["writes"]] == ["alpha"]
    assert sum(cell["skipped"] is not None for cell in found["cells"]) == 2


def test_a_run_of_which_the_limit_leaves_nothing_is_not_a_success(play: Play) -> None:
    result = play(FINE)("--max-writes=1MiB")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["*= nothing was measured =*"])


def test_a_cell_that_would_exceed_alone_stays_inconclusive_among_others_that_do_not(play: Play) -> None:
    result = play(BARELY, FINE)()
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["inconclusive"] == 1
    assert "after the correction for all cells of the run" not in result.stdout.str()


def test_the_same_cell_exceeds_if_it_is_the_only_one(play: Play) -> None:
    play(BARELY, FINE)("-k", "passthrough and randread").assert_outcomes(failed=1)


def test_a_cell_keeps_the_verdict_that_its_last_look_gave_when_the_time_was_spent(play: Play) -> None:
    # Both cells are one group. One is decided by what the last look may spend, the other is not: both end it.
    hasty = JUDGED.replace('round_limit = "6 s"', 'time_limit = "1 ms"').replace("10 %", "20 %")
    hasty = hasty.replace("most_rounds = 3", "most_rounds = 12")
    result = play([0.86, 0.93, 0.9], [0.75, 0.85, 0.8], scenario=hasty)()
    assert result.ret == pytest.ExitCode.OK
    counted = result.parseoutcomes()
    assert (counted["passed"], counted["inconclusive"]) == (3, 1)


def test_after_a_failure_later_cells_are_skipped_with_the_first_cause(play: Play) -> None:
    result = play([], FINE)()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1, skipped=3)
    result.stdout.fnmatch_lines(["SKIPPED [[]3] *: not tried: host node1 failed before: host node1: connection lost"])


def test_a_run_that_failed_after_a_part_of_its_cells_says_how_to_measure_the_rest(play: Play) -> None:
    result = play(FINE, [])()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["This run failed: *2 of 4 cells measured*"])
    result.stdout.fnmatch_lines(["to measure the rest, add to the same command: --resume=*"])


INTERRUPTED = """


def pytest_runtest_{where}():
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("setup", "interrupted: nothing was measured yet"),
        (
            "teardown",
            "interrupted: what was measured is stored; to go on, add to the same command: --resume=*/reports/*",
        ),
    ],
)
def test_ctrl_c_says_in_one_line_what_is_stored_and_how_to_go_on(
    play: Play, pytester: pytest.Pytester, where: str, said: str
) -> None:
    run = play(FINE)
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(INTERRUPTED.format(where=where))
    result = run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"!* {said} !*"])
    result.stdout.no_fnmatch_line("*KeyboardInterrupt*")
    assert ("--resume=" in result.stdout.str()) == (where == "teardown")


INTERRUPTED_CONTROLLER = """


def pytest_runtest_logreport(report):
    if report.when == "teardown" and hasattr(report, "node"):  # which xdist adds for the controller
        raise KeyboardInterrupt
"""


def test_ctrl_c_names_the_runs_of_the_workers(play: Play, pytester: pytest.Pytester) -> None:
    run = play(FINE)
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(INTERRUPTED_CONTROLLER)
    result = run("-n", "1")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (stored,) = (path.parent for path in (pytester.path / "reports").glob("2*/journal.jsonl"))
    result.stdout.fnmatch_lines([f"!* what was measured is stored; to go on, *: --resume={stored} !*"])


UNWRITABLE = """
    class Unwritable(RecordedMeasurer):
        def close(self):
            (self.store.path / "index.html").mkdir()

    host_measurer.HostMeasurer = Unwritable
"""


def test_a_report_that_cannot_be_written_does_not_prevent_the_end_of_other_hosts(
    play: Play, pytester: pytest.Pytester
) -> None:
    go = play(FINE)
    lab = (pytester.path / "lab.toml").read_text()
    head, beta = lab.split("[host.node1.disk.beta]")
    second = head.partition("[host.node1]")[2].partition("[host.node1.disk.alpha]")[0]
    second = second.replace('"127.0.0.1"', '"127.0.0.2"')
    (pytester.path / "lab.toml").write_text(f"{head}[host.node2]{second}[host.node2.disk.beta]{beta}")
    (pytester.path / "scenarios" / "beta.toml").write_text(JUDGED)
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(UNWRITABLE)
    result = go()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=8)
    runs = [path.parent for path in (pytester.path / "reports").glob("2*/results.json")]
    stored = [json.loads((path / "results.json").read_text()) for path in runs]
    assert {run["lab"]["host"]: run["run"]["status"] for run in stored} == {"node1": "complete", "node2": "complete"}
    for path in runs:
        assert f"virt-overhead: at the end of the run: {path / 'index.html'} " in result.stderr.str()
    result.stdout.fnmatch_lines(["*overhead on node1*", "*overhead on node2*"])


# --- modes that the host cannot have ---

TWO_MODES = JUDGED.replace('["host", "passthrough"]', '["host", "passthrough", "lvm"]')


def measured(reports: Path) -> set[str]:
    """The arms that the only run has measurements of."""
    journal = the_run(reports) / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return {line["arm"] for line in lines if "arm" in line}


def test_without_a_supported_mode_nothing_is_measured_and_the_run_fails(play: Play, pytester: pytest.Pytester) -> None:
    result = play(FINE, scenario=TWO_MODES, lacks=("passthrough", "lvm"))()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(skipped=6)
    result.stdout.fnmatch_lines(
        [
            "*= nothing was measured =*",
            "no cell could be measured on node1; therefore the exit status is 1",
            "SKIPPED [[]2] *: host node1: lvm: no device-mapper",
        ]
    )
    result.stdout.fnmatch_lines(
        ["SKIPPED [[]2] *: the host is not measured without a guest: * host node1: lvm: no device-mapper*"]
    )
    reports = pytester.path / "reports"
    assert measured(reports) == set()
    stored = json.loads((the_run(reports) / "results.json").read_text())
    assert [cell["skipped"] is not None for cell in stored["cells"]] == [True] * 6
    assert stored["run"]["status"] == "complete"


@pytest.mark.parametrize("lacks", [("passthrough", "lvm"), ("lvm",)], ids=["all", "one"])
def test_an_unsupported_mode_is_an_error_if_the_lab_is_required(play: Play, lacks: tuple[str, ...]) -> None:
    result = play(FINE, scenario=TWO_MODES, lacks=lacks)("--require-lab")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    if len(lacks) == 2:
        result.assert_outcomes(errors=6)
    else:
        result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["host node1: lvm: no device-mapper"])
    assert "Traceback" not in result.stdout.str()


def test_the_supported_modes_are_measured_without_the_others(play: Play, pytester: pytest.Pytester) -> None:
    result = play(FINE, scenario=TWO_MODES, lacks=("lvm",))()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=4, skipped=2)
    result.stdout.fnmatch_lines(["not measured (2): `lvm`, 2 cells: *"])
    assert measured(pytester.path / "reports") == {"host", "guest:passthrough"}


def test_a_group_without_a_supported_guest_is_not_measured(play: Play, pytester: pytest.Pytester) -> None:
    # Of randwrite the LVM guest is wanted alone, and each job is a group: both are of one setup, which is built.
    selected = ("-k", "(passthrough and randread) or (lvm and randwrite) or (host and randwrite)")
    result = play(FINE, scenario=TWO_MODES, lacks=("lvm",))(*selected)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=2)
    journal = the_run(pytester.path / "reports") / "journal.jsonl"
    assert "randwrite" not in journal.read_text()


def test_only_the_host_is_measured_if_nothing_else_was_selected(play: Play) -> None:
    play(FINE, scenario=TWO_MODES, lacks=("passthrough", "lvm"))("-k", "host").assert_outcomes(passed=2)


# --- resuming ---


def the_run(reports: Path) -> Path:
    """The directory of the only run."""
    (found,) = (path for path in reports.iterdir() if not path.is_symlink())
    return found


def test_a_run_keeps_its_id_when_its_directory_is_renamed_and_it_is_resumed(
    play: Play, pytester: pytest.Pytester
) -> None:
    play(FINE)("--rounds=2")
    run = the_run(pytester.path / "reports")
    renamed = run.rename(run.with_name('x", name="y'))
    assert play(FINE)("--rounds=3", f"--resume={renamed}").ret == pytest.ExitCode.OK
    assert json.loads((renamed / "results.json").read_text())["run"]["id"] == run.name


@pytest.mark.parametrize("changed", ["../../etc", "20260101-120000-abcd\n"])
def test_a_stored_run_whose_id_was_changed_is_refused_before_anything_is_named_after_it(
    play: Play, pytester: pytest.Pytester, changed: str
) -> None:
    play(FINE)()
    results = the_run(pytester.path / "reports") / "results.json"
    document = json.loads(results.read_text())
    document["run"]["id"] = changed
    results.write_text(json.dumps(document))
    said = usage_error(play(FINE)(f"--resume={results.parent}"))
    assert f"{results} is not a valid results.json" in said
    assert f"run.id = {json.dumps(changed)}: " in said
    assert "not a valid name" in said


KILLED = """

import itertools, os, signal

def _killed_at_{moment}(file, moments=itertools.count(1), to_disk=os.fsync):
    if next(moments) == {moment}:
        os.kill(os.getpid(), signal.SIGKILL)
    to_disk(file)

os.fsync = _killed_at_{moment}
"""


@pytest.mark.parametrize("moment", [9, 12, 40], ids=["first round", "first group", "later group"])
def test_a_run_that_was_killed_has_a_report_and_goes_on(play: Play, pytester: pytest.Pytester, moment: int) -> None:
    go = play(FINE)
    conftest = pytester.path / "conftest.py"
    text = conftest.read_text()
    conftest.write_text(text + KILLED.format(moment=moment))
    assert go().ret == -signal.SIGKILL
    conftest.write_text(text)
    run = the_run(pytester.path / "reports")
    shown = pytester.run(sys.executable, "-m", "harness.cli", "report", run)
    assert shown.ret == 0
    assert (run / "index.html").exists()
    before = (run / "journal.jsonl").read_text()
    result = go(f"--resume={run}")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=4)
    journal = (run / "journal.jsonl").read_text()
    assert journal.startswith(before)
    lines = [line for line in map(json.loads, journal.splitlines()) if "arm" in line]
    keys = [(line["group"], line["round"], line["arm"], line["job"], line["repeat"]) for line in lines]
    assert len(keys) == len(set(keys))
    stored = json.loads((run / "results.json").read_text())
    assert stored["run"]["status"] == "complete"
    assert [len(cell["rounds"]) for cell in stored["cells"]] == [3] * 4


# --- several hosts ---

SECOND_HOST = """
[host.node2]
kind = "ssh"
address = "127.0.0.2"
port = {port}
key = "{key}"
[host.node2.disk.gamma]
id = "/dev/disk/by-id/nvme-gamma"
serial = "G"
destroy = true
"""


def test_losing_a_host_does_not_stop_the_others(play: Play, pytester: pytest.Pytester) -> None:
    run = play(FINE, [], scenario=JUDGED.replace(', "randwrite-4k"', ""))
    (pytester.path / "scenarios" / "gamma.toml").write_text(JUDGED.replace('"randread-4k", ', ""))
    with (pytester.path / "lab.toml").open("a") as lab:
        lab.write(SECOND_HOST.format(port=22, key=pytester.path / "key"))
    result = run("-n", "2", "--history=history")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, errors=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "host node2: connection lost",
            "*= 1 of 2 hosts complete: 4 cells =*",
            "node1: complete, 2 cells: 1 within, 1 baseline",
            "node2: failed, 2 cells: 2 not measured; host node2: connection lost",
            "not added to the history: run * is not complete (failed), *",
            "*history: 1 of 2 runs added",
            "SKIPPED [[]1] *not tried: host node2 failed before: host node2: connection lost",
        ]
    )
    paths = [path for path in (pytester.path / "reports").iterdir() if not path.is_symlink()]
    runs = {run.lab.host: run for run in (RunStore.open(path).read_results() for path in paths if path.is_dir())}
    assert {host: run.run.status for host, run in runs.items()} == {"node1": "complete", "node2": "failed"}
    assert len(runs["node1"].cells) == 2
    assert str(runs["node2"].run.cause).startswith("host node2: connection lost")
    (page,) = (pytester.path / "reports").glob("hosts-*.html")
    text = page.read_text()
    assert all(cell.id in text for run in runs.values() for cell in run.cells)
    assert "host node2: connection lost" in text
    assert [path.stem for path in (pytester.path / "history").glob("*.parquet")] == [runs["node1"].run.id]


def test_the_name_of_a_disk_does_not_select_another_one_whose_mode_continues_it(
    run: Run, pytester: pytest.Pytester
) -> None:
    # The default names of Proxmox VE: the cell local-lvm-thin-... is of the storage `local`.
    scenario = SCENARIO.replace('["host", "passthrough"]', '["host", "lvm-thin"]')
    (pytester.path / "scenarios" / "any_disk.toml").write_text('disk = "any"' + scenario, encoding="utf-8")
    with (pytester.path / "lab.toml").open("a", encoding="utf-8") as lab:
        for name in ("local", "local-lvm"):
            lab.write(f'[host.node1.disk.{name}]\nid = "/dev/disk/by-id/ata-{name}"\nserial = "{name}"\n')

    def selected(words: str) -> set[str]:
        return {each.removesuffix("-randread-4k-qd32") for each in cells(run("--collect-only", "-q", "-k", words))}

    assert selected("lvm-thin and randread") == {"local-lvm-thin", "local-lvm-lvm-thin"}
    assert selected("local-lvm and lvm-thin and randread") == {"local-lvm-lvm-thin"}
    # What is not exactly a name is looked for in the whole id, as ever.
    assert selected("local-lvm-thin and randread") == {"local-lvm-thin"}


@pytest.mark.skipif(os.getuid() != 0, reason="root mounts a small file system")
def test_reports_without_room_for_a_run_are_named_with_the_remedy(play: Play, pytester: pytest.Pytester) -> None:
    run, reports = play(FINE), pytester.path / "reports"
    reports.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", reports], check=True)
    try:
        result = run()
    finally:
        subprocess.run(["umount", "--lazy", reports], check=True)
    printed = result.stdout.str() + result.stderr.str()
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert f"free space on the file system of {reports}" in printed
    assert "Traceback" not in printed


@pytest.mark.skipif(os.getuid() != 0, reason="root mounts a small file system")
def test_a_run_on_a_full_disk_says_that_its_journal_has_what_was_measured_and_goes_on(
    play: Play, pytester: pytest.Pytester
) -> None:
    run, reports = play(FINE), pytester.path / "reports"
    reports.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", reports], check=True)
    try:
        result = run()
        assert "No cell was measured" not in result.stdout.str()
        assert "report: " not in result.stdout.str()
        (name,) = (path.name for path in reports.iterdir() if not path.is_symlink())
        lacks = f"{reports}/{name}/results.json may lack what was measured: it was not written at the end of the run"
        assert f"{lacks}. journal.jsonl has it: continue with --resume={reports}/{name}" in result.outlines
        result.stderr.fnmatch_lines([f"*{name}/results.json cannot be written: No space left on device"])
        subprocess.run(["mount", "-o", "remount,size=16m", reports], check=True)
        before = RunStore.open(reports / name).read_journal().measurements
        again = run(f"--resume={reports / name}")
        assert again.ret == pytest.ExitCode.OK
        assert RunStore.open(reports / name).read_journal().measurements[: len(before)] == before
    finally:
        subprocess.run(["umount", "--lazy", reports], check=True)
