"""The heat-map of a disk in the report: the overhead of every mode in every job, at a glance.

Orange is slower than the host, blue is faster. A field without a value says why. Cells at a fixed rate are not in it
(report.py).
"""
