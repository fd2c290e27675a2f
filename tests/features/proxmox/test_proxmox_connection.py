"""The secret goes to the node of the lab file and to nobody else: not by a proxy, a redirect or ~/.netrc."""

from __future__ import annotations

import base64
import gzip
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from typing import Any
from urllib.parse import quote_plus

import pytest

from harness.errors import LabUnavailable
from harness.features.proxmox import ApiSpec
from harness.features.proxmox.client import Client, PveError
from harness.features.proxmox.session import Secret
from harness.signals import ended_like_ctrl_c, held_back
from pve_double.server import Serving, serve
from pve_double.testing import PASSWORD, memory_node
from tests.features.proxmox.proxmox_nodes import api_spec
from tests.unit.hostile_servers import (
    LOOPBACK,
    SILENCE,
    TICKET,
    Listener,
    fingerprint,
    friendly,
    make_certificates,
    proxy,
    response,
    server,
)

TOKEN_VALUE = "d3b07384-d9a0-4c9b-8e2f-000000000001"
LOGINS = pytest.mark.parametrize("token", [None, "t1"], ids=["password", "token"])
VARIABLES = ("HTTPS_PROXY", "ALL_PROXY", "HTTP_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def serving() -> Iterator[Serving]:
    with serve(memory_node()) as found:
        found.node.access.add_token("root@pam", "t1", privsep=False, value=TOKEN_VALUE)
        yield found


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Listener]:
    """A TLS server with a certificate of its own, who would take any login."""
    with server(friendly, make_certificates(tmp_path, "impostor")) as found:
        yield found


def secret_of(token: str | None) -> str:
    return TOKEN_VALUE if token else PASSWORD


def version(spec: ApiSpec) -> str:
    """Log in and ask something: a token is sent with the first question, a password before it."""
    client = Client(spec, Secret(secret_of(spec.token)), "node1")
    try:
        return str(client.get("version", deadline=2)["version"])
    finally:
        client.close()


def has_secret(received: bytes | bytearray) -> bool:
    forms = [form for text in (PASSWORD, TOKEN_VALUE, TICKET) for form in (text, quote_plus(text))]
    return any(form.encode() in received for form in forms)


@LOGINS
@pytest.mark.parametrize("trust", ["fingerprint", "ca_file"])
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "ALL_PROXY"])
def test_the_node_is_reached_through_a_proxy_that_sees_only_encrypted_bytes(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, variable: str, trust: str, token: str | None
) -> None:
    how: dict[str, Any] = (
        {"fingerprint": fingerprint(serving.port)} if trust == "fingerprint" else {"authority": serving.authority}
    )
    with proxy() as tunnel:
        monkeypatch.setenv(variable, f"http://{LOOPBACK}:{tunnel.port}")
        assert version(api_spec(serving.port, token=token, **how)) == "9.2.11"
        assert f"CONNECT {LOOPBACK}:{serving.port}".encode() in tunnel.received
        assert not has_secret(tunnel.received)


@LOGINS
@pytest.mark.parametrize("trust", ["fingerprint", "ca_file", "system"])
@pytest.mark.parametrize("behind", ["proxy", "nothing"])
def test_an_impostor_gets_nothing_of_a_request(
    serving: Serving,
    impostor: Listener,
    monkeypatch: pytest.MonkeyPatch,
    *,
    behind: str,
    trust: str,
    token: str | None,
) -> None:
    ways: dict[str, dict[str, Any]] = {
        "fingerprint": {"fingerprint": fingerprint(serving.port)},
        "ca_file": {"authority": serving.authority},
        "system": {},
    }
    with proxy(leads_to=impostor.port) as intercepting:
        if behind == "proxy":
            monkeypatch.setenv("HTTPS_PROXY", f"http://user:hunter2@{LOOPBACK}:{intercepting.port}")
        port = serving.port if behind == "proxy" else impostor.port
        with pytest.raises(LabUnavailable) as error:
            version(api_spec(port, token=token, **ways[trust]))
    assert impostor.tried == 1
    assert impostor.received == b""
    assert ("another certificate than the pinned one" if trust == "fingerprint" else "is not trusted") in str(
        error.value
    )
    if behind == "proxy":
        assert f"through the proxy http://***@{LOOPBACK}:{intercepting.port}" in error.value.message
        assert f"NO_PROXY={LOOPBACK}" in (error.value.hint or "")
        assert "hunter2" not in str(error.value)


