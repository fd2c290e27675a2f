"""Borrow: a running VM of others as the guest. Disks are plugged into it, measured with its fio, and unplugged.

The lab file names the VM (`borrow` in `[host.NAME.guest]`), and how a run logs in to it: over SSH, or through its guest
agent (agent.py). The VM is never started, stopped or reset, its definition never changes, and its own disks are never
touched. `BorrowingHypervisor` (hypervisor.py) is the same for all hypervisors: it takes the layouts from the hypervisor
of the host, and the rest from a `VmOfOthers`, which libvirt.py and proxmox.py have. The creation log has
what is plugged in, and `virt-overhead reap` unplugs it after a killed run.
"""
