"""The embedded lab: a disposable KVM host in QEMU on this machine, with simulated disks."""
