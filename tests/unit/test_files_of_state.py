"""What runs read from the user's cache and state directories, if something else is in its place."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.features.calibrate.calibration import read_calibration
from harness.features.embedded.lab_host import LabMachineState
from harness.files import STORED_BYTES, read_regular, write_stored
from harness.image.manifest import NAME, DamagedError
from harness.image.manifest import read as read_manifest
from harness.lab.facts import Acceleration, load_or_probe, read_answers
from harness.lab.inventory import HostSpec
from harness.lab.transport.handshake import recall, remember
from harness.measure.phases import add_pace, read_paces
from harness.scenario.setups import Pace

EMBEDDED = HostSpec("lab", "embedded", None, (), simulated="everything")
PACE = Pace(("optane",), {"boot": 2.0})
DEEP = "[" * 100_000


def read_probes(path: Path) -> object:
    return read_answers(path)


def read_lab(path: Path) -> object:
    state = LabMachineState(path.parent)
    path.replace(state.record)
    return state.running()


def read_image(path: Path) -> object:
    path.replace(path.with_name(NAME))
    try:
        return read_manifest(path.parent)
    except DamagedError:
        return None


def read_key(path: Path) -> object:
    return recall(path, "lab")


def refused(read: Callable[[Path], object], path: Path) -> bool:
    """Whether nothing was read, or the error names the file and says what to do."""
    try:
        return not read(path)
    except HarnessError as error:
        return str(path) in error.message and bool(error.hint)


READERS = [lambda path: read_paces(EMBEDDED, path), read_probes, read_lab, read_image, read_calibration, read_key]
NAMES = ["paces", "probes", "lab", "image", "calibration", "known hosts"]


def make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 100 << 20)


def make_socket(path: Path) -> None:
    # A name in this directory may be longer than a socket's may.
    above = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{above}/{path.name}")
    os.close(above)


@pytest.mark.parametrize("read", READERS, ids=NAMES)
@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        Path.mkdir,
        make_socket,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        make_large,
    ],
    ids=["a pipe", "a directory", "a socket", "a device", "a link to itself", "100 MiB"],
)
def test_what_is_no_file_of_sane_size_is_not_read(
    read: Callable[[Path], object], put: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "stored"
    put(path)
    assert refused(read, path)


@pytest.mark.parametrize("read", READERS[:-1], ids=NAMES[:-1])
@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "1", "null", "{", DEEP, '{"embedded": 1}', '{"embedded": [{}]}', "\0"),
        '{"embedded": [{"scenarios": ["optane"], "ratios": {"boot": NaN}}]}',
        '{"embedded": [{"scenarios": ["optane"], "ratios": {"boot": -1}}]}',
        '{"embedded": [{"scenarios": ["optane"], "ratios": {"boot": 1e300}}]}',
        '{"embedded": [{"scenarios": "optane", "ratios": {"boot": 1}}]}',
        '{"embedded": [{"scenarios": ["optane"], "ratios": {"sleep": 1}}]}',
        '{"embedded": {"accel": "warp", "why": 1}}',
    ],
)
def test_a_document_of_another_form_is_not_read(read: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.write_text(text)
    assert refused(read, path)


@pytest.mark.parametrize("put", [os.mkfifo, Path.touch, lambda path: path.symlink_to("none")])
def test_what_is_stored_next_replaces_it(put: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "stored"
    put(path)
    add_pace(EMBEDDED, PACE, path)
    assert read_paces(EMBEDDED, path) == (PACE,)
    assert path.stat().st_mode & 0o170000 == 0o100000


def test_a_cache_that_cannot_be_written_costs_another_probe(tmp_path: Path) -> None:
    (tmp_path / "probes.json").mkdir()
    answer = Acceleration("kvm", "the guest image booted")
    assert load_or_probe(tmp_path / "probes.json", "key", lambda: answer) == answer


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "stored"
    write_stored(path, {"a": [1.5]})
    assert json.loads(read_regular(path)) == {"a": [1.5]}
    os.truncate(path, STORED_BYTES)
    assert len(read_regular(path)) == STORED_BYTES
    os.truncate(path, STORED_BYTES + 1)
    with pytest.raises(OSError, match="larger than 16 MiB"):
        read_regular(path)


def test_the_keys_of_hosts_are_kept_where_one_is_added(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    remember(path, "one", "ssh-ed25519 A")
    remember(path, "two", "ssh-ed25519 B")
    assert (recall(path, "one"), recall(path, "two")) == ("ssh-ed25519 A", "ssh-ed25519 B")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(HarnessError, match="cannot be read"):
        remember(path, "three", "ssh-ed25519 C")
