"""Limits for the API's answers: no large or deeply nested answer may end the run or fill the memory."""

from __future__ import annotations

import requests

from harness.errors import HostError
from harness.units import format_size
from harness.untrusted import parse_json, reading

ANSWER_BYTES = 16 << 20
"""The longest answer is the log of a task, with at most 100,000 lines."""
_CHUNK_BYTES = 64 << 10
_HINT = "check host.NAME.api.url: it must lead to Proxmox VE itself"


def limit_answers(session: requests.Session) -> None:
    """Make the session raise HostError for an answer that is too large, or successful but not a JSON object."""

    def check(response: requests.Response, *_args: object, **_options: object) -> None:
        # Called before requests reads the body, which it does without a limit.
        source = f"the answer to {response.request.method} {response.request.path_url.partition('?')[0]}"
        body = bytearray()
        # A compressed answer of a few KB can have GiB, which older versions of urllib3 unpack at once.
        if (encoding := response.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            response.close()
            raise HostError(f"{source} is compressed ({encoding[:40]}), which was not requested", hint=_HINT)
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES:
                response.close()
                raise HostError(f"{source} has more than {format_size(ANSWER_BYTES)}", hint=_HINT)
        response._content = bytes(body)
        if response.ok:
            with reading(source, hint="check that host.NAME.api.url leads to Proxmox VE"):
                parse_json(response.content, source)["data"]

    session.headers["accept-encoding"] = "identity"
    session.hooks["response"].append(check)
