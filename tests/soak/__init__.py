"""Tests that take too long for every change: `tox -e soak`, before the safety of anything is called done."""
