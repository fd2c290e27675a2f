"""What the API answers, with limits: neither a large nor a deeply nested answer may end the run or fill the memory."""

from __future__ import annotations

import requests

from harness.errors import HostError
from harness.units import format_size
from harness.untrusted import parse_json, reading

ANSWER_BYTES = 16 << 20
"""The log of a task, with 100,000 lines at most, is the longest answer."""
_CHUNK_BYTES = 64 << 10


def limit_answers(session: requests.Session) -> None:
    """From now on an answer that is too large, or that succeeds and is not an object of JSON, is a HostError."""

    def check(response: requests.Response, *_args: object, **_options: object) -> None:
        # Called before requests reads the body, which would take it whole.
        source = f"the answer to {response.request.method} {response.request.path_url.partition('?')[0]}"
        body = bytearray()
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES:
                response.close()
                raise HostError(f"{source} has more than {format_size(ANSWER_BYTES)}", hint="check host.NAME.api.url")
        response._content = bytes(body)
        if response.ok:
            with reading(source, hint="check host.NAME.api.url: does Proxmox VE answer there?"):
                parse_json(response.content, source)["data"]

    session.hooks["response"].append(check)
