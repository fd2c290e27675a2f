"""A stateful double of a Proxmox VE 9.2 node for tests: see README.md."""
