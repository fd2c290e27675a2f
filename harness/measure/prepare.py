"""Prepares a disk for measuring: builds and fills the layouts, or brings them to a steady state; starts guests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce

from harness.errors import GuestError, MeasurementError, Unsupported
from harness.events import Events
from harness.feature import backup_maker, features, find_conditioner, settings_holder
from harness.guest.protocol import Guest, GuestDisk, Hypervisor
from harness.lab.counters import md_devices
from harness.lab.created import CreationLog
from harness.lab.facts import read_disks
from harness.lab.guard import run_all
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk
from harness.lab.transport.base import Runner
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.layout.layers import BARE
from harness.layout.regions import read_encryption
from harness.layout.storage_files import fill_image, read_nodatacow
from harness.measure.fio import fill_file, mark_fio
from harness.measure.phases import Phases
from harness.measure.platform import PROGRAM
from harness.measure.series import require_guest
from harness.measure.session import Boot, Guests, Session, count_idle, read_health
from harness.model.disk import DiskFacts
from harness.model.job import Job
from harness.model.mode import REFERENCE_PLACE, Arm, HostSetting, Mode, Place
from harness.model.option import NOTHING, Effective
from harness.model.workloads import Conditioning
from harness.results import ConditioningRecord
from harness.scenario.plan import Plan, fio_rate
from harness.scenario.setups import Group, by_guest, disks_in_words, places_needed, stored_volumes

MIB = 1024**2
FILLED_AT_ONCE = 1024 * MIB
"""Bytes on a storage in use after which its free space is checked again: the smallest reserve that must stay free."""
SLOWEST_FILL = 2 * MIB
"""Bytes per second. A slower disk is broken."""


@dataclass(frozen=True, slots=True)
class FilledRegions:
    """The regions of a disk that were written in full, and what else conditioning may need."""

    runner: Runner
    by_name: Mapping[str, BlockSource]
    jobs: Sequence[Job]
    """What will be measured."""
    seed: int
    events: Events
    fio: str
    write_limits: Callable[[Job], Mapping[str, int]]
    """The bytes per second that this job may write to each region, by its name; without a limit for the others."""


def condition(
    runner: Runner,
    layouts: Layouts,
    method: Conditioning,
    jobs: Sequence[Job],
    *,
    seed: int,
    events: Events,
    write_limits: Callable[[Job], Mapping[str, int]] = lambda _job: {},
    fio: str = PROGRAM,
) -> ConditioningRecord:
    """Prepare every region of `layouts` in the same way, on the host. Raises MeasurementError.

    Every method writes incompressible data to every block, because a disk answers reads of other blocks without
    reading. A feature's also runs one of `jobs` on each region, with at most `write_limits` bytes per second by the
    region's name. fio cannot write into a qcow2 file on the host. So the file is filled with the data of its twin, and
    the job does not run on it. `fio` is the program on the host. On a storage in use, and on disks that are files, the
    space is checked before each part is filled. SafetyError is raised if too little would stay free.
    """
    regions = layouts.regions
    conditioner = find_conditioner(method)
    block, times = conditioner.block, conditioner.fills
    room = layouts.reserve
    if room is None:
        fill_spans([*regions.values()], fio, block=block, times=times)
    else:
        for source in regions.values():
            for part in _split_region(source):
                room.require_for(source.path, source.size, part.size)
                fill_spans([part], fio, block=block, times=times)
    for image in layouts.images:
        if room is not None:
            filled = image.guest.data or image.guest
            room.require_for(filled.path, filled.size, filled.size)
        fill_image(image)
    if conditioner.run is None:
        return ConditioningRecord("fill", None, (), None)
    return conditioner.run(FilledRegions(runner, regions, jobs, seed, events, fio, write_limits))


def _split_region(source: BlockSource) -> Iterator[BlockSource]:
    for start in range(0, source.size, FILLED_AT_ONCE):
        yield replace(source, offset=source.offset + start, size=min(FILLED_AT_ONCE, source.size - start))


def fill_spans(sources: Sequence[BlockSource], fio: str, *, block: int = MIB, times: int = 1) -> None:
    """Write incompressible data to every block of these sources with the host's fio. Raises MeasurementError."""
    writable = [source.writable for source in sources]
    runner = writable[0].runner
    spans = [(source.writable.path, source.offset, source.size) for source in sources]
    deadline = 120 + times * sum(size for _, _, size in spans) / SLOWEST_FILL
    fill = fill_file(spans, block=block, times=times)
    done = run_all(writable, mark_fio(fio), stdin=fill, deadline=deadline, check=False)
    if done.status != 0:
        where = ", ".join(path for path, _, _ in spans)
        raise MeasurementError(
            f"{runner.name}: filling {where} failed: {(done.stderr or done.stdout).strip()[-400:]}",
            hint="the file system is full, or the disk fails; see dmesg on that host",
        )


