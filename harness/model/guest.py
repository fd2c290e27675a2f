"""What all guests have in common."""

from __future__ import annotations

GUEST_MEMORY = 768 << 20
"""The guest's memory in bytes. Below 512 MiB of usable memory, Linux turns off transparent huge pages.

Then the buffers of large I/Os consist of single pages that lie anywhere, and QEMU maps each of them. In the embedded
lab, reads of 256 KiB reached 700 MB/s without huge pages and 1000 MB/s with them, and varied more from slice to slice.
"""
