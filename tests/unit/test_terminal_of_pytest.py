"""What pytest prints and writes for CI about a run has no control characters and no commands of hosts."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.unit.test_plugin import FINE, Play, play, run, warm

pytest_plugins = ["pytester"]
__all__ = ["play", "run", "warm"]

HOSTILE = r"boom\n::stop-commands::x\r  ::error file=y::z ##[add-mask]q\x1b]0;PWNED\x07\x9b2J\u202e\x1b[8m"
SPEAKING = f"""
    from harness.errors import HostError

    class Speaking(RecordedMeasurer):
        def measure(self, group, segment, began):
            print("{HOSTILE}")
            raise HostError("host node1: {HOSTILE}", hint="{HOSTILE}")

        def close(self):
            raise HostError("host node1: left behind: {HOSTILE}")

    host_measurer.HostMeasurer = Speaking
"""


def test_what_a_host_says_controls_neither_the_terminal_nor_ci(play: Play, pytester: pytest.Pytester) -> None:
    play_back = play(FINE)
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(SPEAKING)
    result = play_back("-rA", "-v", "--junitxml=junit.xml")
    lines = [*result.outlines, *result.errlines]
    assert any("PWNED" in line for line in lines)
    assert any("left behind" in line for line in lines)
    for line in lines:
        assert not line.strip().startswith("::"), line
        assert "##[" not in line
        assert not set(line) & set("\x1b\x07\x9b\u202e\r"), line
    junit = (pytester.path / "junit.xml").read_text()
    assert ElementTree.fromstring(junit).find(".//testcase") is not None
    assert not set(junit) & set("\x1b\x07\x9b")
