"""Passwords and token values: where they come from, and that nothing shows them."""

from __future__ import annotations

import logging
import pickle
import sys
import tomllib
import types
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.guest.proxmox.secrets import Secret, read_secret
from harness.lab.proxmox import SecretSource

WHERE = "host.pve.api.secret"
VALUE = "the value itself"


def read(source: SecretSource) -> str:
    return read_secret(source, user="root@pam", where=WHERE).reveal()


def test_a_secret_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(VALUE)
    logging.getLogger().warning("%s %r", secret, [secret])
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!r:>40}",
        f"{secret:>40}",
        str({"a": secret}),
        caplog.text,
    ]
    assert not any(VALUE in each for each in shown)
    with pytest.raises(TypeError, match="not stored"):
        pickle.dumps(secret)


def test_it_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVE_PASSWORD", VALUE)
    assert read(SecretSource("env", "PVE_PASSWORD")) == VALUE


def test_it_is_read_from_the_first_line_of_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{VALUE}\nsecond line\n", encoding="utf-8")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others may read .* \(mode 0640\)") as error:
        read(SecretSource("file", str(file)))
    assert error.value.hint == f"chmod 600 {file}"
    file.chmod(0o600)
    assert read(SecretSource("file", str(file))) == VALUE


def test_it_is_read_from_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {("pve", "root@pam"): VALUE}
    keyring = types.ModuleType("keyring")
    keyring.get_password = lambda service, user: entries.get((service, user))  # type: ignore[attr-defined]
    keyring.errors = types.SimpleNamespace(KeyringError=RuntimeError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    assert read(SecretSource("keyring", "pve")) == VALUE
    with pytest.raises(ConfigError, match="no entry of service other and user root@pam") as error:
        read(SecretSource("keyring", "other"))
    assert error.value.hint == "keyring set other root@pam"


def test_a_keyring_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="not installed") as error:
        read(SecretSource("keyring", "pve"))
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["keyring"][0].startswith("keyring")
    assert "pip install keyring (virt-overhead's extra of that name)" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SecretSource("env", "NOT_SET"), "the environment has no variable NOT_SET"),
        (SecretSource("env", "EMPTY"), "env EMPTY is empty"),
        (SecretSource("file", "/absent"), "/absent cannot be read: No such file"),
    ],
    ids=str,
)
def test_a_secret_that_is_not_there_is_told_with_its_key(
    monkeypatch: pytest.MonkeyPatch, source: SecretSource, said: str
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(ConfigError) as error:
        read(source)
    assert error.value.message.startswith(f"{WHERE}: {said}")
