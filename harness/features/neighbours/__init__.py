"""Other I/O beside a guest: several guests at the same time, a neighbour with a job of its own, or a backup.

A mode asks for it with `guests`, `neighbour` or `backup` (`feature.py`). A mode with a neighbour or a backup is
measured beside the same mode without, in the same blocks. `measured.py` says what each guest got, how fair that is, and
what the neighbour and the backup did; its checks void cells whose jobs did not run at the same time. `report.py` has
the tables. How jobs run at the same time, each on a volume of its own, is part of the kernel: an arm has parts
(`model/mode.py`).
"""
