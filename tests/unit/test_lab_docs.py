"""docs/lab.md and the reference speak of every key of a lab file, and its example works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.lab.inventory import DiskByFile, DiskById
from harness.lab.lab_file import load_lab

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
