"""The session of an array that was there already, together with that of the single disk that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from harness.errors import Unsupported
from harness.guest.protocol import Hypervisor
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.measure.phases import Phases
from harness.measure.prepare import SetupRequest, session, skipped_modes
from harness.measure.session import Session


@contextmanager
def session_with_reference(
    host: Host, hypervisor: Hypervisor, request: SetupRequest, *, log: CreationLog, seed: int, phases: Phases
) -> Iterator[Session]:
    """The session for `request`, with the reference in `reference` if it has one. Raises what `session` raises.

    Both are prepared in the same way. The reference comes first, so that the array is measured soon after its own
    conditioning. Raises Unsupported if both are on the same disks.
    """
    opened = partial(session, host, hypervisor, log=log, seed=seed, phases=phases)
    disks = [host.spec.target(disk) for disk in request.disks]
    if (of_reference := request.of_reference) is None:
        with opened(disks, request) as at:
            yield at
        return
    # Nothing is written to the reference if the array has no guest that could be measured.
    skipped_modes(host, hypervisor, disks[0], request.modes, log=log, phases=phases)
    reference = [host.spec.target(disk) for disk in of_reference.disks]
    with (
        opened(reference, of_reference) as single,
        opened(disks, replace(request, span=single.layouts.span)) as at,
    ):
        _require_other_disks(at, single)
        yield at.compared_with(single)


def _require_other_disks(array: Session, reference: Session) -> None:
    own, others = ({at.layouts.disk, *at.shared_disks} - {""} for at in (array, reference))
    if both := own & others:
        raise Unsupported(
            f"{array.host.name}: {', '.join(reference.names.values())}, the reference of "
            f"{', '.join(array.names.values())}, is on the same disks: {', '.join(sorted(both))}",
            hint="name a single disk as array.reference in the lab file, or remove the key",
        )
