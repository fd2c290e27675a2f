"""Whether images are built on this machine as root or in a user namespace, and what is missing for it."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Literal

from harness.errors import LabUnavailable
from harness.packages import family_of, os_ids

Mode = Literal["root", "unshare"]

_IDS_NEEDED = 65536


_IMPORT = "on a Debian or Ubuntu machine: virt-overhead images export; then here: virt-overhead images import FILE"


def require_mode(*, etc: Path = Path("/etc"), uid: int | None = None) -> Mode:
    """The mode of mmdebstrap for this user. Raises LabUnavailable, which says what to install or to set up."""
    uid = os.geteuid() if uid is None else uid
    programs = {"mmdebstrap": "mmdebstrap", "apt-get": "apt", "mke2fs": "e2fsprogs"}
    if uid != 0:
        programs["newuidmap"] = "uidmap"
    # mke2fs is in /usr/sbin, which is not in every user's PATH. The build adds it as well.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = {program: package for program, package in programs.items() if not shutil.which(program, path=path)}
    if missing:
        ids = os_ids(etc / "os-release")
        if ids and family_of(ids) != "debian":
            raise LabUnavailable(
                f"images are built with mmdebstrap and apt, on Debian and Ubuntu only, and this is {ids.split()[0]}",
                hint=f"{_IMPORT} (docs/images.md)",
            )
        packages = sorted({*missing.values(), "debian-archive-keyring"})
        raise LabUnavailable(
            f"images cannot be built here without {', '.join(missing)}",
            hint=f"apt-get install {' '.join(packages)}, or run ./quickstart",
        )
    if uid == 0:
        return "root"
    user = pwd.getpwuid(uid).pw_name
    for name in ("subuid", "subgid"):
        if _granted(etc / name, user, uid) < _IDS_NEEDED:
            raise LabUnavailable(
                f"user {user} needs {_IDS_NEEDED} subordinate ids in {etc / name} to build without root",
                hint=f"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
                " (a range that no other line has); or build once as root",
            )
    switch = Path("/proc/sys/kernel/unprivileged_userns_clone")
    if switch.exists() and switch.read_text().strip() == "0":
        raise LabUnavailable(
            "this machine allows only root to create user namespaces, and building without root needs one",
            hint="as root: sysctl kernel.unprivileged_userns_clone=1; or build once as root",
        )
    return "unshare"


def _granted(table: Path, user: str, uid: int) -> int:
    """The size of the largest range of subordinate ids that `user` has."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return 0
    ranges = [line.split(":") for line in lines if line.count(":") == 2]
    return max((int(count) for owner, _, count in ranges if owner in {user, str(uid)} and count.isdigit()), default=0)
