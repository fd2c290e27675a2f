"""What is said where a guest is lost while something is measured, and that other failures stay what they are."""

from __future__ import annotations

from typing import cast

import pytest

from harness.errors import GuestError, HarnessError, HostError, MeasurementError
from harness.guest.lost import explained
from harness.guest.protocol import Guest


class Left:
    """Of a guest what is asked when it may be lost."""

    def __init__(self, became: str | None) -> None:
        self.became = became

    def post_mortem(self) -> str | None:
        return self.became


ANSWERS, ENDED = (cast("Guest", Left(became)) for became in (None, "libvirt says that it has ended"))


@pytest.mark.parametrize("kind", [HostError, GuestError])
def test_a_failure_by_which_a_guest_is_lost_tells_what_became_of_it(kind: type[HarnessError]) -> None:
    with pytest.raises(GuestError) as error, explained(ENDED):
        raise kind("connection to guest on node1 was lost", hint="look there")
    assert error.value.message == "connection to guest on node1 was lost; libvirt says that it has ended"
    assert isinstance(error.value.__cause__, kind)


@pytest.mark.parametrize("guest", [ANSWERS, None], ids=["answers", "none"])
def test_a_failure_beside_a_guest_that_answers_stays_what_it_is(guest: Guest | None) -> None:
    failure = HostError("node1: no such program")
    with pytest.raises(HostError) as error, explained(guest):
        raise failure
    assert error.value is failure


def test_what_fio_says_is_no_loss_of_the_guest() -> None:
    with pytest.raises(MeasurementError), explained(ENDED):
        raise MeasurementError("fio ended with status 1")
