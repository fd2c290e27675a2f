"""Whether a host is fit for measuring: `virt-overhead doctor`.

One script reads the state of a host and watches its CPUs and disks for a moment. Pure functions make a finding of each
fact: of the whole host (machine.py, which also runs the script), of memory, CPUs and disks (devices.py), and of a node
of Proxmox VE (node.py). `--tune` holds the settings that findings advise for a while (harness/lab/lease.py), and
command.py shows everything. A new check is a function there, with `add_check`, and a row of docs/doctor.md.
"""
