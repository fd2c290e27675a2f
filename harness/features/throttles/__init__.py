"""Limits of a disk's I/O: whether those of a mode hold, and whether figures look like a limit that nobody requested.

The limits themselves (`iops`, `bw` and their bursts) are options of an attachment, rows of the option table. A check
per limit compares what the guest got with what QEMU lets through. Notes say why a figure is above its limit, and where
the same round number of IOPS at several depths looks like the limit of others.
"""
