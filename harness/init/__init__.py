"""`virt-overhead init`: finds what a host has to measure, and writes a lab file."""
