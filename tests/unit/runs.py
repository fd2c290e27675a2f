"""The builders of whole runs, under the name by which scripts outside of this repository import them."""

from __future__ import annotations

from tests.build import RUN_ID, optane, synthetic_run

__all__ = ["RUN_ID", "optane", "synthetic_run"]
