"""Whether a host is fit for measuring: `virt-overhead doctor`.

One script reads the state of a host and watches its CPUs and disks for a moment (probe.py). Pure functions make a
finding of each fact: of the whole host (machine.py), and of memory, CPUs and disks (devices.py); hypervisors add
theirs. `--tune` holds the settings that findings advise for a while (harness/lab/findings.py), and command.py
shows everything. A new check is a function there, in the list of `examine`, and a row of docs/doctor.md.
"""
