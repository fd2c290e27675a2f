"""The wheel, built from this checkout and installed into an empty environment outside of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 580


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a user's directory."""

    environment: Path
    directory: Path

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A program of the environment, started in the user's directory. The checkout is out of reach."""
        inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run(
            [str(self.environment / "bin" / words[0]), *words[1:]],
            cwd=self.directory,
            env=inherited | dict(env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(_SECONDS),
        )


def install(directory: Path) -> Installed:
    """Build the wheel, make an environment below `directory`, and install the wheel with what it needs."""
    wheel = build_wheel(directory / "wheels")
    environment = directory / "environment"
    _do([sys.executable, "-m", "venv", str(environment)], directory)
    user = directory / "user"
    user.mkdir()
    _do([str(environment / "bin" / "pip"), "install", "--quiet", "--no-compile", str(wheel)], user)
    return Installed(environment, user)


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this checkout into `directory`, as pip does it."""
    directory.mkdir()
    _do([sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT)], directory)
    (wheel,) = directory.glob("virt_overhead-*.whl")
    return wheel


def _do(command: list[str], directory: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=patience(_SECONDS)
    )
    assert done.returncode == 0, done.stdout + done.stderr
