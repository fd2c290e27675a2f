"""What the repository has beside the code: the workflows of its own CI, issue forms, and the list of decisions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def environments() -> set[str]:
    """The environments of tox.ini."""
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    return {section.removeprefix("testenv:") for section in parser.sections() if section.startswith("testenv:")}


@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.github-workflows", WORKFLOWS), ("vendor.github-issue-forms", FORMS)],
    ids=["workflows", "forms"],
)
def test_files_for_github_follow_its_schema(schema: str, files: list[Path]) -> None:
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_environments_of_tox(path: Path) -> None:
    workflow = YAML(typ="safe").load(path)
    text = path.read_text()
    named = set(re.findall(r"quickstart test -e ([a-z0-9]+)", text))
    for job in workflow["jobs"].values():
        named |= set(job.get("strategy", {}).get("matrix", {}).get("environment", ()))
    assert named
    assert named <= environments()


def test_the_list_of_decisions_has_each_of_them() -> None:
    directory = ROOT / "docs" / "adr"
    linked = re.findall(r"\]\((\d{4}-[a-z-]+\.md)\)", (directory / "README.md").read_text())
    assert linked == sorted(path.name for path in directory.glob("[0-9]*.md"))


def test_files_that_the_explanations_of_the_code_name_exist() -> None:
    missing = []
    packages = [path.parent for path in (ROOT / "harness").rglob("__init__.py")]
    for path in [*(package / "__init__.py" for package in packages), ROOT / "docs" / "architecture.md"]:
        text = path.read_text()
        text = text if path.suffix == ".md" else ast.get_docstring(ast.parse(text)) or ""
        for name in re.findall(r"(?<![\w/.])[a-z_]+(?:/[a-z_]+)*\.(?:py|sh)\b", text):
            several = (
                [*packages, ROOT / "tests" / "unit"] if path.suffix == ".md" or path.parent.name == "features" else []
            )
            places = [directory / name for directory in (path.parent, ROOT / "harness", ROOT, *several)]
            if not any(place.exists() for place in places):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == [], missing


OUTSIDE = {
    *("need_this_block", "handle_stripe_dirtying", "group_thread_cnt", "acpi_pm"),  # Linux
    *("strip_blank_end", "fio_keyword_replace", "dynamic_ownership", "pytest_plugins"),  # fio, libvirt, pytest
    *("vdev_raidz_asize", "bluestore_prefer_deferred_size_hdd"),  # OpenZFS, Ceph
    "nvme_vfio",  # a scenario
}
"""Names of other programs, which are no names of the harness."""


def test_names_that_the_code_and_its_statistics_explain_exist() -> None:
    code = {path: path.read_text() for path in (ROOT / "harness").rglob("*.py")}
    mention = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")
    words = {word for text in code.values() for word in re.findall(r"\w+", mention.sub("", text))}
    statistics = ROOT / "docs" / "statistics.md"
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in {**code, statistics: statistics.read_text()}.items()
        for name in mention.findall(text)
        if name not in words | OUTSIDE and not name.startswith("total_")
    }
    assert unknown == set()
