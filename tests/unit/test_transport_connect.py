"""Logging in: who the far machine is, through whom it is reached, and waiting for its boot."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError, HostError
from harness.lab.transport import handshake as hostkeys
from harness.lab.transport.ssh import SshRunner
from tests.unit.transport_servers import Server, booting, closed_port, configure_sshd, make_key, serve_sshd, sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("host")) as running:
        yield running


def test_a_machine_behind_another_is_reached_through_it(server: Server, tmp_path: Path) -> None:
    with sshd(tmp_path) as inner:
        host = SshRunner.connect(server.target(), name="host lab", deadline=20)
        guest = SshRunner.connect(inner.target(), name="guest on lab", via=host, deadline=20)
        port = guest.run(["sh", "-c", "echo ${SSH_CONNECTION##* }"], deadline=10).stdout
        assert port == f"{inner.port}\n"
        guest.close()
        assert host.run(["echo", "still here"], deadline=10).stdout == "still here\n"
        host.close()


def test_a_guest_that_does_not_listen_is_reported_as_seen_from_its_host(server: Server) -> None:
    host = SshRunner.connect(server.target(), name="host lab", deadline=20)
    with closed_port() as port, pytest.raises(HostError, match=r"guest: 127\.0\.0\.1:\d+ does not answer host lab"):
        SshRunner.connect(server.target(port=port), name="guest", via=host, deadline=5)
    host.close()


def test_a_lost_jump_is_named_at_once(server: Server) -> None:
    host = SshRunner.connect(server.target(), name="host lab", deadline=20)
    host.close()
    start = time.monotonic()
    with pytest.raises(HostError, match="the connection through host lab was lost"):
        SshRunner.connect_when_up(server.target(), name="guest", via=host, deadline=600)
    assert time.monotonic() - start < 300, "it did not wait for the deadline"


def test_another_host_key_than_the_pinned_one_is_refused(server: Server, tmp_path: Path) -> None:
    pinned = make_key(tmp_path / "other")
    shown = hostkeys.fingerprint(server.host_key.split()[1])
    with pytest.raises(HostError) as caught:
        SshRunner.connect_when_up(server.target(host_key=pinned), name="host lab", deadline=20)
    assert f"shown {shown}" in caught.value.message
    assert f"expected {hostkeys.fingerprint(pinned.split()[1])}" in caught.value.message
    assert f"127.0.0.1:{server.port}" in caught.value.message
    assert "lab file" in str(caught.value.hint)


def test_the_key_of_the_first_contact_is_remembered_and_a_changed_one_refused(tmp_path: Path) -> None:
    known_hosts = tmp_path / "state" / "known_hosts"
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with sshd(tmp_path / "first") as first:
        for _ in range(2):
            SshRunner.connect(first.target(known_hosts=known_hosts), name="host lab", deadline=20).close()
    assert len(known_hosts.read_text().splitlines()) == 1
    with sshd(tmp_path / "second", port=first.port) as second:
        with pytest.raises(HostError, match="is not the expected one") as caught:
            SshRunner.connect(second.target(known_hosts=known_hosts), name="host lab", deadline=20)
        assert str(known_hosts) in str(caught.value.hint)
        known_hosts.write_text("")
        SshRunner.connect(second.target(known_hosts=known_hosts), name="host lab", deadline=20).close()


def test_hosts_that_are_met_at_the_same_time_are_all_remembered(tmp_path: Path) -> None:
    known_hosts = tmp_path / "known_hosts"
    meetings = [threading.Thread(target=hostkeys.remember, args=(known_hosts, f"h{n}", f"k{n}")) for n in range(8)]
    for each in meetings:
        each.start()
    for each in meetings:
        each.join()
    assert [hostkeys.recall(known_hosts, f"h{n}") for n in range(8)] == [f"k{n}" for n in range(8)]


def test_a_pinned_key_that_is_none_is_a_mistake_in_the_configuration(server: Server) -> None:
    with pytest.raises(ConfigError, match="is not a public key"):
        SshRunner.connect(server.target(host_key="SHA256:abc"), name="host lab", deadline=5)
    with pytest.raises(ConfigError, match='of type "ssh-dss" are not supported'):
        SshRunner.connect(server.target(host_key="ssh-dss AAAA"), name="host lab", deadline=5)


def test_a_missing_key_file_is_named(server: Server, tmp_path: Path) -> None:
    target = replace(server.target(), key=tmp_path / "absent")
    with pytest.raises(HostError, match=r"host lab: cannot read the SSH key .*/absent"):
        SshRunner.connect_when_up(target, name="host lab", deadline=20)


@pytest.mark.parametrize("text", ["hello", "", "PuTTY-User-Key-File-3: ssh-ed25519\n", "ssh-ed25519 AAAA me@here\n"])
def test_a_file_that_is_not_a_key_is_named(server: Server, tmp_path: Path, text: str) -> None:
    (tmp_path / "notes").write_text(text)
    with pytest.raises(HostError) as error:
        SshRunner.connect(replace(server.target(), key=tmp_path / "notes"), name="host lab", deadline=20)
    assert error.value.message == f"host lab: {tmp_path / 'notes'} is not an SSH private key in OpenSSH's format"
    assert "without .pub" in str(error.value.hint)


def test_a_refused_key_is_not_waited_for(server: Server, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    start = time.monotonic()
    with pytest.raises(HostError, match=r"refused the key .*/stranger for user"):
        SshRunner.connect_when_up(replace(server.target(), key=tmp_path / "stranger"), name="host", deadline=600)
    assert time.monotonic() - start < 300, "it did not wait for the deadline"


def test_an_unknown_host_is_named() -> None:
    target = replace(Server(22, Path("/dev/null"), "").target(), host="no-such-host.invalid")
    with pytest.raises(HostError, match="host lab: "):
        SshRunner.connect(target, name="host lab", deadline=5)


def test_a_server_that_starts_later_is_waited_for(tmp_path: Path) -> None:
    server = configure_sshd(tmp_path)
    seen: list[str] = []
    runners: list[SshRunner] = []

    def login() -> None:
        runners.append(SshRunner.connect_when_up(server.target(), name="guest", deadline=600, on_wait=seen.append))

    waiting = threading.Thread(target=login)
    waiting.start()
    time.sleep(0.6)
    assert "Connection refused" in seen[0]
    with serve_sshd(tmp_path, server):
        waiting.join(300)
        assert runners[0].run(["echo", "up"], deadline=10).stdout == "up\n"
        runners[0].close()


def test_a_silent_port_is_noticed_soon_after_the_server_behind_it_wakes_up(server: Server) -> None:
    seen: list[str] = []
    with booting(server) as (port, up):
        threading.Timer(4.0, up.set).start()
        start = time.monotonic()
        runner = SshRunner.connect_when_up(server.target(port=port), name="guest", deadline=600, on_wait=seen.append)
        waited = time.monotonic() - start
        assert runner.run(["echo", "up"], deadline=10).stdout == "up\n"
        runner.close()
    assert 4.0 <= waited < 300, "it asked again, and did not wait for the deadline"
    assert "sent no SSH banner within 1.5 s" in seen[0]


def test_a_machine_that_never_comes_up_is_given_up_with_the_last_cause(server: Server) -> None:
    with booting(server) as (port, _):
        start = time.monotonic()
        with pytest.raises(HostError, match=r"guest: no SSH login within 2 s \(\d tries\); last: .*no SSH banner"):
            SshRunner.connect_when_up(server.target(port=port), name="guest", deadline=2)
        assert time.monotonic() - start < 300
