"""The measurer of a campaign: prepares a host with layouts and a guest, and runs fio on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.measure.disks import DiskRecords
from harness.measure.environment import Environment
from harness.measure.fio import reports_start
from harness.measure.measurer import LabFound, Prepared
from harness.measure.phases import Phases
from harness.measure.provenance import disk_provenance, examine, guest_provenance
from harness.measure.session import Session, SetupRequest, session
from harness.measure.session_measurer import SessionMeasurer
from harness.measure.spec import CampaignSpec
from harness.model.mode import Arm, Place
from harness.results import RunStore
from harness.scenario.plan import Group, Plan


class HostMeasurer(SessionMeasurer):
    """Measures on one host. Its disks have the layouts of one request at a time."""

    def __init__(self, spec: CampaignSpec, store: RunStore, images: ImageSet, phases: Phases) -> None:
        environment = Environment(spec.host, spec.run_id, spec.disks, images=images, phases=phases)
        super().__init__(environment, store, seed=spec.seed)
        self._images = images
        self._phases = phases
        self._disks = DiskRecords(phases.events)

    def ready(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> Prepared:
        examined(examine(self._environment.opened(), self._images))
        request = SetupRequest.of(plan, group)
        at = self._session(request)
        disks = self._disks.of(at)
        return Prepared(
            span=at.layouts.span,
            conditioning=at.conditioning,
            skipped=at.skipped,
            effective=at.effective,
            notes={arm.id: _notes(arm, at) for arm in group.arms},
            provenance=guest_provenance(at.guest) | disk_provenance(disks),
            rotational=at.layouts.disk in at.disks and at.disks[at.layouts.disk].rotational is True,
            block=at.block,
            disks=disks,
            disks_afterwards=self._disks.afterwards,
        )

    def _session(self, request: SetupRequest) -> Session:
        """The session for `request`: the current one if the request is unchanged, else a new one."""

        def make(host: Host, hypervisor: Hypervisor, log: CreationLog) -> AbstractContextManager[Session]:
            disks = [host.spec.target(disk) for disk in request.disks]
            return session(host, hypervisor, disks, request, log=log, seed=self._seed, phases=self._phases)

        return self._environment.session_for(request, make)


def _notes(arm: Arm, at: Session) -> list[str]:
    """Other differences between the arms of a cell."""
    notes = []
    if arm.mode is None and at.guest is not None and at.guest.evidence.get("fio") != at.host.facts["fio"]:
        notes.append(f"fio differs: {at.host.facts['fio']} on the host, {at.guest.evidence.get('fio')} in the guest")
    fio = at.host.facts["fio"] if arm.place is not Place.GUEST or at.guest is None else at.guest.evidence.get("fio", "")
    if not reports_start(fio):
        notes.append(f"{arm.id}: {fio} does not report when a job starts, so overlapping slices cannot be recognised")
    attach = arm.mode.attach if arm.mode else None
    if arm.place == "twin" and attach and not attach.direct:
        notes.append("the host twin runs with direct=0, so libaio is synchronous and its effective iodepth is 1")
    return notes
