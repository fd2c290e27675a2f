"""What is said where a guest is lost while something is measured, and that other failures stay what they are."""

from __future__ import annotations

from typing import cast

import pytest

from harness.errors import GuestError, HarnessError, HostError, MeasurementError
from harness.guest.booting import explained
from harness.guest.protocol import Guest


class Left:
    """Of a guest what is asked when it may be lost."""

    def __init__(self, became: str | None) -> None:
        self.became = became

    def post_mortem(self) -> str | None:
        return self.became


ANSWERS, ENDED = (cast("Guest", Left(became)) for became in (None, "libvirt reports that it has ended"))


@pytest.mark.parametrize("kind", [HostError, GuestError])
def test_the_error_for_a_lost_guest_has_its_state(kind: type[HarnessError]) -> None:
    with pytest.raises(GuestError) as error, explained(ENDED):
        raise kind("connection to guest on node1 was lost", hint="look there")
    assert error.value.message == "connection to guest on node1 was lost; libvirt reports that it has ended"
    assert isinstance(error.value.__cause__, kind)


@pytest.mark.parametrize("guest", [ANSWERS, None], ids=["answers", "none"])
def test_an_error_does_not_change_while_the_guest_answers(guest: Guest | None) -> None:
    failure = HostError("node1: no such program")
    with pytest.raises(HostError) as error, explained(guest):
        raise failure
    assert error.value is failure


def test_an_error_of_fio_is_not_a_lost_guest() -> None:
    with pytest.raises(MeasurementError), explained(ENDED):
        raise MeasurementError("fio ended with status 1")
