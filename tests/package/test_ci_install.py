"""The steps of docs/ci.md that install, in a clean Debian 13: with the packages of the page, and this wheel."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.package.installed import build_wheel
from tests.patience import patience
from tests.unit.ci_examples import GITHUB, steps

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)

_SECONDS = 1200
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
COLLECT = 'export PYTEST_ADDOPTS="--collect-only -q"'


def in_clean_debian(directory: Path, script: str, *packages: str) -> str:
    """What the script prints in a fresh Debian with `packages`. pip finds the wheel there, and the rest on PyPI."""
    wheel = build_wheel(directory / "wheels")
    (directory / "steps").write_text(f"set -e\n{script}\n")
    copied = [wheel.parent, directory / "steps", *([_CERTIFICATES] if _CERTIFICATES.exists() else [])]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "CI": "true", "PIP_FIND_LINKS": "/wheels"}
    if _CERTIFICATES.exists():  # where a proxy has certificates of its own
        environment |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), f"/{_CERTIFICATES.name}")
    words = shlex.join(f"{name}={value}" for name, value in environment.items())
    command = [
        *("mmdebstrap", "--quiet", "--variant=apt", "--format=null"),
        *([f"--include={','.join(packages)}"] if packages else []),
        f"--customize-hook=copy-in {shlex.join(map(str, copied))} /",
        f'--customize-hook=chroot "$1" env -i {words} bash /steps',
        *("trixie", os.devnull),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(_SECONDS))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr  # what hooks print is in the second


def test_what_the_example_for_gitlab_installs_is_enough(tmp_path: Path) -> None:
    lines = [each.script for each in steps(".gitlab-ci.yml") if each.name == "before_script"]
    run = next(each.script for each in steps(".gitlab-ci.yml") if "virt-overhead run" in each.script)
    printed = in_clean_debian(tmp_path, "\n".join([*lines, "mkdir /project && cd /project", COLLECT, run]))
    assert "scenarios/test_overhead.py::test_overhead[optane-lvm-randread-4k-qd32]" in printed


def test_what_the_example_for_github_installs_is_enough(tmp_path: Path) -> None:
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
    printed = in_clean_debian(tmp_path, script, "sudo", "python-is-python3", "python3-venv", "python3-dev")
    assert "version=" in printed
    assert "scenarios/test_overhead.py::test_overhead[optane-lvm-randread-4k-qd32]" in printed
