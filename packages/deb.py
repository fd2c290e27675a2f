"""Build a .deb for a node: virt-overhead with all that it needs from PyPI, for Debian 13 and Proxmox VE 9.

A node of Proxmox VE is a Debian. Its owner installs and removes a .deb like everything else there, needs neither pip
nor a compiler on it, and dpkg knows every file. A zipapp could not import the compiled dependencies (numpy,
cryptography): it would have to unpack itself as root into a cache, and nothing would remove that.

The package is an environment in /opt/virt-overhead, which sees the distribution's Python packages, among them libvirt's
binding. It belongs to one version of Python: `--python 3.11` makes one for Debian 12 and Proxmox VE 8.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = "opt/virt-overhead"
# The GNU C library of Debian 12 is 2.36.
PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24", "manylinux2014")

LAUNCHER = f"""#!/{HOME}/bin/python3
import sys

from harness.cli import main

sys.exit(main())
"""
CONTROL = """Package: virt-overhead
Version: {version}
Architecture: amd64
Maintainer: the developers of virt-overhead <root@localhost>
Depends: python3 (>= {python}), python3 (<< {next_python}), fio, openssh-client
Recommends: python3-libvirt, mmdebstrap, debian-archive-keyring, e2fsprogs, uidmap
Section: utils
Priority: optional
Installed-Size: {kib}
Description: {summary}
 Measures the same fio jobs on the host and in a guest, in short slices that
 alternate, and splits the loss into storage layer and virtualisation.
"""
# What Python compiles at the first start would be left behind by dpkg.
AFTER = f"""#!/bin/sh
set -e
[ "$1" != configure ] || /{HOME}/bin/python3 -m compileall -q /{HOME}/lib || true
"""
BEFORE_REMOVAL = f"""#!/bin/sh
set -e
find /{HOME}/lib -name __pycache__ -type d -prune -exec rm -rf {{}} +
"""


def build(directory: Path, python: str) -> Path:
    """Build the package for this version of Python, such as "3.13", into the directory, and return its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary, "stage")
        _fill_environment(stage, python, Path(temporary, "wheels"))
        _write_control(stage, python, project["version"], project["description"])
        target = directory / f"virt-overhead_{project['version']}+py{python}_amd64.deb"
        _run("dpkg-deb", "--root-owner-group", "-Zzstd", "--build", str(stage), str(target))
    return target


def _fill_environment(stage: Path, python: str, wheels: Path) -> None:
    home = stage / HOME
    packages = home / "lib" / f"python{python}" / "site-packages"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("virt_overhead-*.whl")
    number = python.replace(".", "")
    for_target = [
        f"--python-version={python}",
        "--implementation=cp",
        *(f"--abi={abi}" for abi in (f"cp{number}", "abi3")),
    ]
    for_target += ["--abi=none", *(f"--platform={platform}_x86_64" for platform in PLATFORMS), "--platform=any"]
    _run(*pip, "install", "--no-compile", "--only-binary=:all:", f"--target={packages}", *for_target, str(wheel))
    shutil.rmtree(packages / "bin", ignore_errors=True)  # scripts for the Python of this machine
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to("/usr/bin/python3")
    settings = {"home": "/usr/bin", "include-system-site-packages": "true", "version": python}
    (home / "pyvenv.cfg").write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    launcher = home / "bin" / "virt-overhead"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    programs = stage / "usr" / "bin"
    programs.mkdir(parents=True)
    (programs / "virt-overhead").symlink_to(f"/{HOME}/bin/virt-overhead")
    shutil.copytree(ROOT / "docs" / "observatory", stage / "usr/share/doc/virt-overhead/observatory")
    shutil.copy(ROOT / "LICENSE", stage / "usr/share/doc/virt-overhead/copyright")


def _write_control(stage: Path, python: str, version: str, summary: str) -> None:
    major, _, minor = python.partition(".")
    kib = sum(path.lstat().st_size for path in stage.rglob("*")) // 1024
    control = stage / "DEBIAN"
    control.mkdir()
    fields = {"version": f"{version}+py{python}", "python": python, "next_python": f"{major}.{int(minor) + 1}"}
    (control / "control").write_text(CONTROL.format(**fields, kib=kib, summary=summary))
    for name, script in (("postinst", AFTER), ("prerm", BEFORE_REMOVAL)):
        (control / name).write_text(script)
        (control / name).chmod(0o755)
    for path in stage.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m packages.deb", description="Build a .deb for a node.")
    parser.add_argument("directory", type=Path, help="where to write it")
    parser.add_argument("--python", default="3.13", help="the target's version of Python (%(default)s: Debian 13)")
    options = parser.parse_args()
    print(build(options.directory, options.python))
