"""Temperature and wear of disks before and after a run, and what a RAID controller knows of its volumes.

The kernel of Linux does not show them, so programs of the host are asked, if it has them (`programs.py`).
"""
