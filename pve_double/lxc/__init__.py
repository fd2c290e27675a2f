"""Containers: after the public sources of pve-container."""
