"""The embedded lab, up once for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from harness.features.embedded import lab_host as embedded
from harness.lab.transport.ssh import SshRunner
from tests.e2e.attaching import Lab, opened
from tests.e2e.lost_lab import LostLab
from tests.e2e.machines import command, lab_lost, on_lab_host, traces
from tests.patience import booting


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LostLab(lab_lost))


@pytest.fixture(scope="session", autouse=True)
def lab() -> Iterator[None]:
    """The lab, as `virt-overhead lab up` brings it up; one that ran before is left running."""
    before = embedded.state().running()
    with booting() if before is None else nullcontext():
        done = command("lab", "up")
    assert done.returncode == 0, done.stdout + done.stderr
    yield
    if before is None:
        assert command("lab", "down").returncode == 0


@pytest.fixture(scope="module")
def lab_host() -> Iterator[Lab]:
    with opened() as lab:
        yield lab


# What the last test left, if the next one has the same fixtures: the lab host needs seconds to tell it.
_LEFT: dict[tuple[str, ...], str] = {}


@pytest.fixture(autouse=True)
def host(request: pytest.FixtureRequest) -> Iterator[SshRunner]:
    """A login on the lab host. After each test nothing may be left there that was not there before."""
    fixtures = (request.path.name, *request.fixturenames)
    with on_lab_host() as runner:
        before = _LEFT.pop(fixtures, None) or traces(runner)
        _LEFT.clear()
        yield runner
        _LEFT[fixtures] = traces(runner)
        assert _LEFT[fixtures] == before
