"""ZFS as its users have it: what its datasets and pools are, read back, and what its disks move for the bytes of a job.

The layouts `zvol` and `zfs` are of the kernel, with their properties as options. After a volume was created, the
feature reads the properties that ZFS reports of it, and the shape and state of its pool, into `Effective`. A cell on
ZFS has a record of the bytes that the pool's disks moved for each byte of its job. The report names what users look
for: a dataset on which nothing is durable, records that are larger than the writes, and what copies or parity cost.
"""
