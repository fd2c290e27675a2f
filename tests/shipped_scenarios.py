"""The scenarios that come with the project, by name. They are read once for all tests of a process."""

from __future__ import annotations

from collections.abc import Mapping

from harness.files import shipped
from harness.scenario.load import find_scenarios, load_scenario
from harness.scenario.scenario import Scenario

SCENARIOS: Mapping[str, Scenario] = {path.stem: load_scenario(path) for path in find_scenarios(shipped("scenarios"))}
