"""multipart/form-data, as far as an upload needs it."""

from __future__ import annotations

import tempfile
from email.message import Message
from pathlib import Path

from pve_double.errors import PveError
from pve_double.schema import Value

_END = b"\r\n"


def read_form(content_type: str, body: bytes) -> tuple[dict[str, Value], Path | None]:
    """The fields, and a file with the content of the part that is one; its name is the field `filename`."""
    boundary = _header(content_type).get_param("boundary")
    if not isinstance(boundary, str):
        raise PveError("upload without a boundary", status=400)
    fields: dict[str, Value] = {}
    file: Path | None = None
    for part in (_END + body).split(_END + b"--" + boundary.encode())[1:]:
        head, separator, content = part.partition(_END * 2)
        if not separator:
            continue
        disposition = _disposition(head)
        name, filename = disposition.get_param("name"), disposition.get_param("filename")
        if isinstance(filename, str):
            fields["filename"] = filename
            file = _kept(content)
        elif isinstance(name, str):
            fields[name] = content.decode()
    return fields, file


def _disposition(head: bytes) -> Message:
    for line in head.decode().splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            return _header(value.strip())
    return Message()


def _header(value: str) -> Message:
    # Message reads parameters of a header only where that is called Content-Type.
    message = Message()
    message["Content-Type"] = value
    return message


def _kept(content: bytes) -> Path:
    with tempfile.NamedTemporaryFile(prefix="pveupload-", delete=False) as file:
        file.write(content)
    return Path(file.name)
