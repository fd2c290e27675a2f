"""Slices in a container on this machine: real fio, in name spaces of util-linux, by what stands for LXC's programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.events import Events
from harness.features.container import make_container_mode
from harness.features.container.lxc import start_container
from harness.guest.protocol import Guest, GuestDisk
from harness.lab.created import CreationLog, read_log
from harness.lab.facts import HostFacts
from harness.lab.transport.local import LocalRunner
from harness.measure.session import Guests
from harness.model.attach import InContainer
from harness.model.guest import GuestOptions
from harness.model.mode import Arm, Place
from tests.build import RUN_ID
from tests.unit.loop_disks import loop, require, sparse
from tests.unit.test_measure_blocks import LVM, MIB, READ, SPAN, WRITE, programs_in, ran_in, undisturbed

INSIDE = make_container_mode(LVM)
ARMS = (Arm(Place.HOST), Arm(Place.TWIN, LVM), Arm(Place.GUEST, INSIDE))
# The mounts of the configuration, in name spaces of its own. $2: the directory of the containers, $4: the name.
START = r"""
[ "$1" != --version ] || { echo 6.0.4; exit; }
at=$2/$4
mark=$(sed -n 's/^lxc.environment = //p' "$at/config")
unshare --mount --pid --fork --propagation private sh -c '
    mount --bind "$1/rootfs" "$1/rootfs" || exit
    while read -r key _ source target type options _; do
        [ "$key" = lxc.mount.entry ] || continue
        place=$1/rootfs/$target
        case $options in
        *create=file*) mkdir -p "${place%/*}" && [ -e "$place" ] || : >"$place" ;;
        *create=dir*) mkdir -p "$place" ;;
        esac
        if [ "$type" = none ]; then
            [ ! -e "$source" ] || mount --bind "$source" "$place" || exit
        else
            mount -t "$type" none "$place" || exit
        fi
    done <"$1/config"
    mount -t proc proc "$1/rootfs/proc" && mount --bind /dev "$1/rootfs/dev" && : >"$1/ready" || exit
    exec env -i "$2" "PATH=$PATH" chroot "$1/rootfs" sleep 1000
' sh "$at" "$mark" >"$2/log" 2>&1 &
outer=$!
for _ in $(seq 100); do
    [ ! -e "$at/ready" ] || { pgrep --parent "$outer" >"$at/running"; rm "$at/ready"; exit 0; }
    sleep 0.1
done
exit 1
"""
PROGRAMS = {
    "lxc-start": START,
    "lxc-info": 'tr -d " " <"$2/$4/running"',
    "lxc-attach": 'read -r pid <"$2/$4/running"; shift 5; exec nsenter -t "$pid" --mount --pid --root --wd -- "$@"',
    "lxc-stop": 'read -r pid <"$2/$4/running" && rm "$2/$4/running" && kill -KILL "$pid"',
}


def test_real_slices_in_a_container_use_the_disk_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("fio")
    programs = programs_in(tmp_path, monkeypatch)
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    version = LocalRunner().run(["fio", "--version"], deadline=10).stdout.strip()
    created = tmp_path / "created"
    with loop(sparse(tmp_path / "disk", 2 * SPAN)) as device:
        ran = ran_in(tmp_path, device, Path(device).name, version=version)

        @contextmanager
        def boot() -> Iterator[Guest]:
            disk = GuestDisk(INSIDE.name, ran.at.layouts.guest(INSIDE), InContainer())
            log = CreationLog(LocalRunner(), RUN_ID, str(created))
            host = replace(ran.at.host, facts=HostFacts({"fio": version, "cpus": "2"}))
            with start_container(host, log, [disk], GuestOptions(), cpus=1, events=Events()) as container:
                yield container

        guests = Guests("here", {"container": boot}, {"container": [INSIDE.name]})
        ran.at = replace(ran.at, guests=guests)
        try:
            (directory,) = {entry.record["directory"] for entry in read_log(LocalRunner(), str(created))}
            table = ran.table((replace(READ, seconds=0.4), replace(WRITE, seconds=0.4)), ARMS)
            measured = undisturbed(lambda: ran.measure(table), list)
        finally:
            guests.close()
    assert not Path(directory).exists()
    effective = guests.effective[INSIDE.name]
    assert (effective.container_version, effective.guest_fio) == ("6.0.4", shutil.which("fio"))
    inside = [slice_ for slice_ in measured if slice_.arm == "guest:lvm-container"]
    assert len(inside) == 4
    assert not [slice_.overlap for slice_ in measured if slice_.overlap]
    for slice_ in inside:
        disk, fio = slice_.counters.disk, slice_.counters.fio
        assert disk is not None
        assert fio.read + fio.written > 0
        assert disk.read == pytest.approx(fio.read, rel=0.3, abs=MIB)
        assert disk.written == pytest.approx(fio.written, rel=0.3, abs=MIB)
