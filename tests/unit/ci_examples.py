"""The examples in docs/ci and the action of the project, as files and as the shell steps that they have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ci.md"

GATE = ROOT / "docs" / "ci" / "gate.toml"
EXAMPLES = {path.name: path for path in sorted((ROOT / "docs" / "ci").glob("*.yml"))}
GITHUB = [name for name in EXAMPLES if name.startswith("github-")]
GITLAB = [name for name in EXAMPLES if name.startswith("gitlab-")]

ACTION: dict[str, Any] = YAML(typ="safe").load(ROOT / "action.yml")
_INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")


@dataclass(frozen=True)
class Step:
    """A shell step: its name, its lines, and the variables that it has beside those of the job."""

    name: str
    script: str
    environment: Mapping[str, str] = field(default_factory=dict)


def list_action_steps(**inputs: str) -> Iterator[Step]:
    """The shell steps of the action with these inputs; the others have their defaults."""
    values = {name: str(declared["default"]) for name, declared in ACTION["inputs"].items()} | inputs
    for step in ACTION["runs"]["steps"]:
        if "run" in step:
            environment = {
                name: _INPUT.sub(lambda match: values[match[1]], text).replace("${{ github.action_path }}", str(ROOT))
                for name, text in step.get("env", {}).items()
            }
            yield Step(step["name"], step["run"], environment)


def steps(example: str) -> Iterator[Step]:
    """The shell steps of an example, in their order."""
    document: dict[str, Any] = YAML(typ="safe").load(EXAMPLES[example])
    if example in GITHUB:
        for job in document["jobs"].values():
            for step in job["steps"]:
                if "run" in step:
                    yield Step(step["name"], step["run"])
        return
    for job in document.values():
        if isinstance(job, dict):
            for part in ("before_script", "script", "after_script"):
                for line in job.get(part, []):
                    yield Step(part, line)
