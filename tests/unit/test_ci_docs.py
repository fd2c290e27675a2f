"""The files in docs/ci and action.yml are valid, and their commands exist. tests/package runs their steps."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from harness.cli import make_parser
from harness.model.mode import LabKind
from harness.scenario.load import load_scenario

pytest.importorskip("check_jsonschema")

from tests.unit.ci_examples import ACTION, EXAMPLES, GATE, GITHUB, GITLAB, PAGE, ROOT, Step, list_action_steps, steps


def test_the_page_has_examples_for_both_services_and_both_kinds_of_runners() -> None:
    assert (len(GITHUB), len(GITLAB)) == (2, 2)
    assert [name for name in EXAMPLES if f"(ci/{name})" not in PAGE.read_text()] == []
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_an_example_is_valid_by_the_published_schema(example: str) -> None:
    schema = "vendor.github-workflows" if example in GITHUB else "vendor.gitlab-ci"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(EXAMPLES[example])]
    if example in GITLAB:
        command[3:3] = ["--data-transform", "gitlab-ci"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_a_run_that_requires_a_verdict_has_a_budget_for_its_kind_of_lab(example: str) -> None:
    """Without one, the job would fail at its end, whatever it measured."""
    (script,) = (step.script for step in steps(example) if "--require-verdict" in step.script)
    (name,) = re.findall(r"-k \"?(\w+)", script)
    path = GATE if "--scenarios=overhead" in script else ROOT / "scenarios" / f"{name}.toml"
    kinds: set[LabKind] = {"bare-metal"} if "pve" in example else {"nested", "emulated"}
    assert path.stem == name
    assert kinds <= {kind for budget in load_scenario(path).budgets for kind in budget.lab}


def test_the_action_is_valid_by_the_published_schema_and_the_page_explains_it() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions"]
    done = subprocess.run(
        [*command, str(ROOT / "action.yml")], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    section = PAGE.read_text().partition("## An action for GitHub")[2].partition("\n## ")[0]
    assert [name for name in (*ACTION["inputs"], *ACTION["outputs"]) if f"`{name}`" not in section] == []


def test_inputs_of_the_action_reach_its_scripts_as_variables_only() -> None:
    assert [step.name for step in list_action_steps() if "${{" in step.script] == []


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_every_command_of_an_example_exists_with_its_options(example: str) -> None:
    assert check_commands(steps(example)) >= 4


def test_every_command_of_the_action_exists_with_its_options() -> None:
    assert check_commands(list_action_steps()) >= 4


def check_commands(steps: Iterable[Step]) -> int:
    """The number of commands of the project, which all exist."""
    parser = make_parser()
    number = 0
    for step in steps:
        for words in commands(step.script):
            if words != ["--version"]:
                options, rest = parser.parse_known_args(words)
                assert not rest or getattr(options, "takes_rest", False), words
            number += 1
    return number


def commands(script: str) -> Iterator[list[str]]:
    """The arguments of each call of virt-overhead in a shell script."""
    for line in script.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||[|;]|>>?", line):
            words = shlex.split(part)
            if words and Path(words[0]).name == "virt-overhead":
                yield words[1:]