@dataclass(frozen=True, slots=True)
class SetupRequest:
    """The request for one setup. The disk of the baseline is the first of `disks`. Each region has `span` bytes.

    `disks` are the scenario's disks as far as the modes need them, also those in between that no mode uses.
    Conditioning writes at most `write_rate` bytes per second to each disk; None is no limit. `reference` is the single
    disk that the array in `disks` is compared with, if there is one.
    """

    disks: tuple[str, ...]
    modes: tuple[Mode, ...]
    jobs: tuple[Job, ...]
    span: int
    conditioning: Conditioning
    write_rate: int | None = None
    reference: str | None = None

    @property
    def of_reference(self) -> SetupRequest | None:
        """The request for the reference: its bare device, or a volume on a storage. None without one."""
        return replace(self, disks=(self.reference,), modes=(), reference=None) if self.reference else None

    @classmethod
    def of(cls, plan: Plan, group: Group) -> SetupRequest:
        """The request for the setup of this group. All groups of the setup share it."""
        setup = plan.setup_of(group)
        disks = plan.disks[: places_needed(setup.modes)[-1] + 1]
        rate = plan.write_rate if plan.limits else None
        reference = plan.disks[REFERENCE_PLACE] if REFERENCE_PLACE in setup.bare_places else None
        return cls(disks, setup.modes, setup.jobs, plan.span, plan.conditioning, rate, reference)


def find_skipped_modes(
    host: Host, hypervisor: Hypervisor, disk: AnyDisk, modes: Sequence[Mode], *, log: CreationLog, phases: Phases
) -> dict[str, str]:
    """Why the host, or the system of a guest, does not support some of the modes on the disk, by their names.

    Writes nothing to disks. Raises NothingToCompare if no guest is left, Unsupported if this installation cannot have
    them, and GuestError or HostError if a system of the user's own does not start.
    """

    def why_not(mode: Mode) -> str | None:
        if why := hypervisor.unsupported_by_host(mode, disk):
            return why
        if mode.settings and (why := settings_holder().refuse(host.runner, mode.settings)):
            return why
        with phases.timed("boot"):
            return hypervisor.unsupported_by_guest_os(log, mode)

    skipped = {mode.name: f"host {host.name}: {why}" for mode in modes if (why := why_not(mode))}
    for mode in modes:
        if mode.against is not None and mode.name not in skipped and (why := skipped.get(mode.against.name)):
            skipped[mode.name] = f"it is compared with {mode.against.name}, which is skipped: {why}"
    require_guest(modes, skipped)
    return skipped


@contextmanager
def open_session(
    host: Host,
    hypervisor: Hypervisor,
    disks: Sequence[AnyDisk],
    request: SetupRequest,
    *,
    log: CreationLog,
    seed: int,
    phases: Phases,
    extra: Mapping[Mode, BlockSource] | None = None,
) -> Iterator[Session]:
    """Layouts and guest for `request` on `disks`, the baseline's disk first. Everything is removed at the end.

    Modes that the host does not support are in `skipped` with the reason. If this leaves no guest, raises
    NothingToCompare before anything is built. `extra` has modes that are not on the disks, with the caller's source for
    each. The guest also gets these.
    """
    elsewhere = dict(extra or {})
    skipped = find_skipped_modes(host, hypervisor, disks[0], request.modes, log=log, phases=phases)
    skipped |= _find_without_room(host, [mode for mode in request.modes if mode.name not in skipped], request.span)
    usable = [mode for mode in request.modes if mode.name not in skipped]
    words = disks_in_words([disks[place].name for place in places_needed(usable)])
    with ExitStack() as stack:
        with phases.step("layouts", f"build {words}'s layouts"):
            layouts = stack.enter_context(hypervisor.layouts(log, disks, stored_volumes(usable), span=request.span))
        layouts = replace(layouts, by_mode={**layouts.by_mode, **{mode.name: at for mode, at in elsewhere.items()}})
        usable += elsewhere
        facts = read_disks(host.runner, _list_devices(layouts))
        names = layouts.names or {layouts.disk: disks[0].name}
        health = read_health(host, [facts[name] for name in names if name in facts])
        with phases.step("condition", f"condition {words} ({request.conditioning})"):
            conditioning = _condition_for(request, host, layouts, seed=seed, events=phases.events)
        session = Session(
            host,
            layouts,
            None,
            skipped,
            {},
            conditioning,
            names=names,
            disks=facts,
            health=health,
            cached=any(mode.cached for mode in usable),
            trims=any(job.trims for job in request.jobs),
        )
        session = stack.enter_context(_attach_to_guests(session, hypervisor, usable, log=log, phases=phases))
        if hypervisor.poll_seconds:
            with phases.step("idle", f"count what other programs read from {words} meanwhile"):
                session = _count_idle(session, hypervisor.poll_seconds)
        arrays = {*layouts.arrays.values(), *(name for name, disk in facts.items() if disk.transport == "md")}
        session = replace(session, md=md_devices(host.runner, sorted(arrays)))
        session = _read_by_features(session, usable, request.jobs)
        # Conditioning has changed the tables of file systems.
        for mode in usable:
            if mode.filesystem is not None or (mode.attach is not None and mode.layout.writes_later):
                session.settle(Arm(Place.TWIN, mode))
        yield session


