"""Passwords of URLs and options are neither stored nor shown."""

from __future__ import annotations

import shlex

import pytest

from harness.errors import ResultsError
from harness.features.compare.history_store import HistoryStore
from harness.results import RunStore
from harness.terminal import HIDDEN, format_command, hide_password_of, hide_passwords
from tests.unit.test_plugin import FINE, Play, play, run, warm

pytest_plugins = ["pytester"]
__all__ = ["play", "run", "warm"]

CANARY = "canary-3f9a"


@pytest.mark.parametrize(
    "text",
    [
        f"s3://key:{CANARY}@bucket/history",
        f"s3://key:a/{CANARY}@bucket/history",
        f"ftp://me:{CANARY}%40x@host/x",
        f"sftp://me:p@{CANARY}@host:22/x",
        f"https://{CANARY}@example.org/x",
        f"postgresql+x://me:{CANARY}@[::1]:5432/db",
        f"abfs://c@a.example/x?sas_token={CANARY}&y=1",
        f"https://h/x?X-Amz-Signature={CANARY}",
        f"https://h/x?y=1&auth={CANARY}",
        f"https://h/x?pass={CANARY}",
        f"https://h/x#access_token={CANARY}",
        f"the store ftp://me:{CANARY}@h cannot be reached",
    ],
)
def test_a_password_in_a_url_is_hidden(text: str) -> None:
    assert CANARY not in hide_passwords(text)
    assert HIDDEN in hide_passwords(text)
    assert CANARY not in format_command(["pytest", "-k", "x", f"--history={text}"])
    assert CANARY not in format_command(["pytest", "--history", text])


@pytest.mark.parametrize(
    "text",
    [
        "reports/history",
        "s3://bucket/a@b",
        "ssh://root@host:22/x",
        "https://h:8006/?a=1",
        "me@host",
        "monkey=1",
        "-k=a",
    ],
)
def test_what_has_no_password_stays(text: str) -> None:
    assert hide_passwords(text) == text
    assert shlex.split(format_command(["pytest", text, "-k", "token and lvm"])) == [
        "pytest",
        text,
        "-k",
        "token and lvm",
    ]


def test_a_password_with_blanks_is_hidden_where_the_url_is_known_to_be_one() -> None:
    url = f"sftp://me:my own {CANARY}@host/x"
    assert CANARY not in hide_passwords(url, is_url=True)
    assert CANARY not in format_command(["pytest", f"--history={url}"])
    assert CANARY not in HistoryStore.at(f"memory://me:my own {CANARY}@host/x").url


def test_a_long_text_of_somebody_else_is_read_once() -> None:
    """With a pattern that goes back for each of these parts, this takes hours."""
    for part in ("a://", "a://u:", "http://u@", "?token=", "x-", "://@:"):
        assert hide_passwords(part * 200_000)
    assert hide_passwords(f"{'a://u:' * 2}{CANARY}@h http://{CANARY}@h,x://u:{CANARY}@h") == (
        f"a://u:{HIDDEN}@h http://{HIDDEN}@h,x://u:{HIDDEN}@h"
    )


@pytest.mark.parametrize(
    "words", [["--password", CANARY], [f"--api-token={CANARY}"], [f"S3_SECRET={CANARY}"], ["--db-passwd", CANARY]]
)
def test_a_password_in_an_option_is_hidden(words: list[str]) -> None:
    shown = format_command(["pytest", *words, "-k", "lvm"])
    assert CANARY not in shown
    assert shown.endswith("-k lvm")


def test_an_error_of_a_library_does_not_quote_the_password() -> None:
    assert CANARY not in hide_password_of(f"ftp://me:{CANARY}@h/x", f"login me/{CANARY} refused")
    assert "p w!" not in hide_password_of("ftp://me:p%20w%21@h/x", "login me/p w! refused")


LOST = f"""
    import fsspec

    class Lost(fsspec.AbstractFileSystem):
        protocol = "lost"

        def pipe_file(self, path, value, mode="overwrite", **options):
            raise RuntimeError("no route to lost://me:{CANARY}@host")

    fsspec.register_implementation("lost", Lost, clobber=True)
"""


def test_a_history_that_is_lost_meanwhile_loses_no_run_and_shows_no_password(
    play: Play, pytester: pytest.Pytester
) -> None:
    measure = play(FINE)
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(LOST)
    result = measure(f"--history=lost://me:{CANARY}@host/history")
    output = "\n".join([*result.outlines, *result.errlines])
    assert "INTERNALERROR" not in output
    assert "not added to the history: the history in lost://me:***@host/history cannot be used: no route" in output
    assert "virt-overhead history add" in output
    assert CANARY not in output
    path = (pytester.path / "reports" / "latest").resolve()
    assert RunStore.open(path).read_results().run.status == "complete"
    for file in path.rglob("*"):
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file


def test_every_failure_of_a_store_is_an_error_of_ours() -> None:
    with pytest.raises(ResultsError, match=r"ftp://me:\*\*\*@127\.0\.0\.1:1/x cannot be used") as error:
        HistoryStore.at(f"ftp://me:{CANARY}@127.0.0.1:1/x")
    assert CANARY not in str(error.value)
