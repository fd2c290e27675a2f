"""Network cards of a configuration: their parts, MAC addresses for those without, and the bridges they name."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from pve_double import schema
from pve_double.formats import parse
from pve_double.qemu.machine import Config


@dataclass(frozen=True, slots=True)
class Card:
    """One network card of a VM."""

    index: int
    model: str
    address: str
    bridge: str


def is_card(name: str) -> bool:
    return re.fullmatch(r"net\d+", name) is not None


def with_address(value: str) -> str:
    """The card's string with a MAC address of its own, in front as PVE prints it."""
    parts = parse(schema.named_format("net[n]"), value)
    model = parts.pop("model")
    address = parts.pop("macaddr", None) or _new_address()
    return ",".join([f"{model}={address.upper()}", *(f"{name}={text}" for name, text in sorted(parts.items()))])


def add_addresses(options: Config) -> None:
    for name in filter(is_card, list(options)):
        options[name] = with_address(options[name])


def _new_address() -> str:
    return ":".join(["BC", "24", "11", *(f"{octet:02X}" for octet in secrets.token_bytes(3))])


def cards(config: Config) -> list[Card]:
    found = []
    for name in sorted(filter(is_card, config), key=lambda each: int(each[3:])):
        parts = parse(schema.named_format("net[n]"), config[name])
        found.append(Card(int(name[3:]), parts["model"], parts.get("macaddr", ""), parts.get("bridge", "")))
    return found


def guest_address(card: Card) -> str:
    """The address that the double's guest has: made of its MAC address, as if DHCP had given it."""
    high, low = (int(part, 16) for part in card.address.split(":")[-2:])
    return f"10.99.{high}.{max(low, 2)}"
