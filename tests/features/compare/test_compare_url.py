"""Runs that are named by the URL of their results.json."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest

from harness.cli import main
from tests.e2e.machines import ROOT

STORED = ROOT / "tests" / "unit" / "data" / "stored_run"


REQUESTED: list[str] = []


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        REQUESTED.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    REQUESTED.clear()
    shutil.copytree(STORED, tmp_path / "served")
    handler = partial(Handler, directory=str(tmp_path / "served"))
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


def test_a_byte_order_mark_is_accepted(server: str, tmp_path: Path) -> None:
    stored = (STORED / "results.json").read_bytes()
    (tmp_path / "served" / "marked.json").write_bytes(b"\xef\xbb\xbf" + stored)
    assert main(["compare", f"--reports={tmp_path}", f"{server}/marked.json", str(STORED)]) == main(
        ["compare", f"--reports={tmp_path}", str(STORED), str(STORED)]
    )


SERVED = {
    "page.html": "<html></html>",
    "list.json": "[1]",
    "newer.json": '{"schema": 99}',
    "text.json": '{"schema": "1"}',
}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing.json", "404 Client Error"),
        ("journal.jsonl", "is not a valid results.json"),
        ("page.html", "is not a valid results.json"),
        ("list.json", "Input should be an object"),
        ("newer.json", "has schema 99; this virt-overhead reads schemas up to"),
        ("text.json", "schema = "),
    ],
)
def test_what_is_no_run_is_named_by_its_url_and_not_stored(
    server: str, path: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if path in SERVED:
        (tmp_path / "served" / path).write_text(SERVED[path])
    assert main(["compare", f"--reports={tmp_path / 'reports'}", f"{server}/{path}", str(STORED)]) == 2
    error = capsys.readouterr().err
    assert f"{server}/{path}" in error
    assert why in error
    assert "damaged" not in error
    assert not list((tmp_path / "reports").glob("fetched/*"))


@pytest.mark.parametrize("address", ["me:canary-1f@{}/missing.json", "{}/missing.json?token=canary-1f"])
def test_secrets_of_a_url_are_not_shown(
    server: str, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheme, _, host = server.partition("://")
    for place in (host, "127.0.0.1:1"):
        url = f"{scheme}://{address.format(place)}"
        assert main(["compare", f"--reports={tmp_path}", url, str(STORED)]) == 2
        error = capsys.readouterr().err
        assert "canary-1f" not in error
        assert f"{place}/missing.json" in error


def test_a_url_is_read_as_it_is_written(server: str, tmp_path: Path) -> None:
    upper = server.replace("http", "HTTP") + "/results.json"
    nested = f"{server}/results.json?from=a//b/../c"
    assert main(["compare", f"--reports={tmp_path}", upper, nested]) in (0, 2)
    assert REQUESTED == ["/results.json", "/results.json?from=a//b/../c"]


def test_a_directory_that_cannot_be_written_is_named(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fetched").write_text("a file")
    assert main(["compare", f"--reports={tmp_path}", f"{server}/results.json", str(STORED)]) == 1
    assert f"check that this user may write to {tmp_path}" in capsys.readouterr().err


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drip(request: Handler) -> None:
        with contextlib.suppress(OSError):
            request.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                request.wfile.write(b" ")
                time.sleep(0.05)

    monkeypatch.setattr(Handler, "do_GET", drip)
    monkeypatch.setattr(import_module("harness.features.compare.command"), "_WHOLE_SECONDS", 0.5)
    assert main(["compare", f"--reports={tmp_path}", f"{server}/results.json", str(STORED)]) == 2
    assert "results.json: has not arrived after 0.5 s\n  -> fetch the file another way" in capsys.readouterr().err
