"""A project in which every login fails in its own way: what pytest runs in for tests/unit/test_canary_secrets.py.

Each failure has a host, a scenario, and secrets of its own, which look like nothing else: canaries. The measuring
itself is the plugin's; what would touch this machine (images, its lease, its creation log) is replaced by a conftest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pve_double.certificate import Certificates
from pve_double.server import serve
from pve_double.testing import memory_node
from tests.unit.hostile_servers import (
    LOOPBACK,
    RESET,
    SILENCE,
    TICKET,
    Answer,
    data,
    friendly,
    make_certificates,
    proxy,
    response,
    server,
)
from tests.unit.transport_servers import USER, closed_port, free_port, make_key, sshd

ROOT = Path(__file__).parents[2]
OTHER_FINGERPRINT = ":".join(["00"] * 32)

_CONFTEST = """
from functools import partial
from pathlib import Path
from types import SimpleNamespace

pytest_plugins = ["harness.plugin"]


def pytest_configure():
    from harness import image
    from harness.features.proxmox import client, session
    from harness.measure import host_measurer
    from tests.substitutes import substitute

    substitute(session, TIMEOUT_SECONDS=@TIMEOUT@)
    substitute(client, SETTLE_SECONDS=0.3, _LEAST_SETTLING=0.3, _FIRST_PAUSE=0.1, _POLL_SECONDS=0.1)
    client.Client.get.__kwdefaults__.update(deadline=@TIMEOUT@)
    lease = host_measurer.lease
    substitute(
        host_measurer,
        lease=lambda runner, host, *more, **options: lease(
            runner, host, *more, directory="@LEASES@/" + host, **options
        ),
        read_log=lambda runner: [],
    )
    # Without `substitute`: other modules import the class for their annotations. Reading it fails if it moves.
    host_measurer.CreationLog = partial(host_measurer.CreationLog, directory="@LEASES@/created")
    iso = SimpleNamespace(name="none")
    manifest = SimpleNamespace(
        host_key="",
        files={"none": SimpleNamespace(sha256="")},
        **dict.fromkeys(("recipe_digest", "suite", "built_at", "kernel", "fio_version"), "none"),
    )
    guest = SimpleNamespace(name="guest", iso=iso, digest="0", path=Path(), manifest=manifest)
    images = SimpleNamespace(guest=guest, emulator=guest, lab=guest, fio=guest, key=None)
    substitute(image, ensure_images=lambda events: images)


def pytest_sessionfinish():
    from tests.substitutes import require_no_bypass

    require_no_bypass()
"""
# Without the plugin's care: exceptions of ours reach pytest as they are, which prints every variable of every frame.
_BARE = """
from pathlib import Path

import pytest

from harness.features.doctor.command import DoctorRequest, doctor
from harness.features.proxmox.client import open_client
from harness.lab.hosts import connect
from harness.lab.lab_file import load_lab

LAB = load_lab(Path("lab.toml"))


TESTS = @TESTS@


def pytest_generate_tests(metafunc):
    names = [name for name, tests in TESTS.items() if metafunc.function.__name__ in tests]
    metafunc.parametrize("host", [LAB.only(name).hosts[0] for name in names], ids=names)


def test_read(host):
    connect(host).close()
    with open_client(host.name, host.hypervisor) as client:
        client.get("version")


def test_write(host):
    connect(host).close()
    with open_client(host.name, host.hypervisor) as client:
        client.write("post", "nodes/pve/qemu", {"vmid": 9000}, is_done=lambda: False, deadline=1)


def test_doctor(host):
    assert doctor(LAB.only(host.name), DoctorRequest(window=0)) == 0
