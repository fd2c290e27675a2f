"""Fixtures of the tests at the double of Proxmox VE: the node, its API, a client of it, and its shell.

A test file imports them and names them in `__all__`. It may have a `node` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.features.proxmox.client import Client
from pve_double.server import Serving, serve
from pve_double.state import Node
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import NodeShell


def impatient(patch: pytest.MonkeyPatch) -> None:
    """The double answers at once, so nobody has to wait long for it."""
    client = "harness.features.proxmox.client"
    patch.setattr(f"{client}.SETTLE_SECONDS", 3.0)
    patch.setattr(f"{client}._LEAST_SETTLING", 0.5)
    patch.setattr(f"{client}._FIRST_PAUSE", 0.05)
    patch.setattr(f"{client}._POLL_SECONDS", 0.05)


@pytest.fixture
def node() -> Node:
    return memory_node(cpus=4)


@pytest.fixture
def serving(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    impatient(monkeypatch)
    with serve(node) as found:
        yield found


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with connected(serving) as found:
        yield found


@pytest.fixture
def shell(serving: Serving, tmp_path: Path) -> NodeShell:
    return NodeShell(serving, tmp_path)
