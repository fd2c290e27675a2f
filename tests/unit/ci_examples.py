"""The examples of docs/ci.md, as files and as the shell steps that they have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

PAGE = Path(__file__).parents[2] / "docs" / "ci.md"
_EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```yaml\n(.*?)```\n", re.DOTALL)

EXAMPLES: dict[str, str] = dict(_EXAMPLE.findall(PAGE.read_text()))
GITHUB = [name for name in EXAMPLES if name.startswith(".github/")]
GITLAB = [name for name in EXAMPLES if name.endswith(".gitlab-ci.yml")]


@dataclass(frozen=True)
class Step:
    """A shell step: its name, and its lines."""

    name: str
    script: str


def steps(example: str) -> Iterator[Step]:
    """The shell steps of an example, in their order."""
    document: dict[str, Any] = YAML(typ="safe").load(StringIO(EXAMPLES[example]))
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
