"""What is behind the API: nothing but state, or a machine with QEMU, LVM and files."""
