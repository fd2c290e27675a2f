"""Arrays of disks: how they scale against a single disk, what limits them, and what a missing member costs.

`building.py` makes arrays of md for layouts. A disk of the lab file may be an array already, which the kernel
measures like any disk. The rest of this package says what comes of them. `scaling.py` divides the array on the host
by the single disk of the same blocks, and by what the RAID level can deliver. It also checks that a degraded or
rebuilding array was so in each slice, and compares it with the optimal one. `bottleneck.py` finds what limits an
array from the counters of disks, CPUs and threads, and from arrays of the same run on other controllers. `records.py`
is what results.json has of it.
"""
