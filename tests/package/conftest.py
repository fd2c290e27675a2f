"""The installed wheel and a clean Debian, each made once for all tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.debian_root import DebianRoot, make_root
from tests.package.installed import Installed, install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRoot]:
    """A Debian with apt and nothing else."""
    root = make_root(tmp_path_factory.mktemp("debian"))
    yield root
    shutil.rmtree(root.path)


@pytest.fixture
def debian(base: DebianRoot, tmp_path: Path) -> Iterator[DebianRoot]:
    """A copy of it."""
    path = tmp_path / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", str(base.path), str(path)], check=True)
    yield DebianRoot(path, base.environment)
    shutil.rmtree(path)
