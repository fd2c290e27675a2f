"""Secrets in environment variables: taken out of this process's environment, so that no child process inherits them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from harness.lab.inventory import HostSpec

_withdrawn: dict[str, str] = {}
# Of this process, as its environment is. /proc/PID/environ still shows what the process was started with.


def withdraw_secrets(hosts: Iterable[HostSpec]) -> None:
    """Take the variables that hold secrets of these hosts out of the environment of this process.

    Call it before the first child is started. The controller of pytest-xdist must not: its workers need the variables.
    """
    for host in hosts:
        for name in host.hypervisor.secret_variables:
            withdrawn(name)


def withdrawn(name: str) -> str | None:
    """The value of a variable, which is not in the environment from then on; None if it was never there."""
    if name in os.environ:
        _withdrawn[name] = os.environ.pop(name)
    return _withdrawn.get(name)


def whole_environment() -> Mapping[str, str]:
    """The environment with the withdrawn variables: for a command that the user gives us to run, and for no other."""
    return os.environ | _withdrawn
