"""docs/lab.md and the reference speak of every key of a lab file, and its example works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.lab.embedded.disks import CONTROLLER_DISKS, CONTROLLERS, DISKS, SimulatedController, SimulatedDisk
from harness.lab.inventory import DiskByFile, DiskById
from harness.lab.lab_file import load_lab
from harness.units import format_size

PAGES = Path(__file__).parents[2] / "docs"
DOCS = (PAGES / "lab.md").read_text(encoding="utf-8")
REFERENCE = "".join(
    (PAGES / "reference" / f"{name}.md").read_text(encoding="utf-8") for name in ("options", "file-keys")
)
TABLES = {
    "the file": "surplus = 1\n[host.x]\nkind = 'local'\n",
    "a host": "[host.x]\nkind = 'local'\nsurplus = 1\n",
    "an API": "[host.x]\nkind = 'proxmox'\n[host.x.api]\nsurplus = 1\n",
    "a secret": "[host.x]\nkind = 'proxmox'\n[host.x.api.secret]\nsurplus = 1\n",
    "guests": "[host.x]\nkind = 'proxmox'\n[host.x.guest]\nsurplus = 1\n",
    "a storage": "[host.x]\nkind = 'local'\n[host.x.storage.y]\nsurplus = 1\n",
    "an array": "[host.x]\nkind = 'local'\n[host.x.storage.y.array]\nsurplus = 1\n",
    "a disk": "[host.x]\nkind = 'local'\n[host.x.disk.y]\nsurplus = 1\n",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_the_docs_name_every_key_that_is_allowed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_lab(path)
    allowed = re.search(r"surplus.*: no such key; allowed: ([a-z_, ]+)", error.value.message)
    assert allowed is not None
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCS + REFERENCE, re.M))
    assert set(allowed[1].strip().split(", ")) - documented == set()


def test_the_example_of_the_docs_loads(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", DOCS, re.S)
    assert example is not None
    path = tmp_path / "lab.toml"
    path.write_text(example[1], encoding="utf-8")
    node, here = load_lab(path).hosts
    assert isinstance(node.disk("optane"), DiskById)
    assert isinstance(here.disk("sata_ssd"), DiskByFile)
    assert all(disk.destroy for disk in (*node.disks, *here.disks))


@pytest.mark.parametrize("disk", [each for each in DISKS if each not in CONTROLLER_DISKS], ids=lambda disk: disk.name)
def test_the_docs_say_how_a_simulated_disk_is_identified_and_how_large_it_is(disk: SimulatedDisk) -> None:
    spec = disk.spec
    row = next(line for line in DOCS.splitlines() if line.startswith(f"| `{spec.name}` | `{spec.id}`"))
    assert f"serial `{spec.serial}` |" in row
    assert row.endswith(f"| {format_size(disk.size_bytes)} |")


@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda controller: controller.name)
def test_the_docs_say_which_disks_a_controller_has(controller: SimulatedController) -> None:
    first, *_, last = (disk for disk in CONTROLLER_DISKS if disk.controller == controller)
    row = next(line for line in DOCS.splitlines() if line.startswith(f"| `{first.name}` to `{last.name}` |"))
    assert f"| `{first.spec.id}`, serial `{first.spec.serial}` |" in row
    assert row.endswith(f"| {format_size(first.size_bytes)} each |")
    own = f"{first.limit.iops} IOPS, {format_size(first.limit.bytes_per_s)}/s"
    shared = f"{controller.limit.iops} IOPS, {format_size(controller.limit.bytes_per_s)}/s"
    assert (
        f"| {own}; behind one controller of {shared} |" in row or "| the same, behind another such controller |" in row
    )
