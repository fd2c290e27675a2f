"""Removes secrets from this process's environment variables, so that no child process inherits them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from harness.lab.inventory import HostSpec

_withdrawn: dict[str, str] = {}
# A global variable, because the environment belongs to the process. /proc/PID/environ still shows the original values.


def withdraw_secrets(hosts: Iterable[HostSpec]) -> None:
    """Remove the variables with secrets of these hosts from the environment of this process.

    Call it before the first child process starts. The controller of pytest-xdist must not call it, because its workers
    need the variables.
    """
    for host in hosts:
        for name in host.hypervisor.secret_variables:
            withdraw_variable(name)


def withdraw_variable(name: str) -> str | None:
    """The value of a variable, which is then removed from the environment; None if it was never there."""
    if name in os.environ:
        _withdrawn[name] = os.environ.pop(name)
    return _withdrawn.get(name)


def whole_environment() -> Mapping[str, str]:
    """The environment with the removed variables. Only for a command that the user asks the harness to run."""
    return os.environ | _withdrawn
