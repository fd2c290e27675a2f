"""A container in place of the guest: "VM or container?" as a difference with its interval.

A mode asks for it with `container = true` (`feature.py`). Beside the mode with its VM, there is then a mode whose guest
is a container on the same volume, in the same blocks. Host, twin, contrasts and verdicts are those of every mode: to
the kernel, the container is a guest whose attachment is `InContainer` (`model/attach.py`). `hypervisor.py` adds such
guests to the hypervisor of a host, `lxc.py` starts them with LXC, and `report.py` says what the difference is.
"""