@contextmanager
def _attach_to_guests(
    session: Session, hypervisor: Hypervisor, modes: Sequence[Mode], *, log: CreationLog, phases: Phases
) -> Iterator[Session]:
    """The session with the guests of these modes, which run until the end of the block, and what is read back of their
    disks."""
    host, layouts = session.host, session.layouts
    with ExitStack() as stack:
        sources = {mode.attached.name: layouts.guest(mode.attached) for mode in modes if mode.backup}
        backup_files = stack.enter_context(backup_maker().open_files(log, host, sources)) if sources else {}
        with phases.timed("attach"):
            guests = _start_guests(host, layouts, by_guest(modes), partial(hypervisor.guest, log), phases)
        if guests is not None:
            stack.callback(guests.close)
        effective = _read_effective(host.runner, layouts, guests, modes)
        block = _find_logical_block(session.disks.get(layouts.disk), effective.values())
        yield replace(session, guests=guests, effective=effective, block=block, backup_files=backup_files)


def _count_idle(session: Session, seconds: float) -> Session:
    """The session with what other programs read from its disks in this time."""
    runner = session.host.runner
    idle = count_idle(runner, session.clocks.read(runner), _list_devices(session.layouts), seconds)
    return replace(session, idle=idle)


def _read_by_features(session: Session, modes: Sequence[Mode], jobs: Sequence[Job]) -> Session:
    """The session with what features read back of it."""
    effective = dict(session.effective)
    for feature in features():
        for name, read in feature.read_session(session, modes, jobs).items():
            effective[name] = effective.get(name, NOTHING).merged(read)
    return replace(session, effective=effective)


def _find_without_room(host: Host, modes: Sequence[Mode], span: int) -> dict[str, str]:
    """Why the backups of some of these modes, `span` bytes each, cannot be written on the host, by their names.

    Raises NothingToCompare if no guest is left.
    """
    backups = [mode.name for mode in modes if mode.backup]
    why = backup_maker().find_no_room(host.runner, host.spec, len(backups) * span) if backups else None
    skipped = dict.fromkeys(backups, f"host {host.name}: {why}") if why else {}
    require_guest(modes, skipped)
    return skipped


def _condition_for(
    request: SetupRequest, host: Host, layouts: Layouts, *, seed: int, events: Events
) -> ConditioningRecord:
    return condition(
        host.runner,
        layouts,
        request.conditioning,
        request.jobs,
        seed=seed,
        events=events,
        write_limits=partial(_find_write_limits, request),
        fio=host.spec.fio,
    )


def _list_devices(layouts: Layouts) -> list[str]:
    """The disks below the layouts, the baseline's first."""
    of_arrays = (name for members in layouts.members.values() for name in members)
    shared = layouts.shared.disks if layouts.shared is not None else ()
    return list(filter(None, dict.fromkeys([layouts.disk, *of_arrays, *shared])))


def _find_write_limits(request: SetupRequest, job: Job) -> dict[str, int]:
    """The bytes per second that the job may write to each region, by the region's name; empty without a limit."""
    if request.write_rate is None:
        return {}
    layouts = {BARE: None, **{mode.name: mode.layout for mode in stored_volumes(request.modes)}}
    return {name: int(fio_rate(request.write_rate, layout, job)) for name, layout in layouts.items()}


def _find_logical_block(disk: DiskFacts | None, effective: Iterable[Effective]) -> int:
    """The largest logical block size, in bytes, of the host's disk, of the guest's disks and of what encrypts them."""
    of_disk = disk.logical_block_bytes if disk is not None else None
    sizes = (
        size
        for effective_disk in effective
        for size in (effective_disk.guest_logical_block_size, effective_disk.host_encryption_sector)
    )
    return max([of_disk or 512, *(size or 512 for size in sizes)])