@LOGINS
def test_a_proxy_that_answers_itself_gets_no_secret(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    portal = response(200, "OK", "<html>Log in to this network</html>")
    with server(lambda _request: portal) as captive:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{LOOPBACK}:{captive.port}")
        with pytest.raises(LabUnavailable, match="through the proxy"):
            version(api_spec(serving.port, fingerprint=fingerprint(serving.port), token=token))
        assert b"CONNECT" in captive.received
        assert not has_secret(captive.received)


def test_a_proxy_that_refuses_the_tunnel_is_named(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(lambda _request: response(403, "Forbidden by policy")) as refusing:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{LOOPBACK}:{refusing.port}")
        with pytest.raises(LabUnavailable) as error:
            version(api_spec(serving.port, serving.authority))
    assert f"(through the proxy http://{LOOPBACK}:{refusing.port}): Tunnel connection failed: 403" in str(error.value)


def test_a_proxy_with_tls_is_checked_itself_before_it_gets_the_proxys_password(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pinned = fingerprint(serving.port)
    trusted = make_certificates(tmp_path, "trusted")
    with proxy(certificates=trusted) as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"https://user:hunter2@{LOOPBACK}:{tunnel.port}")
        with pytest.raises(LabUnavailable):
            version(api_spec(serving.port, fingerprint=pinned))
        assert tunnel.tried
        assert tunnel.received == b""
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted.authority))
        assert version(api_spec(serving.port, fingerprint=pinned)) == "9.2.11"
        assert base64.b64encode(b"user:hunter2") in tunnel.received
        assert not has_secret(tunnel.received)


@LOGINS
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(tmp_path: Path, status: int, token: str | None) -> None:
    node = make_certificates(tmp_path, "node")
    # The other server is trusted as well: nothing but the redirect is wrong.
    with server(friendly, node) as other:
        leading = response(status, "Moved", "", f"Location: https://{LOOPBACK}:{other.port}/api2/json/version?x=1")
        with server(lambda _request: leading, node) as redirecting, pytest.raises(LabUnavailable) as error:
            version(api_spec(redirecting.port, node.authority, token=token))
        assert (
            f"redirects to https://{LOOPBACK}:{other.port}/api2/json/version, and virt-overhead does not follow"
            in str(error.value)
        )
        assert redirecting.tried == 1
        assert other.tried == 0


def test_a_redirect_after_the_login_does_not_carry_the_ticket(tmp_path: Path) -> None:
    node = make_certificates(tmp_path, "node")
    with server(friendly) as plain:

        def leading(request: bytes) -> bytes:
            if b"/access/ticket" in request:
                return friendly(request)
            return response(307, "Moved", "", f"Location: http://{LOOPBACK}:{plain.port}/")

        with server(leading, node) as redirecting, pytest.raises(LabUnavailable, match="does not follow redirects"):
            version(api_spec(redirecting.port, node.authority))
        assert TICKET.encode() in redirecting.received
        assert plain.tried == 0


@LOGINS
def test_a_login_of_netrc_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {LOOPBACK} login somebody password hunter2\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    node = make_certificates(tmp_path, "node")
    with server(friendly, node) as listener:
        assert version(api_spec(listener.port, node.authority, token=token)) == "9.2.11"
        assert has_secret(listener.received)
        assert b"Basic" not in listener.received


