"""The features beside the main job, a package for each. Remove a package and its name here, and the feature is gone.

A package has its explanation in its docstring, and `FEATURE`, what it adds to the kernel (`Feature`). Its `report.py`
has `REPORT`, what it adds to reports (`FeatureReport`), and its `commands.py` has `add_commands`, its verbs of the
command line, and may have `show_overview`, what that does without a verb. Its `proxmox.py` has `ON_NODE`, what it adds
to nodes of Proxmox VE (`OnNode`). Each of the four may be missing. A module beside the packages is for several of them.
"""

from __future__ import annotations

NAMES: tuple[str, ...] = (
    "reap",
    "embedded",
    "watch",
    "parallel",
    "init",
    "doctor",
    "published",
    "answers",
    "decompose",
    "variants",
    "search",
    "arrays",
    "breakdown",
    "io_costs",
    "steady",
    "own_image",
    "storage_daemon",
    "vfio",
    "rbd",
    "throttles",
    "trims",
    "neighbours",
    "container",
    "filesystem",
    "cached",
    "heat_map",
    "distributions",
    "borrow",
    "fio_files",
    "windows",
    "compare",
    "calibrate",
    "write_limit",
    "zfs",
    "commands",
    "disk_health",
    "translation",
    "snapshots",
    "exchange",
    "manual",
    "proxmox",
)
"""The order in which the kernel asks the features, and in which the command line shows their verbs."""
