"""The calibration of a lab host: what its file holds, where it is, and what a run quotes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from platformdirs import user_state_path
from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from harness.errors import ResultsError
from harness.files import write_atomically
from harness.image import ImageSet
from harness.lab.hosts import Host

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Interval = tuple[float, float, float]
"""Lower end, point, upper end."""


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay of known size put under the guest, and what was found of it. Times in seconds.

    `found_s` is from all rounds together; `host_found_s` is what the host itself found, between the same two disks.
    Of `of` repetitions, `detected` had an interval above 0, and `recovered` one that holds the delay that was set.
    """

    __pydantic_config__ = _STRICT

    set_s: float
    found_s: Interval
    host_found_s: Interval
    detected: int
    recovered: int
    of: int
    rounds: int
    job: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a calibration holds for: another kernel, QEMU, accelerator or image makes it stale. Images by digest."""

    __pydantic_config__ = _STRICT

    kernel: str
    qemu: str
    accel: str
    images: Mapping[str, str]

    @classmethod
    def of(cls, host: Host, images: ImageSet) -> Conditions:
        """Those of the host now. The images of the lab host count where the host is made of them."""
        made_of = [images.guest, *([images.emulator, images.lab] if host.spec.kind == "embedded" else [])]
        return cls(
            kernel=host.facts["kernel"],
            qemu=host.facts["qemu"],
            accel=host.acceleration.accel,
            images={image.name: image.digest for image in made_of},
        )

    def changes(self, now: Conditions) -> list[str]:
        """What is different now, in words; empty where nothing is."""
        pairs = ((name, getattr(self, name), getattr(now, name)) for name in ("kernel", "qemu", "accel"))
        changes = [f"{name} was {before}, is {after}" for name, before, after in pairs if before != after]
        names = sorted(self.images.keys() | now.images.keys())
        return changes + [f"{name} image changed" for name in names if self.images.get(name) != now.images.get(name)]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A device measured against itself in `groups` of `rounds`: what differs is noise. `run` names its raw outputs.

    `noise_sd` is the standard deviation of log(b/a) between rounds, of all jobs together and by job;
    `smallest_detectable` is the smallest overhead, as a share, that so many rounds show with a probability of 80 %.
    """

    __pydantic_config__ = _STRICT

    written: str
    host: str
    disk: str
    run: str
    seed: int
    groups: int
    rounds: int
    false_alarms: int
    noise_sd: float
    noise_sd_by_job: Mapping[str, float]
    smallest_detectable: Mapping[int, float]
    delay: Delay | None
    conditions: Conditions
    schema: Literal[1] = 1


def identity(host: Host) -> str:
    """What names the host's calibration: `embedded`, else its name for itself with its machine id."""
    if host.spec.kind == "embedded":
        return "embedded"
    machine = host.runner.run(["cat", "/etc/machine-id"], deadline=20, check=False).stdout.strip()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{host.facts['hostname']}-{machine[:12]}").strip("-.")


def directory() -> Path:
    """Where the calibrations of all lab hosts are kept."""
    return user_state_path("virt-overhead") / "calibration"


def path_of(name: str) -> Path:
    """The calibration file of the host with this identity."""
    return directory() / f"{name}.json"


def write(path: Path, calibration: Calibration) -> None:
    """Write the file whole or not at all. Raises ResultsError where it cannot be written."""
    text = json.dumps(asdict(calibration), indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written: {error.strerror or error}", hint="this user must be able to write there"
        ) from error


def read(path: Path) -> Calibration | None:
    """The calibration in this file; None where there is none. Raises ResultsError where it cannot be read."""
    try:
        return TypeAdapter(Calibration).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ResultsError(
            f"{path} cannot be read, or is no calibration of this version", hint="virt-overhead calibrate"
        ) from error


def quoted(host: Host, images: ImageSet) -> JsonValue:
    """What a run on this host quotes: the calibration as plain JSON, None where the host has none.

    `stale` lists what has changed since. A file that cannot be read is quoted by what is wrong with it: it must not
    keep anyone from measuring.
    """
    try:
        calibration = read(path_of(identity(host)))
    except ResultsError as error:
        return {"unreadable": error.message}
    if calibration is None:
        return None
    plain: dict[str, JsonValue] = json.loads(json.dumps(asdict(calibration)))
    stale: list[JsonValue] = [*calibration.conditions.changes(Conditions.of(host, images))]
    return {**plain, "stale": stale}
