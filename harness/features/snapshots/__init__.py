"""Snapshots that are taken and removed under load: how long they stop a guest's I/O, and what they cost it.

A scenario asks for them with `[snapshot.NAME]`. After the rounds of a group, fio runs in the guest in pairs of slices,
in random order: in one of them, a snapshot of the volume is taken and removed again. `request.py` has the table of a
scenario and the record. `measuring.py` measures the pairs, and takes snapshots of LVM's thin volumes, of zvols and of
RBD images by commands of the host. `proxmox.py` takes those of a whole VM by the API. `report.py` shows the pause and
the loss.
"""
