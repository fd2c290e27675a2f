"""Packages of virt-overhead beside the wheel: a .deb for a node (`python -m packages.deb`)."""
