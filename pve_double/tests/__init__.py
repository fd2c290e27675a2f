"""Tests of the double: against what was recorded, against the public sources, and as a command."""
