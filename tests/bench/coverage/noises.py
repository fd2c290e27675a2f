"""Simulated slices of a job: logarithms of what each arm got, the start of each slice, and what is true of them.

A block takes 12 s, because other jobs have slices in it too. The slices of the job follow each other in random order, a
quarter of a second apart. Arm 0 is the host, the others are guests. All arms have the mean 0, so each comparison of two
arms has the truth 0 in the long run. Arrays have the shape (campaigns, blocks, arms) unless they say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

Floats = npt.NDArray[np.floating[Any]]

ARMS = 6
SLOT_S = 0.25
"""From one slice to the next."""
SLOTS = 48
"""Of a block, with those of the other jobs."""
BLOCK_S = SLOTS * SLOT_S
NOISE = 0.1
"""The standard deviation of a slice, as a logarithm: 10 %."""


@dataclass(frozen=True)
class Places:
    """When the slices ran. `slots` numbers the quarter seconds of the run."""

    chance: np.random.Generator
    slots: npt.NDArray[np.int_]

    @classmethod
    def draw(cls, chance: np.random.Generator, campaigns: int, blocks: int) -> Places:
        order = chance.random((campaigns, blocks, ARMS)).argsort(axis=2)
        first = chance.integers(0, SLOTS - ARMS, (campaigns, blocks, 1)) + SLOTS * np.arange(blocks)[None, :, None]
        return cls(chance, first + order)

    @property
    def shape(self) -> tuple[int, int, int]:
        campaigns, blocks, arms = self.slots.shape
        return campaigns, blocks, arms

    @property
    def times(self) -> Floats:
        """The starts of the slices in seconds."""
        return self.slots * SLOT_S

    def draw_normal(self, deviation: float | Floats = NOISE) -> Floats:
        return deviation * self.chance.normal(size=self.shape)

    def draw_environment(self, memory_s: float) -> Floats:
        """A stationary Gaussian process of the time with the variance 1 and the correlation exp(-lag / memory).

        Shape (campaigns, slots of the run).
        """
        campaigns, blocks, _ = self.shape
        innovations = self.chance.normal(size=(campaigns, blocks * SLOTS))
        rho = math.exp(-SLOT_S / memory_s)
        innovations[:, 1:] *= math.sqrt(1 - rho * rho)
        environment: Floats = lfilter([1], [1, -rho], innovations, axis=1)
        return environment

    def draw_neighbour(self, lasts_s: float) -> Floats:
        """1 while a neighbour is there, else 0; it comes and goes for so many seconds on average. Shape as above."""
        campaigns, blocks, _ = self.shape
        flips = self.chance.random((campaigns, blocks * SLOTS)) < (1 - math.exp(-2 * SLOT_S / lasts_s)) / 2
        flips[:, 0] = self.chance.random(campaigns) < 0.5
        return (flips.cumsum(axis=1) % 2).astype(float)

    def read(self, environment: Floats) -> Floats:
        """What the slices get of a process with the shape (campaigns, slots of the run)."""
        campaigns = self.shape[0]
        return np.take_along_axis(environment, self.slots.reshape(campaigns, -1), axis=1).reshape(self.shape)


@dataclass(frozen=True)
class Slices:
    """The logarithms of what the slices got, and the truth of each arm with the shape (campaigns, arms)."""

    logs: Floats
    truth: Floats | float = 0.0
    """In the long run."""
    of_run: Floats | float | None = None
    """In this run, the mean over all of its moments; None if it is that of the long run."""


Noise = Callable[[Places], Slices]


def draw_independent(places: Places) -> Slices:
    return Slices(places.draw_normal())


def draw_gamma(places: Places) -> Slices:
    """Throughputs whose standard deviation is half of their mean."""
    return Slices(np.log(places.chance.gamma(4, 1, places.shape)))


def draw_heavy_tails(places: Places) -> Slices:
    """Student's t with 3 degrees of freedom."""
    return Slices(NOISE / math.sqrt(3) * places.chance.standard_t(3, places.shape))