@LOGINS
def test_what_a_server_quotes_of_the_request_is_masked(tmp_path: Path, token: str | None) -> None:
    node = make_certificates(tmp_path, "node")

    def quoting(request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        header = next((line for line in head.split(b"\r\n") if line.startswith(b"Authorization")), b"")
        return response(400, f"bad request: {(body or header).decode()}")

    with server(quoting, node) as listener, pytest.raises((LabUnavailable, PveError)) as error:
        version(api_spec(listener.port, node.authority, token=token))
    assert "bad request: " in str(error.value)
    assert "***" in str(error.value)
    assert not has_secret(str(error.getrepr(showlocals=True, chain=True)).encode())


@pytest.mark.parametrize(
    "body", ["<html>a portal</html>", "[]", "{}", '{"data": null}', '{"data": {"username": "root@pam"}}', '{"data": 7}']
)
def test_a_login_that_another_server_answers_is_refused(tmp_path: Path, body: str) -> None:
    node = make_certificates(tmp_path, "node")
    with server(lambda _request: response(200, "OK", body), node) as listener:
        with pytest.raises(LabUnavailable, match="does not answer like Proxmox VE"):
            version(api_spec(listener.port, node.authority))
        assert listener.tried == 1


def test_an_answer_that_is_not_json_is_not_treated_as_data(tmp_path: Path) -> None:
    node = make_certificates(tmp_path, "node")
    with server(lambda _request: response(200, "OK", "<html>a portal</html>"), node) as listener:
        with pytest.raises(
            LabUnavailable,
            match="does not answer like Proxmox VE: the answer to GET /api2/json/version cannot be read",
        ):
            version(api_spec(listener.port, node.authority, token="t1"))
        assert listener.tried == 1


def test_an_answer_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    node = make_certificates(tmp_path, "node")
    packed = gzip.compress(b'{"data": "' + bytes(64 << 20) + b'"}')
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(packed)}\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    requests: list[bytes] = []

    def bomb(request: bytes) -> bytes:
        requests.append(request)
        return head.encode() + packed

    with server(bomb, node) as listener, pytest.raises(LabUnavailable, match=r"is compressed \(gzip\)"):
        version(api_spec(listener.port, node.authority, token="t1"))
    assert b"accept-encoding: identity" in requests[0].lower()


def test_a_file_that_is_not_a_ca_file_is_named(tmp_path: Path, serving: Serving) -> None:
    for text in (None, "", "not a certificate"):
        file = tmp_path / "ca.pem"
        if text is not None:
            file.write_text(text)
        with pytest.raises(LabUnavailable, match="no request can be sent") as error:
            version(api_spec(serving.port, file))
        assert "host.node1.api.ca_file" in (error.value.hint or "")
        assert not re.search(r"_ssl\.c|\[X509|PEM lib", error.value.message)


def test_an_error_contains_no_part_of_the_request(serving: Serving) -> None:
    """Also where nobody looks today: the exceptions underneath have the password among their variables."""
    with pytest.raises(LabUnavailable) as refused:
        Client(api_spec(serving.port, serving.authority), Secret("not-the-one"), "node1")
    waiting: list[BaseException] = [refused.value]
    frames = 0
    while waiting:
        error = waiting.pop()
        assert type(error).__module__.startswith("harness."), error
        waiting += [each for each in (error.__cause__, error.__context__) if each is not None]
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_code.co_filename != __file__:
                frames += 1
                assert "not-the-one" not in repr(frame.f_locals)
    assert frames


@LOGINS
def test_ctrl_c_interrupts_a_question_to_a_node_that_does_not_answer_also_in_a_run(
    tmp_path: Path, token: str | None
) -> None:
    """While a run holds a lease, a signal interrupts waiting only. To wait for an answer is waiting."""
    node = make_certificates(tmp_path, "node")

    def interrupt(_request: bytes) -> bytes:
        os.kill(os.getpid(), signal.SIGINT)
        return SILENCE

    with server(interrupt, node) as listener:
        spec = api_spec(listener.port, node.authority, token=token)
        with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c(), held_back():
            version(spec)
