"""QEMU's devices and iothreads, as its human monitor reports them, from the words of its command. Pure.

Properties that the command does not name have QEMU's defaults, as far as anybody asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

_QUEUES: Mapping[str, Mapping[str, Any]] = {
    "virtio-blk-pci": {"queue-size": 256, "packed": False, "event_idx": True},
    "virtio-scsi-pci": {"virtqueue_size": 256, "packed": False, "event_idx": True},
}
_SECTORS = {"logical_block_size": 512, "physical_block_size": 512}
_POLLING = {"poll-max-ns": 32768, "poll-grow": 0, "poll-shrink": 0, "aio-max-batch": 0}
_SWITCHES = {"on": True, "off": False}


def problem(words: Sequence[str]) -> str | None:
    """What QEMU says of a `-set` that it cannot apply; None if it can apply all."""
    devices = parse(words)
    for option, text in _options(words):
        group, _, rest = text.partition(".")
        id_ = rest.partition(".")[0]
        if option == "-set" and group != "device":
            return f"kvm: -set {text}: There is no option group '{group}'"
        if option == "-set" and id_ not in devices:
            return f'kvm: -set {text}: there is no device "{id_}" defined'
    return None


def parse(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The properties of each device by its id, with what `-set` changes of them."""
    devices: dict[str, dict[str, Any]] = {}
    for option, text in _options(words):
        if option == "-device":
            given = json.loads(text) if text.startswith("{") else _fields(f"driver={text}")
            if "id" in given:
                devices[str(given["id"])] = given
        elif option == "-set" and text.startswith("device."):
            name, _, value = text.partition("=")
            _, id_, key = name.split(".", 2)
            devices.get(id_, {})[key] = _typed(value)
    return devices


def passed_through(words: Sequence[str]) -> list[str]:
    """The addresses of the node's PCI devices that QEMU gives to the guest."""
    return [str(each["host"]) for each in parse(words).values() if each["driver"] == "vfio-pci" and "host" in each]


def iothreads(words: Sequence[str]) -> dict[str, dict[str, int]]:
    """How each iothread polls, by its name."""
    found = {}
    for option, text in _options(words):
        if option == "-object" and text.startswith("iothread,"):
            given = _fields(text.partition(",")[2])
            found[str(given.pop("id"))] = _POLLING | given
    return found


def get_property(words: Sequence[str], path: str, name: str) -> str:
    """What `qom-get` prints."""
    device = parse(words).get(path.removeprefix("/machine/peripheral/"))
    if device is None:
        return f"Error: Device '{path}' not found"
    driver = str(device["driver"])
    queues = dict(_QUEUES.get(driver, {}))
    if driver in _QUEUES:
        queues["num-queues" if driver == "virtio-blk-pci" else "num_queues"] = _count_vcpus(words)
    sectors = _SECTORS if driver in ("virtio-blk-pci", "scsi-hd", "ide-hd") else {}
    known = {**queues, **sectors, **device}
    if name == "iothread" and driver in _QUEUES:
        return json.dumps(f"/objects/{device['iothread']}" if "iothread" in device else "")
    if name == "iothread-vq-mapping" and driver in _QUEUES:
        return json.dumps(device.get(name, []))
    return json.dumps(known[name]) if name in known else f"Error: Property '{driver}.{name}' not found"


def _count_vcpus(words: Sequence[str]) -> int:
    return next((int(text.partition(",")[0]) for option, text in _options(words) if option == "-smp"), 1)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((first, second) for first, second in pairwise(words) if first.startswith("-"))


def _fields(text: str) -> dict[str, Any]:
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: _typed(value) for name, _, value in pairs}


def _typed(value: str) -> Any:
    return int(value) if value.isdigit() else _SWITCHES.get(value, value)
