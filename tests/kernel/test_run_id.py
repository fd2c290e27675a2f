"""The id of a run: one form, whatever it is made from, for it is part of the names of volume groups and partitions."""

from __future__ import annotations

import json

import pytest

from harness.config.names import RunId
from harness.terminal import quoted

PARTITION_NAME = 36
"""Characters that a GPT has for a partition's name."""
LONGEST_PARTITION = "voh:{}:elevenchars"


def test_a_new_id_has_the_form_that_is_accepted() -> None:
    made = RunId.new()
    assert RunId(str(made)) == made
    assert RunId.new() is not made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run",
        "latest",
        "../x",
        "20260101-120000",
        "20260101-120000-abc",
        "20260101-120000-abcde",
        "20260101-120000-ABCD",
        "20260101-120000-abcd\n",
        " 20260101-120000-abcd",
        "20260101-120000-ab d",
        "\uff12\uff10260101-120000-abcd",
        '20260101-120000-abcd", type=swap',
    ],
)
def test_any_other_text_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="not a run id; allowed: YYYYmmdd-HHMMSS-xxxx") as caught:
        RunId(text)
    assert quoted(text) in str(caught.value)


def test_it_is_text_to_json_and_to_messages() -> None:
    run_id = RunId("20260101-120000-abcd")
    assert json.dumps({"id": run_id}) == '{"id": "20260101-120000-abcd"}'
    assert f"voh-{run_id}" == "voh-20260101-120000-abcd"


def test_it_leaves_room_for_the_longest_name_of_a_partition() -> None:
    assert len(LONGEST_PARTITION.format(RunId.new())) == PARTITION_NAME
