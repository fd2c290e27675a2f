"""Options of the harness's own tests."""

from __future__ import annotations

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


@pytest.fixture(autouse=True)
def own_paces(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test announces a run by what the runs of this user took, or changes that."""
    path = tmp_path_factory.getbasetemp() / "paces.json"
    monkeypatch.setenv("VIRT_OVERHEAD_PACES", str(path))
    return path
