"""The id of a run. All names that the run gives on a lab host begin with it, so it has exactly one form."""

from __future__ import annotations

import re
import secrets
import time

from harness.terminal import quoted

_FORM_IN_WORDS = "YYYYmmdd-HHMMSS-xxxx with four hexadecimal digits"
_FORM = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")


class RunId(str):
    """A `str` of the form `YYYYmmdd-HHMMSS-xxxx`. Any other text raises ValueError.

    It has 20 characters, because a partition name in a GPT has at most 36: `voh:RUN:WHAT`, with WHAT of up to 11.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> RunId:
        if not _FORM.fullmatch(text):
            raise ValueError(f"{quoted(text)}: not a run id; allowed: {_FORM_IN_WORDS}")
        return super().__new__(cls, text)

    @classmethod
    def new(cls) -> RunId:
        """The id of a run that starts now."""
        return cls(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