def _read_effective(
    runner: Runner, layouts: Layouts, guests: Guests | None, modes: Sequence[Mode]
) -> dict[str, Effective]:
    """What was read back of each disk by its name, also under the names of modes that have no disk of their own."""
    by_disk = guests.effective if guests is not None else {}
    effective = dict(by_disk)
    readers = (read_encryption, read_nodatacow, *(feature.read_volume for feature in features()))
    for mode in modes:
        if mode.attach is not None:
            read = (reader(runner, mode.layout, layouts.guest(mode).path) for reader in readers)
            effective[mode.name] = reduce(Effective.merged, filter(None, read), by_disk[mode.attached.name])
    return effective


def _start_guests(
    host: Host,
    layouts: Layouts,
    modes: Mapping[str, Sequence[Mode]],
    start: Callable[..., AbstractContextManager[Guest]],
    phases: Phases,
) -> Guests | None:
    if not modes:
        return None
    alternating = any(mode.alternating for of_guest in modes.values() for mode in of_guest)
    users = Counter(volume for of_guest in modes.values() for volume in {mode.stored for mode in of_guest})
    boots: dict[str, Boot] = {}
    for name, of_guest in modes.items():
        disks = [
            GuestDisk(mode.name, layouts.guest(mode), mode.attach, users[mode.stored] > 1 and not alternating)
            for mode in of_guest
            if mode.attach
        ]
        make = partial(start, disks, of_guest[0].guest, variant=name)
        boots[name] = partial(
            _start_timed, host, of_guest[0].settings, make, phases, hidden=bool(of_guest[0].guest.hide_kvm)
        )
    names = {name: [mode.name for mode in of_guest] for name, of_guest in modes.items()}
    return Guests(host.name, boots, names, alternating=alternating)


@contextmanager
def _start_timed(
    host: Host,
    settings: Sequence[HostSetting],
    make: Callable[[], AbstractContextManager[Guest]],
    phases: Phases,
    *,
    hidden: bool,
) -> Iterator[Guest]:
    """The guest that `make` starts, while these settings are held on its host. It does not see KVM if that is
    `hidden`."""
    with ExitStack() as stack:
        if settings:
            stack.enter_context(settings_holder().hold(host.runner, settings))
        with phases.timed("boot"):
            guest = stack.enter_context(make())
        if not hidden:
            _require_evidence(host, guest)
        yield guest


def _require_evidence(host: Host, guest: Guest) -> None:
    """Checks that the guest's own CPU reports KVM. A container has the CPU of its host."""
    if "container" in guest.evidence:
        return
    observed = guest.evidence.get("hypervisor", "")
    if host.acceleration.accel == "kvm" and observed != "KVM":
        raise GuestError(
            f"guest on {host.name}: started under KVM, but its CPU reports {observed or 'no hypervisor'}",
            hint="the figures would measure an emulator; see the QEMU log on the host",
        )


@contextmanager
def open_session_with_reference(
    host: Host, hypervisor: Hypervisor, request: SetupRequest, *, log: CreationLog, seed: int, phases: Phases
) -> Iterator[Session]:
    """The session for `request`, with the reference in `reference` if it has one. Raises what `session` raises.

    Both are prepared in the same way. The reference comes first, so that the array is measured soon after its own
    conditioning. Raises Unsupported if both are on the same disks.
    """
    opened = partial(open_session, host, hypervisor, log=log, seed=seed, phases=phases)
    disks = [host.spec.target(disk) for disk in request.disks]
    if (of_reference := request.of_reference) is None:
        with opened(disks, request) as at:
            yield at
        return
    # Nothing is written to the reference if the array has no guest that could be measured.
    find_skipped_modes(host, hypervisor, disks[0], request.modes, log=log, phases=phases)
    reference = [host.spec.target(disk) for disk in of_reference.disks]
    with (
        opened(reference, of_reference) as single,
        opened(disks, replace(request, span=single.layouts.span)) as at,
    ):
        _require_other_disks(at, single)
        yield at.compared_with(single)


def _require_other_disks(array: Session, reference: Session) -> None:
    of_array, others = ({at.layouts.disk, *at.shared_disks} - {""} for at in (array, reference))
    if both := of_array & others:
        raise Unsupported(
            f"{array.host.name}: {', '.join(reference.names.values())}, the reference of "
            f"{', '.join(array.names.values())}, is on the same disks: {', '.join(sorted(both))}",
            hint="name a single disk as array.reference in the lab file, or remove the key",
        )
