"""What one I/O costs the host: CPU time and cycles by part, KVM's exits, switches, requests to the disk.

From the counters of each slice (`feature.py`). A cell stores the costs of each arm under `accounting`; the page shows
them below its findings (`report.py`). If the disk got fewer and larger requests from a guest than from its host, they
also explain why the guest is faster.
"""
