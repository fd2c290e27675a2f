"""`virt-overhead init`: finds what a host has to measure, and writes a lab file.

It looks for storages in use with room, and for disks that nothing uses (offers.py), on a node of Proxmox VE by
its API (node.py). It only reads. lab_file.py writes storages as tables and disks as comments: a user releases a disk by
hand. What is not offered is named with the reason.

`virt-overhead quick` chooses one of these storages, writes the lab file for it, and measures it.

`virt-overhead` alone looks at the lab file and the runs of this directory, and says what to do next (commands.py).
"""
