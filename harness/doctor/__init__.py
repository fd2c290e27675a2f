"""Checks whether a host is fit for measuring, and holds better settings while a run measures."""

from harness.doctor.examine import examine, known_proof
from harness.doctor.findings import Finding, Level, Setting, as_records, has_problem
from harness.doctor.probe import HostState, look
from harness.doctor.tune import Change, Tuning, left_over, restore, tuned

__all__ = [
    "Change",
    "Finding",
    "HostState",
    "Level",
    "Setting",
    "Tuning",
    "as_records",
    "examine",
    "has_problem",
    "known_proof",
    "left_over",
    "look",
    "restore",
    "tuned",
]
