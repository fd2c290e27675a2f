"""Counters in one line: each count by its origin and its name, as `fio_read`, `qemu_guest_s` or `member:sda_busy_s`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import TypeAdapter

from harness.model.counters import Counters, nested

_ADAPTER = TypeAdapter(Counters)


def counters(flat: Mapping[str, float]) -> Counters:
    """The counters with these counts. A count that is not given is as in a record that lacks it."""
    record = nested({name: _whole(name, count) for name, count in flat.items()})
    return _ADAPTER.validate_json(json.dumps(record))


def _whole(name: str, count: float) -> float:
    whole = name.endswith(("read", "written")) or name in ("ios", "fio_switches", "disk_requests")
    return round(count) if whole else count
