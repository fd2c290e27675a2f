"""The lines of README, the .deb and the Containerfile in a Debian 13 without compiler and headers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.debian_root import CHECKOUT, DebianRoot, needs_root
from tests.package.installed import ROOT
from tests.patience import patience

pytestmark = needs_root

NO_COMPILER = "! command -v gcc cc c++ clang && ! ls /usr/include/python3*/Python.h /usr/include/libvirt/libvirt.h 2>&-"
COLLECT = "virt-overhead run --collect-only -q -k optane"
CELL = "scenarios/test_overhead.py::test_overhead[optane-lvm-randread-4k-qd32]"


def readme_lines() -> str:
    """The commands with which README installs the project, as root has to type them."""
    (block,) = re.findall(r"```\n(sudo apt install .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(block).replace("sudo ", "")


def test_the_lines_of_readme_install_it_without_a_compiler(debian: DebianRoot) -> None:
    debian.copy_checkout()
    printed = debian.does(f"cd /{CHECKOUT}\n{readme_lines()}\n")
    assert "next:" in printed
    user = ". ~/virt-overhead/bin/activate; mkdir -p /user; cd /user;"
    debian.does(NO_COMPILER)
    assert "usage: virt-overhead" in debian.does(f"{user} virt-overhead --help")
    assert CELL in debian.does(f"{user} {COLLECT}")
    assert debian.does(f"{user} python -c 'import libvirt; print(libvirt.__file__)'").startswith("/usr/lib/python3/")
    missing = debian.run(f"{user} dpkg --remove python3-libvirt >&2; virt-overhead init")
    assert missing.returncode != 0
    assert "apt install" in missing.stderr or "python3-libvirt" in missing.stderr
    assert "ImportError" not in missing.stderr
    assert CELL in debian.does(f"{user} {COLLECT}")


def test_the_package_for_a_node_is_built_by_one_command_and_leaves_nothing(debian: DebianRoot, tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "packages.deb", str(tmp_path / "dist")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(580),
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (package,) = (tmp_path / "dist").glob("*.deb")
    assert built.stdout.strip() == str(package)
    shutil.copy(package, debian.path / "root" / package.name)
    debian.does(f"apt-get update; apt-get install /root/{package.name}")
    debian.does(NO_COMPILER)
    assert "usage: virt-overhead" in debian.does("virt-overhead --help")
    assert CELL in debian.does(f"mkdir /user; cd /user; {COLLECT}")
    assert debian.run("virt-overhead init").stderr.count("python3-libvirt")
    debian.does("apt-get install python3-libvirt; /opt/virt-overhead/bin/python3 -c 'import libvirt'")
    debian.does("apt-get remove virt-overhead; [ ! -e /opt/virt-overhead ]; [ ! -e /usr/bin/virt-overhead ]")


# --- Containerfile ---


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, with their arguments on one line."""
    lines = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    found = [line.partition(" ") for line in lines if line.strip() and not line.startswith("#")]
    return [(name, " ".join(rest.split())) for name, _, rest in found]


def build_controller(debian: DebianRoot) -> DebianRoot:
    """Run the steps of the Containerfile in a Debian. Its commands then have the variables of the image."""
    environment = dict(debian.environment)
    directory = "/"
    for name, argument in instructions():
        match name:
            case "FROM":
                assert argument == "docker.io/library/debian:13-slim"
            case "RUN":
                debian.does(f"cd {directory}; {argument}", env=environment)
            case "COPY":
                *sources, target = argument.split()
                for source in sources:
                    _copy(ROOT / source, debian.path / target.lstrip("/"))
            case "ENV":
                key, _, value = argument.partition("=")
                environment[key] = value
            case "WORKDIR":
                directory = argument
                (debian.path / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "ENTRYPOINT":
                assert json.loads(argument) == ["virt-overhead"]
            case _:
                raise AssertionError(f"the test does not know {name}")
    return DebianRoot(debian.path, environment)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def test_the_steps_of_the_containerfile_make_a_controller(debian: DebianRoot) -> None:
    controller = build_controller(debian)
    controller.does(NO_COMPILER)
    assert "usage: virt-overhead" in controller.does("cd /work; virt-overhead --help")
    assert CELL in controller.does(f"cd /work; {COLLECT}")
    controller.does("python -c 'import libvirt, harness'; ssh -V; command -v mmdebstrap")


def test_what_the_containerfile_copies_is_in_its_context() -> None:
    patterns = (ROOT / ".containerignore").read_text().splitlines()
    copied = [word for name, argument in instructions() if name == "COPY" for word in argument.split()[:-1]]
    assert [name for name in copied if f"!{name}" not in patterns] == []
    assert "*" in patterns


@pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed")
def test_buildah_builds_the_image_of_the_controller(base: DebianRoot, tmp_path: Path) -> None:
    storage = ("--root", str(tmp_path / "storage"), "--runroot", str(tmp_path / "run"), "--storage-driver=vfs")

    def buildah(*words: str) -> str:
        done = subprocess.run(
            ["buildah", *storage, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(580)
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout.strip()

    # The image that the first line names, from Debian's own packages: no registry is asked.
    scratch = buildah("from", "scratch")
    buildah("add", "--quiet", scratch, str(base.path), "/")
    buildah("commit", "--quiet", "--rm", scratch, "docker.io/library/debian:13-slim")
    isolation = ("--isolation=chroot", "--network=host", "--pull-never")
    buildah("build", *isolation, "--tag", "virt-overhead", "--file", "Containerfile", ".")
    container = buildah("from", "--pull-never", "virt-overhead")
    assert "usage: virt-overhead" in buildah("run", "--isolation=chroot", container, "--", "virt-overhead", "--help")
    inspected = json.loads(buildah("inspect", "--type=image", "virt-overhead"))
    assert inspected["OCIv1"]["config"]["Entrypoint"] == ["virt-overhead"]
    assert inspected["OCIv1"]["config"]["WorkingDir"] == "/work"
