"""The start script: its help, its syntax, and what it says where it may not install what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.unit.os_releases import OS_RELEASES

QUICKSTART = Path(__file__).parents[2] / "quickstart"
NOBODY = 65534


class Checkout:
    """A checkout with nothing in it but the start script and pyproject.toml, on a machine made of stand-ins."""

    def __init__(self, path: Path) -> None:
        self.path = path / "checkout"
        self.programs = path / "bin"
        self.path.mkdir()
        self.programs.mkdir()
        self.path.chmod(0o755)
        shutil.copy(QUICKSTART, self.path)
        (self.path / "pyproject.toml").write_text("[project]\n")
        for tool in ("sh", "cat", "dirname", "readlink", "sha256sum", "id", "env", "mkdir"):
            found = shutil.which(tool)
            assert found
            (self.programs / tool).symlink_to(found)
        self.system("ID=debian\n")
        self.program("python3", "exit 1")
        self.program("dpkg-query", "exit 1")
        self.program("apt-get", f'echo "$@" >>"{path}/apt.log"')

    def system(self, os_release: str) -> None:
        """The distribution of the machine."""
        (self.path / "os-release").write_text(os_release)
        (self.path / "harness").mkdir(exist_ok=True)
        shutil.copy(QUICKSTART.parent / "harness" / "packages.txt", self.path / "harness")

    def program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def add_environment(self, goal: str) -> None:
        """What an earlier call leaves: an environment whose programs say that they were started."""
        (self.path / ".venv" / "bin").mkdir(parents=True)
        for name in ("python", "tox", "virt-overhead"):
            (self.path / ".venv" / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*"\n')
            (self.path / ".venv" / "bin" / name).chmod(0o755)
        digest = subprocess.run(
            ["sha256sum", "pyproject.toml"], cwd=self.path, capture_output=True, text=True, check=True
        )
        (self.path / ".venv" / ".quickstart").write_text(f"{digest.stdout.strip()} in {self.path} for {goal}\n")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it without terminal, and never as root."""
        command = [str(self.path / "quickstart"), *arguments]
        nobody = NOBODY if os.geteuid() == 0 else None
        return subprocess.run(
            command,
            env={"PATH": str(self.programs), "QUICKSTART_OS_RELEASE": str(self.path / "os-release")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            user=nobody,
            group=nobody,
            extra_groups=None if nobody is None else [],
        )


@pytest.fixture
def checkout() -> Iterator[Checkout]:
    # Not in pytest's own directory, which is closed to the user that the script runs as.
    with TemporaryDirectory(prefix="quickstart-") as path:
        Path(path).chmod(0o755)
        yield Checkout(Path(path))


def test_help_says_what_the_script_does(checkout: Checkout) -> None:
    done = checkout.run("--help")
    assert done.returncode == 0
    assert "./quickstart test" in done.stdout
    assert done.stderr == ""


def test_without_root_and_sudo_the_line_to_run_is_given(checkout: Checkout) -> None:
    done = checkout.run()
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert "sudo apt-get update && sudo apt-get install -y --no-install-recommends" in line
    for package in ("mmdebstrap", "openssh-client", "libvirt-dev", "python3-venv"):
        assert package in line.split()


def test_a_sudo_that_wants_a_password_is_not_asked_without_a_terminal(checkout: Checkout) -> None:
    checkout.program("sudo", '[ "$1" = -n ] && exit 1; echo asked for a password; exit 0')
    done = checkout.run()
    assert done.returncode == 2
    assert "asked" not in done.stdout + done.stderr


def test_only_what_is_missing_is_named(checkout: Checkout) -> None:
    checkout.program("dpkg-query", "printf 'installed:mmdebstrap installed:gcc config-files:uidmap '; exit 1")
    words = checkout.run().stderr.split()
    assert "mmdebstrap" not in words
    assert "gcc" not in words
    assert "uidmap" in words


def test_the_tests_need_more_than_a_run(checkout: Checkout) -> None:
    assert "openssh-server" not in checkout.run().stderr
    assert "openssh-server" in checkout.run("test").stderr


def test_a_machine_that_is_no_debian_is_told_what_it_needs(checkout: Checkout) -> None:
    (checkout.programs / "apt-get").unlink()
    done = checkout.run()
    assert done.returncode == 2
    assert "no apt-get" in done.stderr


def test_a_python_that_is_too_old_is_named(checkout: Checkout) -> None:
    checkout.program("python3", '[ "$1" = --version ] && echo Python 3.9.2; exit 1')
    checkout.program("dpkg-query", "for package; do printf 'installed:%s ' \"$package\"; done")
    done = checkout.run()
    assert done.returncode == 2
    assert "needs Python 3.11 or later, and here is Python 3.9.2" in done.stderr


@pytest.mark.parametrize(
    ("made_for", "arguments", "started"),
    [
        ("run", ["--profile", "smoke"], "virt-overhead quickstart --profile smoke"),
        ("test", [], "virt-overhead quickstart"),
        ("test", ["test", "-e", "unit"], "virt-overhead images\ntox -e unit"),
    ],
)
def test_a_machine_that_is_ready_starts_at_once_and_needs_no_root(
    checkout: Checkout, made_for: str, arguments: list[str], started: str
) -> None:
    checkout.program("dpkg-query", "shift 3; for package; do printf 'installed:%s ' \"$package\"; done")
    checkout.add_environment(made_for)
    done = checkout.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{started}\n", "")


def test_an_environment_of_other_dependencies_is_not_used(checkout: Checkout) -> None:
    checkout.add_environment("run")
    (checkout.path / "pyproject.toml").write_text("[project]\ndependencies = []\n")
    assert checkout.run().returncode == 2


@pytest.mark.parametrize(
    ("system", "program", "line"),
    [
        ("fedora", "rpm", "sudo dnf install e2fsprogs gcc glibc-devel libvirt-devel openssh-clients"),
        ("rocky", "rpm", "sudo dnf install e2fsprogs gcc glibc-devel libvirt-devel openssh-clients"),
        ("arch", "pacman", "sudo pacman -S --needed e2fsprogs gcc glibc libvirt openssh"),
    ],
)
def test_other_distributions_are_told_their_own_packages(
    checkout: Checkout, system: str, program: str, line: str
) -> None:
    checkout.system(OS_RELEASES[system])
    (checkout.programs / "dpkg-query").unlink()
    (checkout.programs / "apt-get").unlink()
    checkout.program(program, 'for last; do :; done; [ "$last" = pkgconf ] || [ "$last" = pkgconf-pkg-config ]')
    done = checkout.run()
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1].removeprefix("quickstart:").strip()
    assert said.startswith(line)
    assert "pkgconf" not in said
    assert "mmdebstrap" not in said
