"""Packages of virt-overhead that are no wheels: a .deb for a node (`python -m packages.deb`)."""
