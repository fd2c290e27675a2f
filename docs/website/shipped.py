"""The page of the scenarios that come with the project, from their files."""

from __future__ import annotations

from collections.abc import Iterator

from harness.files import shipped
from harness.scenario.load import find_scenarios, load_scenario
from harness.scenario.scenario import Scenario

_INTRODUCTION = """For people who choose what to run: the scenario files that come with the project, with what each
measures. Made from the files by `python -m docs.website.generate`. [What to run](../what-to-run.md) begins with your
question, [scenarios](../scenarios.md) explains the files."""


def shipped_page() -> str:
    scenarios = [load_scenario(path) for path in find_scenarios(shipped("scenarios"))]
    return "\n".join(["# Shipped scenarios", "", _INTRODUCTION, "", *_rows(scenarios), ""])


def _rows(scenarios: list[Scenario]) -> Iterator[str]:
    yield from ("| `-k` | disk | what it measures | modes | workloads |", "|---|---|---|---|---|")
    for scenario in scenarios:
        modes = ", ".join(f"`{mode.name}`" for mode in scenario.modes if mode.name != "host")
        workloads = ", ".join(dict.fromkeys(f"`{workload.name}`" for workload in scenario.workloads))
        yield f"| `{scenario.name}` | {_disk(scenario)} | {scenario.title} | {modes} | {workloads} |"


def _disk(scenario: Scenario) -> str:
    disks = [*scenario.disks] if scenario.disks else [scenario.disk]
    named = f"`{disks[0]}`" if len(disks) == 1 else f"`{disks[0]}` and {len(disks) - 1} more"
    return named if scenario.disk_class in (None, scenario.disk) else f"{named}, else `{scenario.disk_class}`"
