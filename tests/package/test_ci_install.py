"""The steps of docs/ci.md that install, in a clean Debian 13: with the packages of the page, and this wheel."""

from __future__ import annotations

from pathlib import Path

from tests.package.debian_root import ANSWERS, DebianRoot, needs_root
from tests.package.installed import build_wheel
from tests.unit.ci_examples import GITHUB, GITLAB, steps

pytestmark = needs_root

COLLECT = 'export PYTEST_ADDOPTS="--collect-only -q"'


def run_as_runner(debian: DebianRoot, directory: Path, script: str, *packages: str) -> str:
    """What the script prints where these packages are. pip finds the wheel there, and the rest on PyPI."""
    debian.does(f"apt-get install {' '.join(packages)}; rm /{ANSWERS}")
    wheels = build_wheel(directory / "wheels").parent
    return debian.does(script, shared=[wheels], env={"CI": "true", "PIP_FIND_LINKS": str(wheels)})


def test_what_the_example_for_gitlab_installs_is_enough(debian: DebianRoot, tmp_path: Path) -> None:
    lines = [each.script for each in steps(GITLAB[0]) if each.name == "before_script"]
    run = next(each.script for each in steps(GITLAB[0]) if "virt-overhead run" in each.script)
    printed = run_as_runner(debian, tmp_path, "\n".join([*lines, "mkdir /project && cd /project", COLLECT, run]))
    assert "scenarios/test_overhead.py::test_overhead[optane-lvm-randread-4k-qd32]" in printed


def test_what_the_example_for_github_installs_is_enough(debian: DebianRoot, tmp_path: Path) -> None:
    by_name = {each.name: each.script for each in steps(GITHUB[0])}
    script = "\n".join(
        [
            "export GITHUB_PATH=/github-path GITHUB_OUTPUT=/github-output",
            by_name["Install"],
            'PATH="$(cat /github-path):$PATH"',
            by_name["Name the version"],
            "cat /github-output",
            "mkdir /project && cd /project",
            COLLECT,
            by_name["Measure"],
        ]
    )
    # The runner has sudo; actions/setup-python provides `python` with its headers.
    printed = run_as_runner(debian, tmp_path, script, "sudo", "python-is-python3", "python3-venv", "python3-dev")
    assert "version=" in printed
    assert "scenarios/test_overhead.py::test_overhead[optane-lvm-randread-4k-qd32]" in printed