"""
_ALL_TESTS = ("test_overhead", "test_read", "test_write", "test_doctor")
_OF_TOKENS = ("test_overhead", "test_write")
_SCENARIO = """
title = "A disk"
modes = ["host"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"
"""
_HOST = """
[host.{name}]
kind = "proxmox"
{ssh}
[host.{name}.api]
url = "https://127.0.0.1:{port}"
node = "pve"
secret = {{ {secret} }}
{api}
[host.{name}.guest]
kvm = false
[host.{name}.disk.{name}]
id = "/dev/disk/by-id/absent-{name}"
serial = "{name}"
destroy = true
"""


@dataclass
class Failure:
    """A way in which a login fails. `said` is what the user must read of it; `canaries` is what nobody may."""

    name: str
    said: str
    canaries: Sequence[str] = ()
    port: int = 0
    api: Sequence[str] = ()
    ssh: Sequence[str] = ()
    written: str = ""
    """The secret as it is stored; the first canary where it is empty."""
    mode: int | None = None
    """Of the file that the secret is in; None for an environment variable."""
    tests: Sequence[str] = ("test_overhead", "test_read", "test_doctor")
    """What fails in this way: a cell, and tests of `_BARE`. A call that writes needs a login or a token."""

    @property
    def variable(self) -> str:
        return f"PVE_{self.name.upper()}"


@dataclass
class Project:
    """The directory, and the environment that a run in it needs."""

    path: Path
    failures: list[Failure] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    private: set[Path] = field(default_factory=set)
    """The files that the secrets are in."""

    def write(self, *, timeout: float) -> None:
        (self.path / "scenarios").mkdir()
        (self.path / "leases").mkdir()
        conftest = _CONFTEST.replace("@TIMEOUT@", str(timeout)).replace("@LEASES@", str(self.path / "leases"))
        (self.path / "conftest.py").write_text(conftest)
        (self.path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\ntestpaths = scenarios bare\n")
        test_file = "scenarios/test_overhead.py"
        (self.path / test_file).write_text((ROOT / test_file).read_text())
        (self.path / "bare").mkdir()
        tests = {failure.name: tuple(failure.tests) for failure in self.failures}
        (self.path / "bare" / "test_bare.py").write_text(_BARE.replace("@TESTS@", repr(tests)))
        lab = ""
        for each in self.failures:
            lab += self._host(each)
            (self.path / "scenarios" / f"{each.name}.toml").write_text(_SCENARIO)
        (self.path / "lab.toml").write_text(lab)

    def _host(self, failure: Failure) -> str:
        text = failure.written or (failure.canaries[0] if failure.canaries else "")
        secret = f'env = "{failure.variable}"'
        if failure.mode is not None:
            file = self.path / f"secret_{failure.name}"
            file.write_text(text)
            file.chmod(failure.mode)
            self.private.add(file)
            secret = f'file = "{file}"'
        elif text:
            self.environment[failure.variable] = text
        ssh, api = "\n".join(failure.ssh), "\n".join(failure.api)
        return _HOST.format(name=failure.name, port=failure.port, ssh=ssh, api=api, secret=secret)


def canary(name: str, kind: str) -> str:
    return f"canary-{kind}-{name}-7f3a9c"


@contextmanager
def failing_logins(path: Path) -> Iterator[Project]:
    """A project with a host for each kind of failure, and the servers that fail."""
    project = Project(path)
    outside = path.with_name(f"{path.name}-servers")
    outside.mkdir()
    with ExitStack() as stack:
        project.failures += _of_the_api(stack, make_certificates(outside, "node"))
        project.failures += _of_secrets()
        project.failures += _of_keys(stack, project, outside)
        yield project


def _of_the_api(stack: ExitStack, node: Certificates) -> Iterator[Failure]:
    double = stack.enter_context(serve(memory_node()))
    trusted = f'ca_file = "{node.authority}"'
    token = 'token = "t1"'

    def answered(answer: Answer) -> int:
        return stack.enter_context(server(answer, node)).port

    def quoting(request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        header = next((line for line in head.split(b"\r\n") if line.startswith(b"Authorization")), b"")
        return response(400, f"bad request: {(body or header).decode()}", (body or header).decode())

    def after_login(answer: Answer) -> Answer:
        return lambda request: friendly(request) if b"/access/ticket" in request else answer(request)

    def both(name: str, said: str, port: int, *api: str, said_to_token: str = "") -> Iterator[Failure]:
        yield Failure(f"{name}_pw", said, [canary(name, "password"), TICKET], port, api)
        secrets = [canary(name, "token"), TICKET]
        yield Failure(f"{name}_tk", said_to_token or said, secrets, port, [*api, token], tests=_OF_TOKENS)

    own = f'ca_file = "{double.authority}"'
    yield from both("wrong", "refuses the login of root@pam", double.port, own, said_to_token="Proxmox VE answers 401")
    pinned = f'fingerprint = "{OTHER_FINGERPRINT}"'
    yield from both("pin", "shows another certificate than the pinned one", double.port, pinned)
    yield from both("ca", "is not trusted", double.port, trusted)
    port = stack.enter_context(closed_port())
    yield from both("closed", "cannot be reached", port, trusted)
    yield from both("reset", "cannot be reached", answered(lambda _request: RESET), trusted)
    yield from both("silent", "cannot be reached", answered(lambda _request: SILENCE), trusted)
    forbidden = response(403, "Permission check failed (/, Sys.Audit)")
    yield from both("forbidden", "Permission check failed", answered(lambda _request: forbidden), trusted)
    broken = response(500, "got no worker")
    yield from both("broken", "got no worker", answered(lambda _request: broken), trusted)
    page = response(200, "OK", "<html>")
    yield from both("page", "does not answer like Proxmox VE", answered(lambda _request: page), trusted)
    yield from both("quoting", "bad request", answered(quoting), trusted)
    away = response(307, "Moved", "", f"Location: http://{LOOPBACK}:{port}/")
    yield from both("redirect", "does not follow redirects", answered(lambda _request: away), trusted)
    second = data({"ticket": TICKET, "CSRFPreventionToken": "0", "NeedTFA": 1})
    yield Failure(
        "twofactor", "second factor", [canary("twofactor", "password"), TICKET], answered(lambda _r: second), [trusted]
    )
    for name, answer, said in (
        ("laterforbidden", forbidden, "Permission check failed"),
        ("laterreset", RESET, "cannot be reached"),
        ("laterpage", page, "does not answer like Proxmox VE"),
    ):
        port = answered(after_login(lambda _request, answer=answer: answer))  # type: ignore[misc]
        yield Failure(name, said, [canary(name, "password"), TICKET], port, [trusted], tests=_ALL_TESTS)
    # Newlines at the end, as `echo` and editors write them: what is refused is the call, and not the token.
    refusing = answered(lambda _request: forbidden)
    for name, mode in (("newline_env", None), ("newline_file", 0o600)):
        text = canary(name, "token")
        api = [trusted, token]
        yield Failure(
            name, "Proxmox VE answers 403", [text], refusing, api, written=f"{text}\n", mode=mode, tests=_ALL_TESTS
        )


def _of_secrets() -> Iterator[Failure]:
    for name, more in (("inner_pw", []), ("inner_tk", ['token = "t1"'])):
        first, second = canary(name, "first"), canary(name, "second")
        yield Failure(
            name, "contains a line break", [first, second], free_port(), more, written=f"{first}\n{second}"
        )  # fmt: skip
    yield Failure("letters", "is not ASCII", [canary("letters", "token")], 1, ['token = "t1"'],
                  written=f"{canary('letters', 'token')}\u20ac")  # fmt: skip
    yield Failure("missing", "the environment has no variable PVE_MISSING", port=1)
    yield Failure("readable", "others may read", [canary("readable", "password")], 1, mode=0o644)


def _of_keys(stack: ExitStack, project: Project, outside: Path) -> Iterator[Failure]:
    password = [canary("key", "password")]

    def ssh(key: Path, port: int, host_key: str = "") -> list[str]:
        pinned = [f'host_key = "{" ".join(host_key.split()[:2])}"'] if host_key else []
        return [f'key = "{key}"', f"port = {port}", f'user = "{USER}"', *pinned]

    stranger, garbage = project.path / "stranger", project.path / "garbage"
    make_key(stranger)
    lines = stranger.read_text().splitlines()
    garbage.write_text("\n".join([lines[0], "canary-key-garbage-7f3a9c", *lines[2:]]) + "\n")
    garbage.chmod(0o600)
    project.private |= {stranger, garbage}
    (outside / "sshd").mkdir()
    host = stack.enter_context(sshd(outside / "sshd"))
    # The first line of a key is the same for all: what follows is not.
    content = lines[2:-1]
    yield Failure(
        "key_refused", "refused the key", [*password, *content], 1, ssh=ssh(stranger, host.port, host.host_key)
    )
    yield Failure(
        "key_garbage", "is not an SSH private key", [*password, "canary-key-garbage", *content], 1, ssh=ssh(garbage, 1)
    )
    yield Failure("key_absent", "cannot read the SSH key", password, 1, ssh=ssh(project.path / "absent", 1))
    yield Failure("key_unreadable", "cannot read the SSH key", password, 1, ssh=ssh(project.path, 1))
    yield Failure(
        "ssh_closed", "127.0.0.1", [*password, *content], 1, ssh=ssh(stranger, stack.enter_context(closed_port()))
    )


@contextmanager
def behind_a_proxy(path: Path) -> Iterator[Project]:
    """A project whose logins go to a proxy that hands them to an impostor."""
    outside = path.with_name(f"{path.name}-servers")
    outside.mkdir()
    project = Project(path)
    with server(friendly, make_certificates(outside, "impostor")) as impostor, proxy(leads_to=impostor.port) as way:
        for name, more in (("proxied_pw", []), ("proxied_tk", ['token = "t1"'])):
            project.failures.append(
                Failure(
                    name,
                    f"(through the proxy http://***@{LOOPBACK}:{way.port}) shows another certificate",
                    [canary(name, "secret"), TICKET],
                    1,
                    [f'fingerprint = "{OTHER_FINGERPRINT}"', *more],
                )
            )
        project.environment["HTTPS_PROXY"] = f"http://proxyuser:canary-proxy-7f3a9c@{LOOPBACK}:{way.port}"
        yield project
        assert impostor.tried
        assert impostor.received == b""
