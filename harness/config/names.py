"""Names and other text in files, and the id of a run: what is valid, and how a message lists the allowed names."""

from __future__ import annotations

import difflib
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from harness.terminal import quoted

LONGEST_NAME = 40
"""Characters. Ids, file names, and the names of volumes on hosts are composed of several such names."""

LONGEST_STORED = 200
"""Characters of a name in a record, which is composed of such names. File systems allow 255 bytes."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PATH_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_RAW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")
_RUN_ID_IN_WORDS = "YYYYmmdd-HHMMSS-xxxx with four hexadecimal digits"
_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")


def choices(word: str, allowed: Iterable[str]) -> str:
    """For example `allowed: host, lvm, raw (did you mean "lvm"?)`."""
    names = list(allowed)
    return f"allowed: {', '.join(names)}{near(word, names)}"


def near(word: str, names: Iterable[str], similarity: float = 0.6) -> str:
    """For example ` (did you mean "lvm"?)`: a name with the word between hyphens, else a similar one. Else empty."""
    known = list(names)
    likely = [name for name in known if word.lower() in name.split("-")]
    likely += difflib.get_close_matches(word.lower(), known, n=1, cutoff=similarity)
    return f' (did you mean "{likely[0]}"?)' if likely else ""


def plain_name(name: str) -> str:
    """A valid name of a host or a disk. Raises ValueError for any other."""
    if not _PLAIN.fullmatch(name):
        raise ValueError("not a valid name; allowed: letters, digits and `_`, `.`, `-`, with a letter or digit first")
    return short_name(name)


def short_name(name: str) -> str:
    """A name of allowed length. Raises ValueError for a longer one."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"the name has {len(name)} characters; allowed: at most {LONGEST_NAME}")
    return name


def path_name(name: str) -> str:
    """A name in a file of somebody else that can be the name of a file, too. Raises ValueError for any other.

    The names of hosts, disks, modes and jobs have this form. They become paths, and words of commands and messages.
    """
    if not _PATH_NAME.fullmatch(name):
        raise ValueError("not a valid name; allowed: letters, digits, `_`, `.`, `+`, `-`, with a letter or digit first")
    if len(name) > LONGEST_STORED:
        raise ValueError(f"the name has {len(name)} characters; allowed: at most {LONGEST_STORED}")
    return name


def arm_name(arm: str) -> str:
    """The id of an arm in such a file: `host` or `guest:MODE`. Raises ValueError for any other."""
    for name in arm.split(":", 1):
        path_name(name)
    return arm


def raw_path(path: str) -> str:
    """The path of an output in such a file: `raw/NAME`. Raises ValueError for any other."""
    directory, _, name = path.partition("/")
    if directory != "raw" or not _RAW.fullmatch(name):
        raise ValueError("not the path of an output; allowed: raw/NAME")
    return path


def spelt_otherwise(name: str, others: Iterable[str]) -> str | None:
    """The one of `others` that some file systems take for `name`, because only upper and lower case differ."""
    return next((other for other in others if other != name and other.casefold() == name.casefold()), None)


def one_line(text: str) -> str:
    """Text on one line. It must not be empty and must not have control characters for a terminal."""
    if not text.strip():
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("allowed: one line of printable characters")
    return text


def word(text: str) -> str:
    """Text without spaces."""
    if one_line(text).split() != [text]:
        raise ValueError("allowed: text without spaces")
    return text


def absolute_path(value: object) -> Path:
    """An absolute path, or one below a home directory: `~/.ssh/id_ed25519`.

    The meaning of a relative path would depend on the directory in which the command starts.
    """
    if not isinstance(value, str):
        raise ValueError("must be a path in quotes")
    try:
        path = Path(one_line(value)).expanduser()
    except RuntimeError:
        raise ValueError("this user does not exist; allowed: an absolute path") from None
    if not path.is_absolute():
        raise ValueError("allowed: an absolute path, or one that begins with ~/")
    return path


class RunId(str):
    """The id of a run, a `str` of the form `YYYYmmdd-HHMMSS-xxxx`. Any other text raises ValueError.

    It has 20 characters, because a partition name in a GPT has at most 36: `voh:RUN:WHAT`, with WHAT of up to 11.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> RunId:
        if not _RUN_ID.fullmatch(text):
            raise ValueError(f"{quoted(text)}: not a run id; allowed: {_RUN_ID_IN_WORDS}")
        return super().__new__(cls, text)

    @classmethod
    def new(cls) -> RunId:
        """The id of a run that starts now."""
        return cls(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
