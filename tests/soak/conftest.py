"""The lab, as the end-to-end tests have it."""

from tests.e2e.conftest import lab

__all__ = ["lab"]
