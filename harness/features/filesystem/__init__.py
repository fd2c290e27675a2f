"""A file system in the guest as part of a mode: `filesystem = "ext4"` with `mount_options`.

fio in the guest uses a file on this file system instead of the disk. Its twin is a file on the same file system, which
the host makes on a second volume of the same kind and size. So the loss against the host has three parts: the layout,
the file system (both in the twin), and virtualisation (guest against twin). The baseline stays the bare device, as for
every other mode, so that modes with and without a file system can be compared.

The host makes both file systems, with the same command, and writes both files in full: one kernel and one mkfs decide
where blocks are, and a guest needs only mount. It then unmounts that of the guest. A file as a volume (`raw`) is behind
a loop device meanwhile. All of it is in the creation log, and the commands run only on the run's own volumes.

The kernel asks `mode.filesystem` for the bytes that a journal may move (`InnerFilesystem.amplification`), and for the
volume of the twin in the plan. The rest is a `Hypervisor` around that of the host: `volumes.py` makes the file systems
when the layouts are built, and `mounted.py` mounts them in each guest that is booted, and reads back what is mounted.
"""
