"""A guest that ends while it boots: the message has the cause as far as its host knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.features.proxmox.machine import Ended, VirtualMachine, explained, require_running
from harness.guest.libvirt.effective import name_log
from harness.guest.libvirt.guest import explain_end
from harness.lab.transport.local import LocalRunner
from tests.features.proxmox.proxmox_nodes import double

RUNNER = LocalRunner("host node1")


def test_the_message_has_the_end_of_the_console_and_why_qemu_ended(tmp_path: Path) -> None:
    console, log = tmp_path / "console.log", Path(name_log("voh-1", str(tmp_path)))
    console.write_text("Booting\nKernel panic - not syncing\n")
    log.write_text("kvm: error: EXIT\n2026-01-01 12:00:00: shutting down, reason=crashed\n")
    error = explain_end(RUNNER, "node1", str(console), str(log))
    assert error.message == (
        "host node1: the guest ended while it was booting; its console ends with:\n"
        "     Booting\n     Kernel panic - not syncing; QEMU's log ends with:\n"
        "     kvm: error: EXIT\n     2026-01-01 12:00:00: shutting down, reason=crashed"
    )
    assert error.hint == f"see {console} and {log} on node1"


def test_the_message_says_so_if_nothing_was_printed(tmp_path: Path) -> None:
    error = explain_end(RUNNER, "node1", str(tmp_path / "absent"), str(tmp_path / "absent too"))
    assert error.message == "host node1: the guest ended while it was booting; its console and QEMU printed nothing"


@pytest.mark.parametrize(
    ("wrote", "expected"),
    [
        (
            "kvm: cannot set up guest memory",
            "QEMU's journal on the node ends with:\n     kvm: cannot set up guest memory",
        ),
        ("", "QEMU wrote nothing"),
    ],
)
def test_the_message_about_a_vm_has_its_state_and_qemus_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrote: str, expected: str
) -> None:
    journalctl = tmp_path / "journalctl"
    journalctl.write_text(f"#!/bin/sh\necho '{wrote}'\n")
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with double() as (_, client):
        client.write("post", f"{client.node}/qemu", {"vmid": 900}, is_done=lambda: True, deadline=30)
        machine = VirtualMachine(client, 900)
        with pytest.raises(Ended) as ended:
            require_running(machine)
        error = explained(ended.value, machine, RUNNER)
    assert error.message == (
        f"host node1: VM 900 ended while it was booting; Proxmox VE reports that it is stopped; {expected}"
    )
    assert error.hint == "see the task log of VM 900 and `journalctl -t QEMU` on pve"
