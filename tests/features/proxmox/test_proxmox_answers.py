"""An API that answers anything: too much, too deep or not at all what was asked for is an error that names the host."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import requests

from harness.errors import HostError
from harness.features.proxmox.session import ANSWER_BYTES, limit_answers


class _Api(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, bytes]] = {
        "/good": b'{"data": [{"vmid": 100}]}',
        "/deep": b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "/cut": b'{"data": [',
        "/list": b"[1, 2]",
        "/other": b'{"success": 1}',
        "/html": b"<html>Please log in</html>",
        "/bytes": b"\xff\xfe\x00",
        "/refused": b"no such VM",
    }

    def do_GET(self) -> None:
        self.send_response(500 if self.path == "/refused" else 200)
        self.end_headers()
        if self.path != "/endless":
            self.wfile.write(self.answers[self.path])
            return
        try:
            while True:
                self.wfile.write(b" " * 65536)
        except OSError:
            return

    def log_message(self, *_args: object) -> None:
        """Nothing: standard error is for failures."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.trust_env = False
        limit_answers(found)
        yield found


def test_an_answer_is_read_as_before(url: str, session: requests.Session) -> None:
    answer = session.get(f"{url}/good", timeout=600)
    assert answer.json() == json.loads(_Api.answers["/good"])


def test_a_refusal_in_words_is_read_as_before(url: str, session: requests.Session) -> None:
    answer = session.get(f"{url}/refused", timeout=600)
    assert (answer.status_code, answer.text) == (500, "no such VM")


def test_an_endless_answer_is_cut_off(url: str, session: requests.Session) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostError, match=r"the answer to GET /endless has more than 16 MiB"):
            session.get(f"{url}/endless", timeout=600)
        assert tracemalloc.get_traced_memory()[1] < 2 * ANSWER_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", ["/deep", "/cut", "/list", "/other", "/html", "/bytes"])
def test_an_answer_that_is_not_valid_is_an_error(url: str, session: requests.Session, path: str) -> None:
    with pytest.raises(HostError, match=f"the answer to GET {path} cannot be read"):
        session.get(f"{url}{path}", timeout=600)
