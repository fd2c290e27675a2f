"""A guest from a disk image of others: what cloud-init sets up in it, and when its system is ready for measuring."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from harness.errors import GuestError, HostError
from harness.events import Events, Note
from harness.files import read_script
from harness.lab.transport.base import Runner
from harness.model.guest import FIO_DIRECTORY
from harness.untrusted import parse_json

READY_SECONDS = 300.0
_COPY_SECONDS = 300.0
_RESULT = "/run/cloud-init/result.json"

_WAIT = read_script("harness.features.own_image", "wait_for_cloud_init.sh", RESULT=_RESULT)
_INSTALL = read_script("harness.features.own_image", "install_fio.sh")


@dataclass(frozen=True, slots=True)
class HostKey:
    """The SSH host key that a guest gets."""

    private: str
    public: str


def build_user_data(authorized_key: str, host_key: HostKey) -> str:
    """The user data of a guest: root logs in with the key, and the guest shows this host key. Pure.

    Everything that takes time and does not change how disks perform is off. JSON is YAML.
    """
    settings = {
        "users": [],
        "disable_root": False,
        "ssh_pwauth": False,
        "ssh_authorized_keys": [authorized_key],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "growpart": {"mode": "off"},
        "resize_rootfs": False,
        "package_update": False,
        "package_upgrade": False,
    }
    return f"#cloud-config\n{json.dumps(settings, indent=1)}\n"


def wait_until_set_up(runner: Runner, events: Events) -> None:
    """Wait until cloud-init is done in the guest. A note has what it reports as failed.

    Raises GuestError if it is not done in time.
    """
    words = ["sh", "-s", "--", str(round(READY_SECONDS))]
    try:
        done = runner.run(words, stdin=_WAIT, deadline=READY_SECONDS + 60, check=False)
    except HostError as error:
        raise GuestError(f"{runner.name}: it stopped answering while cloud-init set it up") from error
    if done.status != 0:
        raise GuestError(
            f"{runner.name}: cloud-init was not done within {READY_SECONDS:.0f} s after the first login",
            hint="look at /var/log/cloud-init.log in a guest of the image",
        )
    if failed := parse_errors(done.stdout, runner.name):
        events(Note(f"{runner.name}: cloud-init reports: {'; '.join(failed)}"))


def parse_errors(printed: str, guest: str) -> list[str]:
    """The errors in cloud-init's result. Raises GuestError if it is not JSON. Pure."""
    document = parse_json(printed, f"{guest}: {_RESULT}", GuestError)
    result = document.get("v1", {}) if isinstance(document, dict) else {}
    errors = result.get("errors", []) if isinstance(result, dict) else []
    return [str(error) for error in errors] if isinstance(errors, list) else []


def install_fio(runner: Runner, archive: Path) -> None:
    """Copy virt-overhead's own fio into the guest. Raises HostError."""
    runner.run(["mkdir", "-p", FIO_DIRECTORY], deadline=30)
    runner.put(archive, f"{FIO_DIRECTORY}/fio.tar", deadline=_COPY_SECONDS)
    runner.run(["sh", "-s", "--", FIO_DIRECTORY], stdin=_INSTALL, deadline=60)
