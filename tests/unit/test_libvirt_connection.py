"""Calls to libvirt, against the driver that libvirt has for tests: what a caller gets when they fail or hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.errors import HostError
from harness.guest.libvirt.connection import Connection, Refused
from tests.unit.this_host import connected


@pytest.fixture
def connection() -> Iterator[Connection]:
    with connected("node1") as found:
        yield found


@pytest.fixture
def transient(connection: Connection) -> Any:
    """A domain that libvirt forgets when it ends, as ours are."""
    xml = "<domain type='test'><name>voh</name><memory>8192</memory><os><type>hvm</type></os></domain>"
    return connection.call("start the guest", lambda: connection.handle.createXML(xml, 0))


def test_what_a_call_returns_is_returned(connection: Connection, transient: Any) -> None:
    assert connection.call("report the guest's state", transient.isActive)


def test_the_error_for_an_ended_domain_differs_from_other_refusals(connection: Connection, transient: Any) -> None:
    transient.destroy()
    with pytest.raises(Refused, match="host node1: libvirt did not show the guest: Domain not found") as ended:
        connection.call("show the guest", transient.XMLDesc)
    assert ended.value.gone
    with pytest.raises(Refused, match=r"host node1: libvirt did not start the guest: .*Start Tag") as refused:
        connection.call("start the guest", lambda: connection.handle.createXML("<domain", 0), hint="see its log")
    assert not refused.value.gone
    assert refused.value.hint == "see its log"


def test_a_call_that_hangs_is_given_up_with_the_remedy(connection: Connection) -> None:
    never = threading.Event()
    with pytest.raises(HostError, match=r"host node1: libvirt did not close within 100 ms") as error:
        connection.call("close", never.wait, deadline=0.1)
    assert not isinstance(error.value, Refused)
    assert "systemctl status libvirtd" in str(error.value)
    never.set()
