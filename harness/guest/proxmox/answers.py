"""Limits for the API's answers: no large or deeply nested answer may end the run or fill the memory."""

from __future__ import annotations

import re
from typing import Any, NoReturn

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


_LISTS = re.compile(
    r"(.*/)?(storage|network|content|snapshot|pending|tasks|log|qemu|lxc|cluster/resources|cluster/mapping/pci"
    r"|disks/(list|lvmthin|zfs|directory))"
)
_TABLES = re.compile(r"(.*/)?(config|status|status/current|version|access/permissions|disks/lvm|disks/zfs/[^/]+)")
_NUMBERS = ("vmid", "size", "avail", "total")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]+)?")


class Table(dict[str, Any]):
    """A table of an answer. A key that is missing is an error of the node, and not one of the harness."""

    def __init__(self, source: str, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._source = source

    def __missing__(self, key: str) -> NoReturn:
        raise _unusable(self._source, f"there is no {key!r}")


def checked(source: str, path: str, data: Any) -> Any:
    """The data of an answer for this path of the API. HostError, which names `source`, if it has another shape.

    What a guest's agent reports is not checked here.
    """
    if "/agent/" in path:
        return data
    if _LISTS.fullmatch(path) and not (isinstance(data, list) and all(isinstance(each, dict) for each in data)):
        raise _unusable(source, "it is not a list of tables")
    if _TABLES.fullmatch(path) and not isinstance(data, dict):
        raise _unusable(source, "it is not a table")
    return _with_errors(source, data)


def _with_errors(source: str, data: Any) -> Any:
    if isinstance(data, list):
        return [_with_errors(source, each) for each in data]
    if not isinstance(data, dict):
        return data
    for key in _NUMBERS:
        value = data.get(key)
        if value is not None and (isinstance(value, bool) or not _NUMBER.fullmatch(str(value))):
            raise _unusable(source, f"{key} = {str(value)[:40]!r} is not a number")
    return Table(source, {key: _with_errors(source, value) for key, value in data.items()})


def _unusable(source: str, why: str) -> HostError:
    return HostError(f"{source} cannot be read: {why}", hint="check that host.NAME.api.url leads to Proxmox VE")
