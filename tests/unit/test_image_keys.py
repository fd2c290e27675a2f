"""The harness's SSH key is made once, kept private, and never replaced behind anyone's back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.image.keys import ensure_key

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen (openssh-client)")


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    key = ensure_key(tmp_path / "ssh")
    assert key.public.startswith("ssh-ed25519 AAAA")
    assert key.private.stat().st_mode & 0o777 == 0o600
    assert ensure_key(tmp_path / "ssh") == key


def test_permissions_that_are_too_open_are_put_right(tmp_path: Path) -> None:
    key = ensure_key(tmp_path)
    key.private.chmod(0o644)
    assert ensure_key(tmp_path) == key
    assert key.private.stat().st_mode & 0o777 == 0o600


def test_an_empty_key_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").touch()
    assert ensure_key(tmp_path).public.startswith("ssh-ed25519 ")


def test_half_a_key_is_refused_with_what_to_do(tmp_path: Path) -> None:
    private = ensure_key(tmp_path).private
    private.write_bytes(private.read_bytes()[:100])
    with pytest.raises(ConfigError) as caught:
        ensure_key(tmp_path)
    assert str(private) in caught.value.message
    assert "mv" in str(caught.value.hint)


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    private = ensure_key(tmp_path).private
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(private)], check=True)
    with pytest.raises(ConfigError, match="without a passphrase"):
        ensure_key(tmp_path)


def test_a_directory_that_cannot_be_made_names_the_variable_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="XDG_DATA_HOME"):
        ensure_key(tmp_path / "file" / "ssh")


def test_without_ssh_keygen_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install openssh-client"):
        ensure_key(tmp_path)
