"""`virt-overhead` without a command: what this directory has, and the commands that come next."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.cli.common import REPORTS, print_json
from harness.errors import HarnessError


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what it is for."""

    command: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What was found, a sentence each, and what to do next, the most useful step first."""

    found: tuple[str, ...]
    steps: tuple[Step, ...]


def show(options: argparse.Namespace) -> int:
    """Print the situation of the current directory."""
    situation = look_around(Path.cwd(), os.environ)
    if options.json:
        print_json(asdict(situation))
        return 0
    print("\n".join(f"{sentence}." for sentence in situation.found))
    print("next:")
    widest = max(len(step.command) for step in situation.steps)
    for step in situation.steps:
        print(f"  {step.command:{widest}}  {step.purpose}")
    print("all commands: virt-overhead --help")
    return 0


def look_around(directory: Path, environment: Mapping[str, str]) -> Situation:
    """The situation in `directory`: no file there is changed, and no host is asked."""
    lab, lab_steps = _lab(directory, environment)
    runs, run_steps = _newest_run(directory)
    return Situation((lab, runs), (*run_steps, *lab_steps))


def _lab(directory: Path, environment: Mapping[str, str]) -> tuple[str, tuple[Step, ...]]:
    from harness.lab.lab_file import load_lab
    from harness.plugin.options import EMBEDDED_LAB, LAB_FILE, LAB_VARIABLE

    of_environment = environment.get(LAB_VARIABLE)
    path = Path(of_environment) if of_environment else directory / LAB_FILE
    if of_environment == EMBEDDED_LAB or not (of_environment or path.exists()):
        missing = f"${LAB_VARIABLE} names it" if of_environment else f"there is no {LAB_FILE} here"
        return (
            f"Lab: {missing}, so the embedded lab with its simulated disks is measured",
            (
                Step("virt-overhead quickstart", "measure a simulated disk; needs no spare disk"),
                Step("virt-overhead init", "find the disks of this machine, or of --ssh or --proxmox, for lab.toml"),
            ),
        )
    try:
        inventory = load_lab(path)
    except HarnessError as error:
        doctor = Step(
            f"virt-overhead doctor --lab {path.name}", "check the file again, and its hosts, when it is right"
        )
        return f"Lab: {error.message}", (doctor,)
    disks = [disk.name for host in inventory.hosts for disk in host.measured]
    hosts = ", ".join(host.name for host in inventory.hosts)
    return (
        f"Lab: {path.name} has the disks {', '.join(disks) or 'none'} on {hosts}",
        (
            Step(
                f"virt-overhead doctor --lab {_word(path, directory)}", "check whether the hosts are fit for measuring"
            ),
            Step("virt-overhead run --collect-only -q", "list the cells, and measure nothing"),
            Step(
                f"virt-overhead run -k {disks[0] if disks else 'any_disk'}", "measure; this erases disks that allow it"
            ),
        ),
    )


def _word(path: Path, directory: Path) -> Path:
    return path.relative_to(directory) if path.is_relative_to(directory) else path


def _newest_run(directory: Path) -> tuple[str, tuple[Step, ...]]:
    from harness.results import RunStore

    reports = directory / REPORTS
    if not (reports / "latest").exists():
        return "Runs: nothing was measured here yet", ()
    try:
        run = RunStore.open(reports / "latest").read_results().run
    except HarnessError as error:
        return f"Runs: {error.message}", ()
    told = f"Runs: the newest is {run.id}, profile {run.profile}, status {run.status}"
    match run.status:
        case "running":
            return told, (Step("virt-overhead watch", "follow the run"),)
        case "interrupted" | "failed":
            resume = Step(f"virt-overhead run --resume={REPORTS / run.id}", "measure the rest, with the same selection")
            return told, (resume, Step("virt-overhead report", "what was measured so far"))
    others = {path.parent.name for path in reports.glob("*/results.json")} - {run.id, "latest"}
    then = Step("virt-overhead baseline set NAME", "name the run, to compare later runs with it")
    if others:
        then = Step(f"virt-overhead compare {max(others)} latest", "what changed between two runs")
    return told, (Step("virt-overhead report", "its answers, and the page"), then)
