"""A file that a user names may be anything: a pipe, a device, a gigabyte of zeros. It is read, or refused at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import files
from harness.config.problems import read_toml
from harness.errors import ConfigError, HostError
from harness.features.exchange.importing import ImportRequest, read_files
from harness.features.proxmox import SecretSource
from harness.features.proxmox.session import read_secret
from harness.files import read_regular
from harness.lab.transport.handshake import SshTarget, open_transport

TEXT = '[host.node1]\nkind = "local"\n'
TABLES = {"host": {"node1": {"kind": "local"}}}


def make_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def make_zeros(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 30)


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


WRONG = [
    (make_pipe, "nothing arrived in this pipe"),
    (make_zeros, "it is larger than 1 MiB"),
    (make_loop, "Too many levels of symbolic links"),
    (make_device, "it is a device or a socket"),
    (Path.mkdir, "Is a directory"),
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.1)


@pytest.mark.parametrize(("make", "why"), WRONG)
def test_a_lab_file_or_scenario_that_is_no_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    make(path := tmp_path / "lab.toml")
    with pytest.raises(ConfigError, match=f"{path}: cannot be read: .*{why}") as caught:
        read_toml(path, what="lab", hint="see docs/lab.md")
    assert caught.value.hint == "name a lab file that this user may read"


def test_a_lab_file_may_be_the_output_of_a_command(tmp_path: Path) -> None:
    make_pipe(path := tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"printf '%s' '{TEXT}' >{path}"]):
        files.PIPE_SECONDS = 60.0
        assert read_toml(path, what="lab", hint="") == TABLES


@pytest.mark.parametrize("encoding", ["utf-8-sig", "crlf"])
def test_a_lab_file_of_an_editor_of_windows_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode() if encoding == "crlf" else TEXT.encode(encoding))
    assert read_toml(path, what="lab", hint="") == TABLES


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_lab_file_in_another_encoding_says_how_to_save_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_bytes(TEXT.encode(encoding))
    with pytest.raises(ConfigError, match="line 1: not valid UTF-8") as caught:
        read_toml(path, what="lab", hint="")
    assert caught.value.hint == "save the file as UTF-8"


def test_an_output_of_fio_may_come_from_a_pipe() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"{}")
    os.close(write_end)
    request = ImportRequest((Path(f"/dev/fd/{read_end}"),), {}, "disk", "imported", None, keep_going=False, command="")
    assert [file.data for file in read_files(request)] == [b"{}"]
    os.close(read_end)


@pytest.mark.parametrize("make", [make for make, _ in WRONG[:4]])
def test_a_key_or_secret_that_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(path := tmp_path / "key")
    target = SshTarget("127.0.0.1", 1, "root", path)
    with pytest.raises(HostError, match=r"host node1: (cannot read the SSH key|.* is not an SSH private key)"):
        open_transport(target, name="host node1", via=None, deadline=5, banner_seconds=1)
    with pytest.raises(ConfigError, match=r"node1\.secret: "):
        read_secret(SecretSource(file=str(path)), user="root@pam", where="node1.secret")


def test_a_pipe_into_which_a_command_writes_late_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_SECONDS", 60.0)
    with subprocess.Popen(["sh", "-c", "printf a; sleep 0.3; printf b"], stdout=subprocess.PIPE) as late:
        assert late.stdout is not None
        assert read_regular(Path(f"/dev/fd/{late.stdout.fileno()}"), pipes=True) == b"ab"
