"""The card for a forum post: a picture of one size with all of its text, and Markdown that no name can break."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import ConfigError
from harness.features.answers.card import HEIGHT, WIDTH, card, markdown, picture
from harness.results import Run, RunStore
from tests.build import RUN_ID, synthetic_run

HOSTILE = "</script>$x^2$[a](b)|*\n" * 8


@pytest.fixture(scope="module")
def smoke() -> Run:
    return synthetic_run()


def test_the_command_draws_a_picture_beside_the_results_and_prints_the_post(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], smoke: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    store = RunStore.create(tmp_path / "reports", RUN_ID)
    store.write_results(smoke)
    assert main(["report", "--card"]) == 0
    path = store.path / "card.png"
    png = path.read_bytes()
    assert png.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", png[16:24]) == (WIDTH, HEIGHT) == (1200, 630)
    printed = capsys.readouterr()
    assert printed.err == f"picture: {path}\n"
    lines = printed.out.splitlines()
    assert lines[0].endswith("](card.png)")
    assert lines[4].startswith("> Relative only: ")
    assert "- low latency: `raw` (not told apart from `passthrough`)" in lines
    assert "| `passthrough` | 55.6 [55.4, 55.8] | 3 |" in lines


def test_without_the_library_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch, smoke: Run) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="--card needs matplotlib") as raised:
        picture(card(smoke))
    assert "virt-overhead[card]" in str(raised.value.hint)


@pytest.mark.parametrize("name", ["optane", HOSTILE])
def test_all_texts_are_within_the_picture_and_none_covers_another(name: str) -> None:
    run = synthetic_run(disk=name, ready="not steady", status="interrupted", most_rounds=9)
    long = {mode: f"{mode}-with-{HOSTILE}" for mode in ("passthrough", "raw")}
    cells = tuple(replace(cell, mode=long.get(cell.mode, cell.mode)) for cell in run.cells)
    drawn = picture(card(replace(run, cells=cells)))
    boxes = {text.get_text(): text.get_window_extent() for text in drawn.texts}
    boxes |= {f"axes {number}": box for number, axes in enumerate(drawn.axes) if (box := axes.get_tightbbox())}
    assert {"axes 0", "axes 1", "Mode to use for"} <= boxes.keys()
    for words, box in boxes.items():
        assert (box.x0 >= 0, box.x1 <= WIDTH, box.y0 >= 0, box.y1 <= HEIGHT) == (True,) * 4, words
        assert [other for other in boxes if other != words and box.overlaps(boxes[other])] == [], words


def test_markdown_keeps_names_as_text(smoke: Run) -> None:
    post = markdown(card(replace(smoke, lab=replace(smoke.lab, host="<b>|[x](y)"))), "card.png")
    assert "\\<b\\>\\|\\[x\\](y)" in post
