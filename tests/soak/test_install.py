"""A Debian 13 without compiler and headers, where README's lines or the Containerfile installed the project: from there
the first figures of a host over SSH and of a node of Proxmox VE, both in the embedded lab."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.features.embedded import lab_host as embedded
from harness.image import choose_cache
from tests.e2e.machines import latest
from tests.e2e.test_proxmox import SECRETS, Node, node
from tests.package.debian_root import CHECKOUT, DebianRoot, make_root, needs_root
from tests.package.test_clean_debian import NO_COMPILER, build_controller, readme_lines

pytestmark = needs_root
__all__ = ["node"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRoot]:
    """A machine on which README's lines were typed."""
    root = make_root(tmp_path_factory.mktemp("debian"))
    root.copy_checkout()
    root.does(f"cd /{CHECKOUT}\n{readme_lines()}\n")
    root.does(NO_COMPILER)
    yield root
    shutil.rmtree(root.path)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRoot]:
    """The machine that the Containerfile describes."""
    root = build_controller(make_root(tmp_path_factory.mktemp("controller")))
    yield root
    shutil.rmtree(root.path)


def shared() -> tuple[list[Path], dict[str, str]]:
    """The images of this machine with their key, for the other one: building them is not the subject."""
    running = embedded.state().running()
    assert running is not None
    key = Path(running.key).parent
    return [choose_cache(), key], {"VIRT_OVERHEAD_CACHE": str(choose_cache()), "XDG_DATA_HOME": str(key.parents[1])}


def first_figure(machine: DebianRoot, directory: Path, *words: str, env: dict[str, str] | None = None) -> None:
    """Run init there, and then the command that it prints for a first figure."""
    directory.mkdir(exist_ok=True)
    paths, variables = shared()
    paths.append(directory)
    variables |= env or {}
    activate = "[ ! -e ~/virt-overhead/bin/activate ] || . ~/virt-overhead/bin/activate; cd"
    options = shlex.join([f"--output={directory / 'lab.toml'}", *words])
    written = machine.does(f"{activate} {directory}; virt-overhead init {options}", shared=paths, env=variables)
    (told,) = re.findall(r"^  virt-overhead run (.*) # a first figure", written, re.MULTILINE)
    run = f"virt-overhead run {told} --rounds=1 --reports={directory}"
    machine.does(f"{activate} {directory}; {run}", shared=paths, env=variables)
    stored = latest(directory)
    assert stored.run.status == "complete"
    (cell,) = [cell for cell in stored.cells if cell.mode != "host"]
    assert cell.metrics["iops"].host
    assert cell.metrics["iops"].guest


def over_ssh() -> list[str]:
    running = embedded.state().running()
    assert running is not None
    return [f"--ssh=root@127.0.0.1:{running.port}", f"--key={running.key}"]


def of_node(node: Node, directory: Path) -> list[str]:
    running = embedded.state().running()
    assert running is not None
    directory.mkdir(exist_ok=True)
    authority = shutil.copy(node.authority, directory)
    words = [f"--proxmox=127.0.0.1:{node.port}", "--secret=env:PVE_PASSWORD", f"--ca-file={authority}"]
    return [*words, f"--key={running.key}", f"--ssh-port={running.port}", "--guest-address=10.99.0.50/16"]


def test_a_host_with_libvirt_over_ssh(machine: DebianRoot, tmp_path: Path) -> None:
    first_figure(machine, tmp_path / "work", *over_ssh())


def test_a_host_with_libvirt_from_the_container(controller: DebianRoot, tmp_path: Path) -> None:
    first_figure(controller, tmp_path / "work", *over_ssh())


def test_a_node_of_proxmox_ve_without_the_binding(machine: DebianRoot, tmp_path: Path, node: Node) -> None:
    machine.does("dpkg --remove python3-libvirt")
    directory = tmp_path / "work"
    first_figure(machine, directory, *of_node(node, directory), env=SECRETS)
