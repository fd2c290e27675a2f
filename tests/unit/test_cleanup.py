"""What was created is removed, last thing first; what cannot be removed is reported and hides no other error."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from harness.errors import HarnessError, HostError
from harness.signals import Cleanup
from tests.unit.loop_disks import RUNNER

REMEDY = "end what uses it, and: virt-overhead reap"


def failing(what: str, said: str) -> tuple[str, list[str]]:
    return what, ["sh", "-c", f"echo {said} >&2; exit 5"]


def work(*steps: tuple[str, list[str]], error: BaseException | None = None) -> None:
    """A block that has these things to undo, and may end by an error."""
    with Cleanup(RUNNER.name, REMEDY) as cleanup:
        for what, argv in steps:
            cleanup.by(what, partial(RUNNER.run, argv, deadline=10))
        if error is not None:
            raise error


def nested(error: BaseException) -> None:
    with Cleanup(RUNNER.name, REMEDY) as disk:
        what, argv = failing("the disk", "held")
        disk.by(what, partial(RUNNER.run, argv, deadline=10))
        work(failing("the array", "busy"), error=error)


def test_everything_is_removed_in_reverse_order(tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    work(("outer", ["rmdir", str(tmp_path / "outer")]), ("inner", ["rmdir", str(tmp_path / "outer" / "inner")]))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_removal_is_an_error_and_the_rest_is_removed(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    steps = (
        ("the first", ["rmdir", str(tmp_path / "first")]),
        failing("the group", "open"),
        failing("the mount", "busy"),
    )
    with pytest.raises(HostError) as error:
        work(*steps)
    assert error.value.message.startswith("host here: left behind: the mount (host here: busy (`sh ")
    assert "ended with status 5)); the group (" in error.value.message
    assert "virt-overhead reap" in str(error.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_the_first_error_is_raised_and_its_message_names_what_is_left() -> None:
    cause = HarnessError("fio failed", hint="see its output")
    with pytest.raises(HarnessError) as error:
        nested(cause)
    assert error.value is cause
    said = cause.message.splitlines()
    assert said[0] == "fio failed"
    assert said[1].startswith("  left behind: the array (")
    assert said[2].startswith("  left behind: the disk (")
    assert cause.hint == f"see its output; {REMEDY}"


def test_another_exception_gets_a_note_that_names_what_is_left() -> None:
    with pytest.raises(KeyboardInterrupt) as error:
        work(failing("the array", "busy"), error=KeyboardInterrupt())
    (note,) = error.value.__notes__
    assert note.startswith("host here: left behind: the array (")


def test_if_everything_is_removed_the_error_is_unchanged() -> None:
    cause = HostError("lost")
    with pytest.raises(HostError) as error:
        work(("nothing", ["true"]), error=cause)
    assert (error.value, cause.message) == (cause, "lost")