def draw_unequal(places: Places) -> Slices:
    """From arm to arm the noise is larger, up to six times."""
    return Slices(places.draw_normal(NOISE / 2 * (1 + np.arange(ARMS))))


def draw_drift(places: Places) -> Slices:
    """The disk loses 30 % during the run."""
    return Slices(places.draw_normal(NOISE / 2) + math.log(0.7) * places.slots / (places.shape[1] * SLOTS))


def draw_bimodal(places: Places) -> Slices:
    """A neighbour takes a quarter of the speed, and comes and goes for 10 s on average."""
    return Slices(places.draw_normal(NOISE / 2) + math.log(0.75) * places.read(places.draw_neighbour(10)))


def draw_stalls(places: Places) -> Slices:
    """One slice of 100 gets a tenth, in any arm."""
    return Slices(places.draw_normal() + math.log(0.1) * (places.chance.random(places.shape) < 0.01))


def draw_stalls_of_guests(places: Places) -> Slices:
    """One slice of 100 gets a tenth, in guests only."""
    guest = np.arange(ARMS) > 0
    stalls = guest * (places.chance.random(places.shape) < 0.01)
    return Slices(places.draw_normal() + math.log(0.1) * stalls, 0.01 * math.log(0.1) * guest)


def vary_together(rho: float) -> Noise:
    """The environment of all arms is an AR(1) from block to block."""

    def draw(places: Places) -> Slices:
        environment = places.draw_environment(-BLOCK_S / math.log(rho))
        return Slices(places.draw_normal(NOISE / 2) + NOISE * places.read(environment))

    return draw


def vary_apart(rho: float) -> Noise:
    """Each arm has an AR(1) of its own from block to block, and nothing else."""

    def draw(places: Places) -> Slices:
        memory = -BLOCK_S / math.log(rho)
        arms = [places.draw_environment(memory) for _ in range(ARMS)]
        logs = np.stack([places.read(of_arm)[:, :, arm] for arm, of_arm in enumerate(arms)], axis=2)
        return Slices(NOISE * logs, of_run=NOISE * np.stack([of_arm.mean(axis=1) for of_arm in arms], axis=1))

    return draw


def be_sensitive(memory_s: float) -> Noise:
    """Guests suffer twice as much as the host from an environment that forgets in so many seconds."""

    def draw(places: Places) -> Slices:
        environment = NOISE * places.draw_environment(memory_s)
        sensitivity = np.where(np.arange(ARMS) > 0, 2.0, 1.0)
        logs = places.draw_normal(NOISE / 2) + sensitivity * places.read(environment)
        return Slices(logs, of_run=environment.mean(axis=1, keepdims=True) * sensitivity)

    return draw


NOISES: dict[str, Noise] = {
    "independent": draw_independent,
    "gamma, standard deviation half of the mean": draw_gamma,
    "Student's t, 3 degrees of freedom": draw_heavy_tails,
    "noise of the arms 1 to 6": draw_unequal,
    "drift of 30 %": draw_drift,
    "neighbour of 10 s": draw_bimodal,
    "stalls, 1 % of all slices": draw_stalls,
    "environment AR(1) 0.2": vary_together(0.2),
    "environment AR(1) 0.5": vary_together(0.5),
    "environment AR(1) 0.9": vary_together(0.9),
    "guests twice as sensitive, environment of 0.3 s": be_sensitive(0.3),
    "guests twice as sensitive, 2 s": be_sensitive(2),
    "guests twice as sensitive, 12 s": be_sensitive(12),
    "guests twice as sensitive, 60 s": be_sensitive(60),
    "guests twice as sensitive, 600 s": be_sensitive(600),
    "stalls, 1 % of the guests' slices": draw_stalls_of_guests,
    "each arm its own AR(1) 0.2": vary_apart(0.2),
    "each arm its own AR(1) 0.5": vary_apart(0.5),
    "each arm its own AR(1) 0.9": vary_apart(0.9),
}
