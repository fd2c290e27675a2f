"""Options of the harness's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate", action="store_true", help="write the golden files of tests/unit/data anew; read their diff"
    )


@pytest.fixture
def regenerate(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--regenerate"))


@pytest.fixture(scope="session", autouse=True)
def own_paces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test announces a run by what the runs of this user took, or changes that, even in a fixture of a module."""
    path = tmp_path_factory.getbasetemp() / "paces.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIRT_OVERHEAD_PACES", str(path))
        yield path
