"""Real SSH servers on 127.0.0.1 for the transport's tests, with keys, ports and configuration of their own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.lab.transport.ssh import SshTarget

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
DROPBEAR = shutil.which("dropbear", path="/usr/sbin:" + os.environ.get("PATH", ""))
USER = pwd.getpwuid(os.getuid()).pw_name


@dataclass(frozen=True)
class Server:
    port: int
    user_key: Path
    host_key: str

    def target(self, *, host_key: str | None = None, known_hosts: Path | None = None, **changes: int) -> SshTarget:
        """How to log in; with the true host key pinned unless `host_key` or `known_hosts` says otherwise."""
        pinned = host_key if host_key or known_hosts else self.host_key
        return SshTarget("127.0.0.1", changes.get("port", self.port), USER, self.user_key, pinned, known_hosts)


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections. Nothing else can listen on it as long as this lasts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        yield port


def free_port() -> int:
    """A port that is free now. Another program may take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_key(path: Path) -> str:
    """A new ed25519 key pair at `path`; its public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path.with_name(path.name + ".pub").read_text()


@contextlib.contextmanager
def sshd(directory: Path, *, port: int | None = None) -> Iterator[Server]:
    """OpenSSH's server, as on a host, with a home directory of its own: bash reads ~/.bashrc for each command."""
    server = configure_sshd(directory, port=port)
    with serve_sshd(directory, server):
        yield server


def configure_sshd(directory: Path, *, port: int | None = None) -> Server:
    port = port or free_port()
    host_key = make_key(directory / "host_key")
    make_key(directory / "user_key")
    (directory / "home").mkdir()
    settings = {
        "ListenAddress": "127.0.0.1",
        "Port": port,
        "HostKey": directory / "host_key",
        "AuthorizedKeysFile": directory / "user_key.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "SetEnv": f"HOME={directory / 'home'}",
    }
    config = directory / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return Server(port, directory / "user_key", host_key)


@contextlib.contextmanager
def serve_sshd(directory: Path, server: Server) -> Iterator[None]:
    if SSHD is None:
        pytest.skip("no sshd here: install openssh-server")
    if os.getuid() == 0:
        # Without it sshd, started as root, refuses to run; its service would make it.
        Path("/run/sshd").mkdir(exist_ok=True)
    with _serving([SSHD, "-D", "-e", "-f", str(directory / "sshd_config")], directory / "sshd.log", server.port):
        yield


@contextlib.contextmanager
def dropbear(directory: Path) -> Iterator[Server]:
    """The server of the guest image, with the options it has there and a home directory of its own."""
    if DROPBEAR is None or not shutil.which("dropbearkey"):
        pytest.skip("no dropbear here: install dropbear-bin")
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("dropbear reads ~/.ssh only: root and mount namespaces are needed to give it another home")
    port = free_port()
    key_file = directory / "host_key"
    made = subprocess.run(
        ["dropbearkey", "-t", "ed25519", "-f", str(key_file)], check=True, capture_output=True, text=True
    )
    host_key = next(line for line in made.stdout.splitlines() if line.startswith("ssh-ed25519"))
    dot_ssh = directory / "home" / ".ssh"
    dot_ssh.mkdir(mode=0o700, parents=True)
    (directory / "home").chmod(0o700)
    (dot_ssh / "authorized_keys").write_text(make_key(directory / "user_key"))
    serve = f'mount --bind "$1" ~ && exec {DROPBEAR} -F -E -s -p 127.0.0.1:{port} -r "$2"'
    argv = ["unshare", "-m", "--propagation", "slave", "sh", "-c", serve, "sh", str(directory / "home"), str(key_file)]
    with _serving(argv, directory / "dropbear.log", port):
        yield Server(port, directory / "user_key", host_key)


@contextlib.contextmanager
def booting(server: Server) -> Iterator[tuple[int, threading.Event]]:
    """A port before `server` as user-mode networking offers it, and the event that ends the boot.

    Connections made before the event are taken and stay silent for good; later ones reach the server.
    """
    up = threading.Event()
    held: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            held.append(client)
            if up.is_set():
                far = socket.create_connection(("127.0.0.1", server.port))
                held.append(far)
                for one, other in ((client, far), (far, client)):
                    threading.Thread(target=_relay, args=(one, other), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], up
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(300)
        for stream in held:
            stream.close()


def _relay(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def small_filesystem(directory: Path) -> Iterator[None]:
    """1 MiB mounted at `directory`."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small tmpfs cannot be mounted here: root is needed")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextlib.contextmanager
def _serving(argv: list[str], log: Path, port: int) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        _wait_for_port(port, process, log)
        yield
    finally:
        process.terminate()
        process.wait(300)


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + 300
    while time.monotonic() < give_up_at:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    pytest.fail(f"{process.args!r} does not listen: {log.read_text()}")
