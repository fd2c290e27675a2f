"""Runs that are named by the URL of their results.json."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.cli import main
from tests.e2e.machines import ROOT

STORED = ROOT / "tests" / "unit" / "data" / "stored_run"


@pytest.fixture
def server() -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(STORED))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_a_run_behind_a_url_is_compared_and_becomes_a_baseline(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{server}/results.json"
    reports = f"--reports={tmp_path}"
    assert main(["compare", reports, url, str(STORED)]) in (0, 2)
    assert main(["baseline", "set", reports, "theirs", url]) == 0
    assert "baseline theirs: run " in capsys.readouterr().out
    assert main(["compare", reports, "--baseline=theirs", url]) in (0, 2)
    assert len(list((tmp_path / "fetched").iterdir())) == 1


@pytest.mark.parametrize("path", ["missing.json", "journal.jsonl"])
def test_what_is_no_run_is_named(server: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", f"--reports={tmp_path}", f"{server}/{path}", str(STORED)]) != 0
    error = capsys.readouterr().err
    assert path in error or "results.json" in error
    assert "internal error" not in error
