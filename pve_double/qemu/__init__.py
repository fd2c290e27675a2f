"""Virtual machines: their drives, configurations, lives and QEMU arguments."""
