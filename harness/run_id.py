"""The name of a run: it begins every name that the run gives on a lab host, so it has one form and no other."""

from __future__ import annotations

import re
import secrets
import time

_FORM_IN_WORDS = "YYYYmmdd-HHMMSS-xxxx with four hexadecimal digits"
_FORM = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")


class RunId(str):
    """A `str` of the form `YYYYmmdd-HHMMSS-xxxx`; ValueError for any other, so every value of this type is checked.

    Its 20 characters fill what a GPT leaves: `voh:RUN:WHAT` has at most 36, and WHAT up to 11.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> RunId:
        if not _FORM.fullmatch(text):
            raise ValueError(f"{text!r}: not a run id, its form is {_FORM_IN_WORDS}")
        return super().__new__(cls, text)

    @classmethod
    def new(cls) -> RunId:
        """The id of a run that starts now."""
        return cls(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
