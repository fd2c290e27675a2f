"""The guests of a session: one, several, or one for each variant, which run side by side or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from harness.doctor.findings import Finding, Level, Setting
from harness.doctor.tune import tuned
from harness.errors import GuestError, HostError
from harness.guest.lost import explained
from harness.guest.protocol import Guest
from harness.lab.hosts import Host
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Runner
from harness.model.effective import Effective
from harness.model.variant import HostSetting

Boot = Callable[[], AbstractContextManager[Guest]]


class GuestSlot:
    """A guest that can be booted anew. `guest` is the booted one."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._stack = ExitStack()
        self.guest = self._stack.enter_context(boot())
        self.measured = False
        """Whether something was measured since its boot."""

    def boot_again(self) -> None:
        """Take the guest down and boot another one. Raises GuestError, HostError."""
        self.close()
        self.guest = self._stack.enter_context(self._boot())
        self.measured = False

    def close(self) -> None:
        """Take the guest down."""
        self._stack.close()


class Guests:
    """The guests of a session by name: that of the variant, or `g2` and so on for further guests of a mode.

    The first guest without a variant has an empty name. All of them are booted at first.

    `disks` are the names of the disks of each guest. With `alternating`, at most one guest runs at a time: it is booted
    when an arm needs it, and taken down before another one, or the host, is measured.
    """

    def __init__(
        self, host: str, boots: Mapping[str, Boot], disks: Mapping[str, Sequence[str]], *, alternating: bool = False
    ) -> None:
        self._host = host
        self._boots = boots
        self._disks = disks
        self._alternating = alternating
        self._slots: dict[str, GuestSlot] = {}
        self.effective: dict[str, Effective] = {}
        """What was read back of each disk."""
        self.evidence: dict[str, Mapping[str, str]] = {}
        """What each guest reported of its machine, by name."""
        self.windows: dict[str, bool] = {}
        """Whether each guest runs Windows, by name."""
        self.boot_seconds: dict[str, float | None] = {}
        try:
            for name in boots:
                self._read_back(name, self.of(name))
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> dict[str, Guest]:
        """The guests that run now, by name."""
        return {name: slot.guest for name, slot in self._slots.items()}

    def of(self, name: str) -> Guest:
        """The guest of this name, which is booted if it does not run. Raises GuestError, HostError."""
        if name not in self._slots:
            if self._alternating:
                self.close()
            self._slots[name] = GuestSlot(self._boots[name])
            if name in self.evidence:
                self._read_back(name, self._slots[name].guest)
        return self._slots[name].guest

    @contextmanager
    def holding(self, name: str, disk: str) -> Iterator[None]:
        """The guest of this name has its disk during the block, and runs alone if the guests alternate."""
        guest = self.of(name)
        with self.explained(), guest.holding(disk):
            yield

    @contextmanager
    def without(self) -> Iterator[None]:
        """A block for the host's arms: guests that alternate do not run, so nothing on the host is set for them."""
        if self._alternating:
            self.close()
        with self.explained():
            yield

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Explains an error in the block by a guest that was lost meanwhile."""
        with ExitStack() as stack:
            for guest in self.running.values():
                stack.enter_context(explained(guest))
            yield

    def measured(self) -> None:
        """Note that something was measured."""
        for slot in self._slots.values():
            slot.measured = True

    def boot_again(self) -> None:
        """Boot the guests anew that have measured something since their boot.

        Raises GuestError if their disks are attached in another way than before.
        """
        for name, slot in list(self._slots.items()):
            if not slot.measured:
                continue
            if self._alternating:
                self.close()
                return
            slot.boot_again()
            self._read_back(name, slot.guest)

    def close(self) -> None:
        """Take all guests down, also after a failure."""
        with ExitStack() as stack:
            for slot in self._slots.values():
                stack.callback(slot.close)
            self._slots = {}

    def _read_back(self, name: str, guest: Guest) -> None:
        self.evidence[name], self.boot_seconds[name] = guest.evidence, guest.boot_seconds
        self.windows[name] = guest.windows
        for disk in self._disks[name]:
            with explained(guest), guest.holding(disk):
                now = guest.effective(disk)
            if now != self.effective.setdefault(disk, now):
                raise GuestError(
                    f"guest on {self._host}: disk {disk} is attached in another way than at the boot before: {now}",
                    hint="the rounds of the two boots cannot be compared; find out what changes",
                )


def unsettable(runner: Runner, settings: Sequence[HostSetting]) -> str | None:
    """Which of these settings the host does not have, with the remedy; None if it has all of them."""
    for setting in settings:
        if runner.run(["test", "-w", setting.path], deadline=30, check=False).status != 0:
            return f"{setting.path} cannot be set there: load the module, or correct the name in the variant"
    return None


@contextmanager
def holding_settings(
    host: Host, settings: Sequence[HostSetting], *, directory: str = LEASE_DIRECTORY
) -> Iterator[None]:
    """Hold settings on the host during the block, and restore the old values at the end, also after a failure.

    The record in `directory` there has the old values, so `virt-overhead doctor --restore` restores them if this
    process is killed. Raises HostError if the host refuses one.
    """
    wanted = tuple(Setting(setting.path, setting.value) for setting in settings)
    finding = Finding("variant", "requested", Level.ADVICE, "the variant requests it", settings=wanted)
    with tuned(host.runner, [finding], directory=directory) as tuning:
        if tuning.refused:
            raise HostError(
                f"host {host.name}: a setting of the variant was refused: {'; '.join(tuning.refused)}",
                hint="correct the value in the variant; the kernel's documentation lists the allowed ones",
            )
        yield
