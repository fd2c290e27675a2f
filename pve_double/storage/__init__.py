"""Storages, the volumes on them, and the node's disks."""
