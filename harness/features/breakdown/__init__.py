"""Breakdowns: where the microseconds go that a guest adds to one I/O, with `--breakdown`.

After the rounds of a group, one I/O at a time is measured for each mode and workload (`measuring.py`), in slices with
and without tracing by turns. The kernels of host and guest trace it with tracefs, which needs no programs. The duration
of each layer, without that of the layer below it, is a part of the latency (`parts.py`, which also has what
results.json stores under `breakdowns`); `report.py` is the part of the report. Plans, and the measuring of rounds, know
nothing of it: its time is added to that of a plan, and its records are not cells.
"""
