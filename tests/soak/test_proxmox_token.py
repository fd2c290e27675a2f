"""A run with a token of Proxmox VE, which the node does not let pass a disk through."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import host
from tests.e2e.machines import latest, measure
from tests.e2e.test_proxmox import ONE_JOB, SECRETS, Node, node, nothing_left

__all__ = ["host", "node", "nothing_left"]


def test_a_token_gets_every_mode_but_passthrough(tmp_path: Path, node: Node) -> None:
    selected = "optane and (passthrough or raw) and not cached and randread"
    done = measure(tmp_path, f"--lab={node.lab(tmp_path, token=True)}", "-k", selected, *ONE_JOB, env=SECRETS)
    assert done.returncode == 0, done.stdout
    run = latest(tmp_path)
    refused = run.cell("optane-passthrough-randread-4k-qd32")
    assert refused.skipped is not None
    assert "only from root@pam with a password, not from root@pam!voh" in refused.skipped
    assert refused.skipped in " ".join(done.stdout.split())
    assert run.cell("optane-raw-randread-4k-qd32").metrics["iops"].guest
