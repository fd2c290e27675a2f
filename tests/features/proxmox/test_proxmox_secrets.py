"""Passwords and token values: where they come from, and that nothing shows them."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from traceback import walk_tb
from typing import Literal

import pytest

from harness.errors import ConfigError
from harness.features.doctor.command import run_command
from harness.features.proxmox import SecretSource
from harness.features.proxmox.session import Secret, read_secret
from harness.lab.transport.local import LocalRunner

WHERE = "host.pve.api.secret"
VALUE = "the value itself"


def read(source: SecretSource) -> str:
    return read_secret(source, user="root@pam", where=WHERE).reveal()


def test_a_secret_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
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
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)


def test_it_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVE_PASSWORD", VALUE)
    assert read(SecretSource(env="PVE_PASSWORD")) == VALUE


def test_it_is_read_from_the_first_line_of_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{VALUE}\nsecond line\n", encoding="utf-8")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others may read .* \(mode 0640\)") as error:
        read(SecretSource(file=str(file)))
    assert error.value.hint == f"chmod 600 {file}"
    file.chmod(0o600)
    assert read(SecretSource(file=str(file))) == VALUE


@pytest.mark.parametrize("written", [f"{VALUE}\n", f"{VALUE}\r\n", f"  {VALUE}\t", f"\ufeff{VALUE}\n"], ids=repr)
@pytest.mark.parametrize("kind", ["env", "file", "keyring"])
def test_blanks_around_it_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Literal["env", "file", "keyring"], written: str
) -> None:
    assert read(stored(kind, written.encode() if kind == "file" else written, tmp_path, monkeypatch)) == VALUE


@pytest.mark.parametrize(
    ("written", "for_header", "said"),
    [
        ("canary-1\ncanary-2", False, "contains a line break or another control character"),
        ("canary-1\ncanary-2", True, "contains a line break or another control character"),
        ("canary\x01-1", False, "contains a line break or another control character"),
        ("canary\x7f-1", True, "contains a line break or another control character"),
        ("canary\u2028-1", False, "contains a line break or another control character"),
        ("canary-\u20ac", True, "contains a character that is not ASCII"),
        ("canary-\udcff", False, "contains a character that is not UTF-8"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["env", "keyring"])
def test_what_cannot_be_sent_is_refused_without_being_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: Literal["env", "keyring"],
    written: str,
    for_header: bool,
    said: str,
) -> None:
    source = stored(kind, written, tmp_path, monkeypatch)
    with pytest.raises(ConfigError) as error:
        read_secret(source, user="root@pam", where=WHERE, for_header=for_header)
    assert said in error.value.message
    assert error.value.message.startswith(f"{WHERE}: the {'token' if for_header else 'password'}")
    assert_hidden(error.value, "canary")


def test_a_password_may_have_characters_that_a_token_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(stored("file", "Gr\u00fc\u00dfe \u20ac".encode(), tmp_path, monkeypatch)) == "Gr\u00fc\u00dfe \u20ac"


def test_a_file_that_is_not_text_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stored("file", b"canary\xff\n", tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="is not text in UTF-8") as error:
        read(source)
    assert_hidden(error.value, "canary")


def test_a_variable_is_read_once_and_then_no_child_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVE_CANARY", VALUE)
    source = SecretSource(env="PVE_CANARY")
    assert read(source) == VALUE
    for environment in (
        LocalRunner().run(["env"], deadline=10).stdout,
        subprocess.run(["env"], capture_output=True, text=True, check=True).stdout,
    ):
        assert "PATH=" in environment
        assert VALUE not in environment
    assert read(source) == VALUE
    monkeypatch.setenv("PVE_CANARY", "another one")
    assert read(source) == "another one"


def test_the_command_of_the_doctor_is_the_only_child_that_inherits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`virt-overhead doctor --tune -- pytest`: the doctor has logged in before, and the run has to log in as well."""
    monkeypatch.setenv("PVE_CANARY", VALUE)
    read(SecretSource(env="PVE_CANARY"))
    assert run_command(["sh", "-c", f'printf %s "$PVE_CANARY" >{tmp_path}/inherited']) == 0
    assert (tmp_path / "inherited").read_text() == VALUE


def test_a_secret_is_masked_in_all_its_forms() -> None:
    secret = Secret("a b/\u00fc'\"")
    quoted = "a b/\u00fc'\" a%20b%2F%C3%BC%27%22 a+b%2F%C3%BC%27%22 a b/\u00fc\\'\""
    assert secret.hidden_in(f"<{quoted}>") == "<*** *** *** ***>"
    assert Secret("").hidden_in("nothing to hide") == "nothing to hide"


def test_a_short_secret_is_masked_as_a_word_and_not_within_other_words() -> None:
    assert (
        Secret("ex").hidden_in("ex: password=ex&x=1: it does not exist, _ex")
        == "***: password=***&x=1: it does not exist, _***"
    )
    assert Secret("12345678").hidden_in("%3D12345678A") == "%3D***A"


def stored(
    kind: Literal["env", "file", "keyring"], written: str | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SecretSource:
    """The secret as a user stores it, in one of the three places."""
    if isinstance(written, bytes):
        file = tmp_path / "secret"
        file.write_bytes(written)
        file.chmod(0o600)
        return SecretSource(file=str(file))
    if kind == "env":
        monkeypatch.setenv("PVE_CANARY", written.removeprefix("\ufeff"))
        return SecretSource(env="PVE_CANARY")
    keyring = types.ModuleType("keyring")
    keyring.get_password = lambda _service, _user: written.removeprefix("\ufeff")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    return SecretSource(keyring="pve")


def assert_hidden(error: BaseException, canary: str) -> None:
    """Neither the error nor what it was raised from has it: in words, attributes, or variables of our frames."""
    assert canary not in f"{error!s} {error!r} {error.args} {vars(error)} {getattr(error, '__notes__', '')}"
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code.co_filename != __file__:
            assert canary not in repr(frame.f_locals)
    for each in (error.__cause__, error.__context__):
        if each is not None:
            assert_hidden(each, canary)


def test_it_is_read_from_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {("pve", "root@pam"): VALUE}
    keyring = types.ModuleType("keyring")
    keyring.get_password = lambda service, user: entries.get((service, user))  # type: ignore[attr-defined]
    keyring.errors = types.SimpleNamespace(KeyringError=RuntimeError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    assert read(SecretSource(keyring="pve")) == VALUE
    with pytest.raises(ConfigError, match="no entry for service other and user root@pam") as error:
        read(SecretSource(keyring="other"))
    assert error.value.hint == "keyring set other root@pam"


def test_a_missing_keyring_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="not installed") as error:
        read(SecretSource(keyring="pve"))
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["keyring"][0].startswith("keyring")
    assert "pip install keyring (virt-overhead's extra with this name)" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SecretSource(env="NOT_SET"), "the environment has no variable NOT_SET"),
        (SecretSource(env="EMPTY"), "env EMPTY is empty"),
        (SecretSource(file="/absent"), "/absent cannot be read: No such file"),
    ],
    ids=str,
)
def test_a_missing_secret_is_reported_with_its_key(
    monkeypatch: pytest.MonkeyPatch, source: SecretSource, said: str
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(ConfigError) as error:
        read(source)
    assert error.value.message.startswith(f"{WHERE}: {said}")


@pytest.mark.parametrize("name", ["$NOT_SET", "${NOT_SET}"])
def test_a_variable_is_named_without_the_sign_of_the_shell(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(SecretSource(env=name))
    assert error.value.hint == 'name it without `$`: env = "NOT_SET"'
