"""docs/ci.md: every example is valid, and its commands exist. tests/package/test_ci_steps.py runs the steps."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import make_parser

pytest.importorskip("check_jsonschema")

from tests.unit.ci_examples import EXAMPLES, GITHUB, GITLAB, PAGE, steps


def test_the_page_has_examples_for_both_services_and_both_kinds_of_runners() -> None:
    assert (len(GITHUB), len(GITLAB)) == (2, 2)
    assert PAGE.read_text().count("```yaml") == len(EXAMPLES)


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_an_example_is_valid_by_the_published_schema(example: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yml"
    path.write_text(EXAMPLES[example])
    schema = "vendor.github-workflows" if example in GITHUB else "vendor.gitlab-ci"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    if example in GITLAB:
        command[3:3] = ["--data-transform", "gitlab-ci"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_every_command_of_an_example_exists_with_its_options(example: str) -> None:
    parser = make_parser()
    found = 0
    for step in steps(example):
        for words in commands(step.script):
            if words != ["--version"]:
                options, rest = parser.parse_known_args(words)
                assert not rest or getattr(options, "takes_rest", False), words
            found += 1
    assert found >= 4


def commands(script: str) -> Iterator[list[str]]:
    """The arguments of each call of virt-overhead in a shell script."""
    for line in script.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||[|;]|>>?", line):
            words = shlex.split(part)
            if words and Path(words[0]).name == "virt-overhead":
                yield words[1:]
