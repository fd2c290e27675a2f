"""Cached cells: what the host's memory serves of a guest's I/O, for modes that are declared with `cached = true`.

A figure from a cache is a figure about memory. So a cached cell compares its guest with a twin in the same state of the
cache: fio on the host on the same volume or file, in the same blocks. Before each round, the host reads all of it once.
The kernel asks `mode.cached` and does three things: it compares the bytes of such arms with QEMU's only
(`results/byte_counts.py`), makes the twin the baseline (`model/mode.py`), and keeps the cells out of all comparisons
with other modes (`report/section.py`). This feature measures how much memory served, by fio's bytes and those of the
disk, and reports it beside the memory that the host had, with the same guest against the disk itself as a figure of its
own.
"""
