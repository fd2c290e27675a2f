"""A Debian 13 in a directory, without a compiler, in which commands run like on a machine of their own.

It shares this machine's network, so servers on the loopback device are reached from there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.package.installed import ROOT
from tests.patience import patience

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
CHECKOUT = "root/virt-overhead-checkout"
ANSWERS = "etc/apt/apt.conf.d/90tests"
"""Why apt does not ask. Without this file, a script must answer for itself."""
_SECONDS = 600
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# A name space of processes and one of mounts: at its end, nothing of it runs and nothing is mounted.
_ENTER = """
set -e
root=$1 shared=$2
shift 2
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
while [ "$shared" -gt 0 ]; do
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
    shift
    shared=$((shared - 1))
done
exec chroot "$root" /usr/bin/env -i "$@"
"""
_NAME_SPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private")


@dataclass(frozen=True, slots=True)
class DebianRoot:
    """The directory of the system. `environment`: variables of every command in it."""

    path: Path
    environment: Mapping[str, str]

    def run(
        self, script: str, *, shared: Sequence[Path] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of bash. It sees the directories of this machine in `shared` under their own paths."""
        variables = {**self.environment, **(env or {})}
        settings = [f"{name}={value}" for name, value in variables.items()]
        inside = [*settings, "/bin/bash", "-e", "-o", "pipefail", "-c", script]
        return subprocess.run(
            [*_NAME_SPACES, "sh", "-c", _ENTER, "sh", str(self.path), str(len(shared)), *map(str, shared), *inside],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(_SECONDS),
        )

    def does(self, script: str, *, shared: Sequence[Path] = (), env: Mapping[str, str] | None = None) -> str:
        """What the script prints. It must succeed."""
        done = self.run(script, shared=shared, env=env)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        return done.stdout

    def copy_checkout(self) -> None:
        """Put the files of this checkout there that git knows, or would add."""
        target = self.path / CHECKOUT
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # removed, but not yet in a commit
                shutil.copy2(ROOT / name, target / name)


def make_root(directory: Path) -> DebianRoot:
    """Unpack a Debian 13 with apt and nothing else. It needs no answers, and has lists that are up to date."""
    path = directory / "root"
    command = ["mmdebstrap", "--quiet", "--variant=apt", "trixie", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(_SECONDS))
    assert done.returncode == 0, done.stderr[-4000:]
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    (path / ANSWERS).write_text('APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n')
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", path / "etc" / name)
    if _CERTIFICATES.exists():  # where a proxy has certificates of its own
        shutil.copy(_CERTIFICATES, path / "certificates.crt")
        (path / "etc/pip.conf").write_text("[global]\ncert = /certificates.crt\n")
        environment |= dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), "/certificates.crt")
    root = DebianRoot(path, environment)
    root.does("apt-get update")
    return root
