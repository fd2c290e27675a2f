"""The tables of safety are what the code is, and no command writes without a permission."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from harness.lab.created import HostThing
from tests import safety_page
from tests.refusals.catalogue import CASES
from tests.safety_page import ROOT, THINGS, calls, find_texts, programs, section, write_section

# What runs without a permission, and why that destroys nothing of others.
WITHOUT_PERMISSION = {
    # A file whose name nothing else has, and that appears at its place only where nothing is.
    ("harness.layout.disks.own_file", "rm"),
    ("harness.layout.disks.own_file", "truncate"),
    # A file of the creation log, and its directory once that is empty.
    ("harness.lab.created.forget", "rm"),
    ("harness.lab.created.close", "rm"),
    ("harness.lab.created.forget", "rmdir"),
    # In a guest of the run.
    ("harness.features.filesystem.mounted.unmount", "umount"),
    # The console's file of a guest that is in the creation log.
    ("harness.guest.libvirt.backend._end_guest", "rm"),
    # Programs with which the guard's inspection reads a disk, or that it looks for; and its own temporary directory.
    ("harness.lab.guard.writable.inspect", "cryptsetup"),
    ("harness.lab.guard.writable.inspect", "mdadm"),
    ("harness.lab.guard.writable.inspect", "mount"),
    ("harness.lab.guard.writable.inspect", "rm"),
    ("harness.lab.guard.writable.inspect", "wipefs"),
    # It reads what a cached mode uses, and writes to /dev/null.
    ("harness.measure.session.warm", "dd"),
    # An option of a file system that this run has just had Proxmox VE make.
    ("harness.features.proxmox.layouts.build", "mount"),
}


@pytest.mark.parametrize("name", ["things", "commands"])
def test_the_tables_are_those_of_the_code(name: str, regenerate: bool) -> None:
    made = getattr(safety_page, f"{name}_table")()
    if regenerate:
        write_section(name, made)
    assert section(name) == made, "pytest tests/unit/test_safety_docs.py --regenerate writes it anew"


def test_the_table_has_each_kind_that_the_code_creates() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "harness").rglob("*.py")]
    trees = [ast.parse(text) for text in texts if re.search(r"\bclass \w+\(", text)]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    things, bases = set[str](), {"Thing", "HostThing"}
    while bases:
        bases = {node.name for node in classes if {ast.unparse(base) for base in node.bases} & bases} - {"HostThing"}
        things |= bases
    assert things == {thing.__name__ for thing in THINGS}


def test_every_disk_that_was_tried_in_the_lab_is_in_the_catalogue_and_the_other_way_round() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section("refusals").splitlines()[2:]]
    assert rows == [case.name for case in CASES], "pytest tests/soak/test_refusals.py --regenerate writes it anew"
    assert len(rows) >= 40


def test_no_command_that_destroys_data_runs_without_a_permission() -> None:
    bare = {
        (call.function, program)
        for call in calls()
        if call.is_on_a_host and not call.needs_permission and not _leaves_disks_alone(call.function)
        for program in programs(call.words)
    }
    assert bare <= WITHOUT_PERMISSION


def _leaves_disks_alone(function: str) -> bool:
    """Rooms that never see a disk under test: images are built, the lab is started, a kernel's settings are changed."""
    return function.startswith(
        (
            "harness.image.",
            "harness.features.embedded.",
            "harness.features.doctor.",
            "harness.lab.lease.",
            "harness.lab.transport.",
        )
    )


def test_every_script_that_destroys_data_is_the_removal_of_a_thing_or_gets_a_permission() -> None:
    removals = {thing.removal for thing in THINGS if issubclass(thing, HostThing)}
    permitted = " ".join(call.words for call in calls() if call.needs_permission)
    bare = []
    for file in sorted((ROOT / "harness" / "layout").glob("*.py")):
        for name, script in _scripts(file):
            if programs(script) and not any(script in removal for removal in removals) and script not in permitted:
                bare.append(f"{file.name}:{name}")
    # A file of a name that nothing else has.
    assert set(bare) <= {"disks.py:_MAKE_FILE", "disks.py:_NAME"}


def _scripts(file: Path) -> list[tuple[str, str]]:
    """Names and values of the shell scripts of a module."""
    found: list[tuple[str, str]] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found += [(node.targets[0].id, text) for text in find_texts(node.value) if "\n" in text]
    return found


def test_every_thing_has_an_identity_beside_its_name() -> None:
    for thing in THINGS:
        identity = set(thing.model_fields) - {"kind", "disks", "name"}
        assert identity, f"{thing.__name__} is known by its name alone"


def test_every_removal_checks_the_identity_before_it_removes() -> None:
    for thing in THINGS:
        if issubclass(thing, HostThing):
            assert "absent" in thing.removal, f"{thing.__name__} does not say that there is nothing to remove"
            checked = {"foreign", "replaced"} & set(re.findall(r"\w+", thing.removal)) or thing.__name__ in (
                "Array",
                "FilesystemMount",
                "LoopDevice",
                "Processes",
                "TraceInstance",
            )
            assert checked, f"{thing.__name__} does not tell what is not ours"
