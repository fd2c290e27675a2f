"""Published figures that results are shown beside: the data, their schema, and which figure belongs to which cell.

The figures are for comparison only. No verdict, budget or exit status depends on them.
"""

from __future__ import annotations

from harness.published.load import link_names, links
from harness.published.matching import Counterpart, counterparts
from harness.published.schema import Band, Figure, Link, PublishedDisk, Study

__all__ = [
    "Band",
    "Counterpart",
    "Figure",
    "Link",
    "PublishedDisk",
    "Study",
    "counterparts",
    "link_names",
    "links",
]
