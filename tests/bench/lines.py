"""Files of JSON lines, to which a benchmark appends its records. A later call continues the file."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from harness.errors import ResultsError

T = TypeVar("T")


def append(path: Path, records: Iterable[T], kind: type[T]) -> None:
    """Append a line for each record, which are on the disk when this returns. Raises OSError.

    A last line without its end, which a killed process left, is removed.
    """
    adapter = TypeAdapter(kind)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        for each in records:
            file.write(adapter.dump_json(each) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, kind: type[T]) -> list[T]:
    """The records of the file; none if it does not exist. A last line without its end is left out.

    A file with the ending .gz is decompressed. Raises ResultsError, which names file and line, if a line is not such a
    record.
    """
    adapter = TypeAdapter(kind)
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except FileNotFoundError:
        return []
    except (OSError, EOFError, zlib.error) as error:
        raise ResultsError(f"{path} cannot be read: {error}", hint="give another file") from error
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            records.append(adapter.validate_json(line))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise ResultsError(
                f"{path}: line {number} is not a {kind.__name__}: {where or 'line'}: {problem['msg']}",
                hint="give a file of this version of the benchmark",
            ) from None
    return records
