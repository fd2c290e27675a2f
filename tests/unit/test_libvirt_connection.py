"""Calls to libvirt, against the driver that libvirt has for tests: what a caller gets when they fail or hang."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import libvirt
import pytest

from harness.errors import HostError
from harness.guest.libvirt.connection import Connection, LibvirtRefusal, _build_ssh_uri
from harness.lab.transport.ssh import SshTarget
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
    with pytest.raises(LibvirtRefusal, match="host node1: libvirt did not show the guest: Domain not found") as ended:
        connection.call("show the guest", transient.XMLDesc)
    assert ended.value.gone
    with pytest.raises(LibvirtRefusal, match=r"host node1: libvirt did not start the guest: .*Start Tag") as refused:
        connection.call("start the guest", lambda: connection.handle.createXML("<domain", 0), hint="see its log")
    assert not refused.value.gone
    assert refused.value.hint == "see its log"


def test_a_call_that_hangs_is_given_up_with_the_remedy(connection: Connection) -> None:
    never = threading.Event()
    with pytest.raises(HostError, match=r"host node1: libvirt did not close within 100 ms") as error:
        connection.call("close", never.wait, deadline=0.1)
    assert not isinstance(error.value, LibvirtRefusal)
    assert "systemctl status libvirtd" in str(error.value)
    never.set()


@pytest.mark.parametrize(
    ("address", "host", "shown"),
    [
        ("192.0.2.7", "192.0.2.7", "192.0.2.7:22"),
        ("node1.example", "node1.example", "node1.example:22"),
        ("2001:db8::7", "[2001:db8::7]", "[2001:db8::7]:22"),
        ("fe80::1%eth0", "[fe80::1%25eth0]", "[fe80::1%eth0]:22"),
    ],
)
def test_a_host_with_any_address_has_a_valid_uri(tmp_path: Path, address: str, host: str, shown: str) -> None:
    directory = tmp_path / "a b&c"
    directory.mkdir()
    target = SshTarget(address, 22, "root", tmp_path / "key", host_key="ssh-ed25519 AAAA")
    uri = _build_ssh_uri(target, directory)
    parts = urlsplit(uri)
    assert parts.netloc == f"root@{host}:22"
    assert parts.port == 22
    assert parse_qs(parts.query) == {"command": [str(directory / "ssh")], "no_tty": ["1"]}
    assert target.address == shown
    with pytest.raises(libvirt.libvirtError) as error:
        libvirt.open(uri.replace("/system", "/session").replace(":22/", ":1/"))
    assert "parse" not in str(error.value).lower()
    assert "URI" not in str(error.value)


def test_signals_that_all_processes_get_do_not_end_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, and the end of a service: what a run made is removed through this connection."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho begun\nread line\necho ended\n")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    directory = tmp_path / "connection"
    directory.mkdir()
    _build_ssh_uri(SshTarget("192.0.2.7", 22, "root", tmp_path / "key", host_key="ssh-ed25519 AAAA"), directory)
    with subprocess.Popen(directory / "ssh", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(sent)
        assert process.communicate("\n")[0] == "ended\n"
