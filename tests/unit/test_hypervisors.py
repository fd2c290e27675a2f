"""The backend of a host is the one that its lab file names, and only that one's libraries are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.guest import choose_backend
from harness.lab.inventory import HostSpec
from harness.lab.lab_file import load_lab

LAB = """
[host.here]
kind = "local"
[host.node1]
kind = "proxmox"
[host.node1.api]
url = "https://192.0.2.9:8006"
node = "pve"
secret = { env = "PVE_SECRET" }
[host.node1.guest]
kvm = false
"""
CHOICE = """
import sys
from pathlib import Path
from harness.guest import choose_backend
from harness.lab.lab_file import load_lab
choose_backend(load_lab(Path(sys.argv[1])).only(sys.argv[2]).hosts[0])
print(*(name for name in ("libvirt", "proxmoxer") if name in sys.modules))
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "lab.toml").write_text(LAB)
    return tmp_path / "lab.toml"


def host(lab: Path, name: str) -> HostSpec:
    return load_lab(lab).only(name).hosts[0]


@pytest.mark.parametrize(
    ("name", "backend", "library"), [("here", "LibvirtBackend", "libvirt"), ("node1", "ProxmoxBackend", "proxmoxer")]
)
def test_each_kind_of_host_has_its_backend_and_needs_no_other_library(
    lab: Path, name: str, backend: str, library: str
) -> None:
    assert type(choose_backend(host(lab, name))).__name__ == backend
    words = [sys.executable, "-c", CHOICE, str(lab), name]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == library


def test_each_backend_answers_what_others_need_of_it(lab: Path) -> None:
    here, node = host(lab, "here").hypervisor, host(lab, "node1").hypervisor
    assert (here.why_emulated("here"), here.secret_variables) == (None, ())
    assert node.why_emulated("node1") == "host.node1.guest.kvm = false in the lab file"
    assert node.secret_variables == ("PVE_SECRET",)
