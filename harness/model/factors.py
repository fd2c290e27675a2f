"""In which options two attach modes differ, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.model.attach import Attach
from harness.model.base import Kind
from harness.model.mode import ModeDetail
from harness.model.values import names_of, shown_field


@dataclass(frozen=True, slots=True)
class Factor:
    """One option in which two modes differ. `before` and `after` are its values in words."""

    name: str
    before: str
    after: str
    attached: bool
    """Whether it is an option of how the guest gets the disk, and not of the layout or of the guest."""

    @property
    def words(self) -> str:
        """The option as it is afterwards: "iothread off", "bus sata", "layout qcow2"."""
        return f"{self.name} {self.after}"


def factors(before: ModeDetail, after: ModeDetail) -> tuple[Factor, ...]:
    """Every option in which the modes differ. Another kind of layout, or of attachment, is one option."""
    return (*_layout(before.layout, after.layout), *_attachment(before, after), *_fields(before.guest, after.guest))


def _layout(before: Kind, after: Kind) -> Iterator[Factor]:
    if before == after:
        return
    if before.kind != after.kind:
        yield Factor("layout", before.kind, after.kind, attached=False)
    else:
        yield from _fields(before, after)


def _attachment(before: ModeDetail, after: ModeDetail) -> Iterator[Factor]:
    one, other = before.attach, after.attach
    if isinstance(one, Attach) and isinstance(other, Attach):
        yield from _fields(one, other, attached=True)
    elif one != other:
        before_words, after_words = (side.words if side is not None else "host" for side in (one, other))
        yield Factor("attachment", before_words, after_words, attached=True)


def _fields(before: Any, after: Any, *, attached: bool = False) -> Iterator[Factor]:
    for name in names_of(before):
        if (first := getattr(before, name)) != (second := getattr(after, name)):
            words = _words(before, name, first), _words(after, name, second)
            yield Factor(name.replace("_", " "), words[0], words[1], attached)


def _words(side: object, name: str, value: object) -> str:
    if value is None or value == ():
        return "by default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value.words if isinstance(value, Kind) else shown_field(side, name).strip('"')
