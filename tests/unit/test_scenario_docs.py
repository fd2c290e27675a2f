"""docs/scenarios.md and the reference speak of every key and name there is, and the example works."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from harness.features.fio_files.options import ALLOWED, ENGINES
from harness.features.published.figures import links
from harness.model.attach import Attach
from harness.model.disk import REQUESTED_CLASSES
from harness.model.job import PATTERNS
from harness.model.layout import Layout
from harness.model.workloads import NAMED, PROFILES
from harness.scenario.legality import LAB_KINDS
from harness.scenario.load import load_scenario, scenario_schema
from harness.scenario.scenario import PRESETS

PAGES = Path(__file__).parents[2] / "docs"
DOCS = (PAGES / "scenarios.md").read_text(encoding="utf-8")
GENERATED = ("options", "file-keys", "shipped-scenarios")
REFERENCE = "".join((PAGES / "reference" / f"{name}.md").read_text(encoding="utf-8") for name in GENERATED)

NAMES = [
    *(key.alias or name for name, key in scenario_schema().model_fields.items()),
    *REQUESTED_CLASSES,
    *LAB_KINDS,
    *(f"attach.{key.name}" for key in fields(Attach)),
    *(f"layout.{key.name}" for layout in get_args(Layout) for key in fields(layout)),
    *(next(key.default for key in fields(layout) if key.name == "kind") for layout in get_args(Layout)),
    *PATTERNS,
    *NAMED,
    *ALLOWED,
    *ENGINES,
    *(mode.name for mode in PRESETS),
    *(profile.name for profile in PROFILES),
    *links(),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_docs_name_it(name: str) -> None:
    assert f"`{name}`" in DOCS + REFERENCE


def test_the_example_of_the_docs_loads(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", DOCS, re.S)
    assert example is not None
    path = tmp_path / "example.toml"
    path.write_text(example[1], encoding="utf-8")
    scenario = load_scenario(path)
    assert [mode.name for mode in scenario.modes] == ["host", "passthrough", "lvm", "lvm-writeback"]
    assert [(rule.metric, rule.share, rule.absolute) for rule in scenario.budgets] == [
        ("iops", 0.3, None),
        ("clat_mean", 0.1, pytest.approx(50e-6)),
    ]
    assert [mode.name for mode in scenario.modes if mode.cached] == ["lvm-writeback"]
