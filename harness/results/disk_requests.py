"""Whether a guest is faster than its host because its I/Os reach the disk as fewer, larger requests. Pure.

fio on the host submits each I/O alone. QEMU submits those that a guest sent meanwhile together, and the kernel merges
neighbours. A disk that is limited by requests, and not by bytes, then serves more I/Os of the guest.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from harness.results.cells import CostRecord
from harness.results.io_costs import DISK_REQUESTS

_FEWER = 0.9
"""A guest has less than this many times the requests per I/O of the host; a few I/Os are merged by chance."""

_UNEXPLAINED = "no check explains it: find out why"


def why_faster(accounting: Mapping[str, CostRecord], *, on_array: bool) -> str:
    """Why a guest without a failed check is faster than its host: its requests, or that the reason is not known.

    `accounting` is the cell's. On an array, the guest is compared with the array on the host.
    """
    cost = accounting.get(DISK_REQUESTS.name)
    base = () if cost is None else cost.twin if on_array else cost.host
    if cost is None or not base or not cost.guest:
        return _UNEXPLAINED
    host, guest = fmean(base), fmean(cost.guest)
    if guest >= _FEWER * host:
        return _UNEXPLAINED
    return f"the disk got {guest:.2g} requests for each I/O of the guest and {host:.2g} for the host's, larger ones"
