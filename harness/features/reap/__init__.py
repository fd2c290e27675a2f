"""`virt-overhead reap`: what killed runs left on the hosts of a lab, without a measurement.

Each run removes what others left on its disks before it measures (`harness/measure/reap.py`). The command (commands.py)
does that for whole hosts, with the lease of each, and can stop the run that has it.
"""
