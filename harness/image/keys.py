"""The harness's own SSH key. It is created once. The private key never leaves the user's data directory."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_data_path

from harness.errors import ConfigError
from harness.files import install_command, move, os_ids, sync

KEY_NAME = "id_ed25519"
_KEYGEN_SECONDS = 30


@dataclass(frozen=True, slots=True)
class SshKey:
    """The path of the private key, and the public key as one line ("ssh-ed25519 AAAA...")."""

    private: Path
    public: str


def ensure_key(directory: Path | None = None) -> SshKey:
    """The key in `directory` (default: the user's data directory). It is created if there is none.

    Permissions that are too open are corrected. Raises ConfigError if the key is damaged, has a passphrase or belongs
    to another user. The key is never replaced automatically, because images are built for it.
    """
    directory = directory or choose_key_directory()
    private = directory / KEY_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(directory / f".{KEY_NAME}.lock"):
            if not private.exists() or private.stat().st_size == 0:
                make_key(private)
        status = private.stat()
        if status.st_uid != os.geteuid():
            raise ConfigError(
                f"the SSH key {private} belongs to another user (uid {status.st_uid})",
                hint="run as that user, or set XDG_DATA_HOME to a directory of your own",
            )
        if status.st_mode & 0o077:
            private.chmod(0o600)
    except OSError as error:
        raise ConfigError(
            f"the SSH key {private} cannot be used: {error.strerror}",
            hint="set XDG_DATA_HOME to a directory that you can write to",
        ) from error
    return SshKey(private, read_public_key(private))


def choose_key_directory() -> Path:
    """Where the user's key is."""
    return user_data_path("virt-overhead") / "ssh"


def make_key(private: Path) -> None:
    # Create it in another directory and move it. Then a killed process leaves no half-written key.
    with tempfile.TemporaryDirectory(dir=private.parent) as directory:
        new = Path(directory) / KEY_NAME
        done = _run_keygen("-q", "-t", "ed25519", "-N", "", "-C", "virt-overhead", "-f", str(new))
        if done.returncode != 0:
            raise ConfigError(f"ssh-keygen could not create {private}: {done.stderr.strip()}")
        sync(new)
        move(new, private)


def read_public_key(private: Path) -> str:
    """The public half of the private key, as one line. Raises ConfigError if it is damaged or has a passphrase."""
    done = _run_keygen("-y", "-P", "", "-f", str(private))
    if done.returncode != 0:
        why = (done.stderr.strip() or "ssh-keygen gave no reason").splitlines()[-1]
        raise ConfigError(
            f"{private} cannot be read as an SSH key without a passphrase: {why}",
            hint=f"rename it (`mv {shlex.quote(str(private))}{{,.old}}`); then a new key and new images are created",
        )
    return " ".join(done.stdout.split()[:2])


def _run_keygen(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_KEYGEN_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError(
            "there is no ssh-keygen on this machine", hint=install_command(os_ids(), "openssh-client")
        ) from None
