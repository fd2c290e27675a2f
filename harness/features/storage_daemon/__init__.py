"""Disks that a storage daemon of QEMU serves by vhost-user-blk: `attach.server = "storage-daemon"`.

Before the guest starts, a daemon per disk opens it with the options of the attachment, and waits at a socket
(`serving.py`). libvirt connects the guest to the socket. What the daemon really does is read back from the arguments
and the rings of its process. It ends with the guest, or with `virt-overhead reap`. Which options a daemon can have, and
which versions it needs, are rows of the option table (`model/attach.py`).
"""
