"""libvirt's Python binding. It has no wheels, so it is not among the dependencies: only hosts with libvirt need it."""

from __future__ import annotations

from harness.errors import LabUnavailable

try:
    import libvirt
    import libvirt_qemu
except ImportError as error:
    raise LabUnavailable(
        "libvirt's Python binding is not installed here, and a host with libvirt needs it",
        hint="install the distribution's (Debian: python3-libvirt) and create the environment with python3 -m venv "
        '--system-site-packages; or, with a compiler and the headers: pip install "virt-overhead[libvirt]"',
    ) from error

__all__ = ["libvirt", "libvirt_qemu"]
