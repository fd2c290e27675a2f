"""This machine as the host of a run, with the test driver of libvirt in place of guests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libvirt
import pytest

from harness.guest.libvirt.connection import Connection
from harness.lab.facts import Acceleration, HostFacts, read_facts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from tests.unit.loop_disks import RUNNER


def this_host(spec: HostSpec, facts: HostFacts | None = None) -> Host:
    """This machine with these disks, without files for guests. `facts` replaces what is read from it."""
    no_files, acceleration = GuestFiles("", "", Path(), ""), Acceleration("kvm", "as said")
    return Host(spec, RUNNER, None, None, facts or read_facts(RUNNER), no_files, acceleration)


@contextmanager
def connected(name: str) -> Iterator[Connection]:
    """A connection to the test driver, with the name of the host in messages."""
    handle = libvirt.open("test:///default")
    try:
        yield Connection(handle, name)
    finally:
        handle.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    with connected("here") as found:
        yield found
