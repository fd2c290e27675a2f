"""A run for others: results.json without what identifies machines and their users, and the check that it is so. Pure.

Withheld are names of hosts and VMs, serial numbers, addresses, users, links and UUIDs of disks, paths outside of the
system's directories, URLs and command lines. What these are is decided by their keys and their form, so a text of a
newer feature is treated like any other.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

from harness.analysis import Verdict
from harness.report.numbers import count
from harness.results import Run
from harness.results.records import FIO_FILES

WITHHELD = "withheld"

_HOST_KEYS = frozenset({"host", "hostname", "node"})
_VM_KEYS = frozenset({"borrowed", "borrow", "vm"})
_SECRET_KEYS = frozenset({"serial", "wwn", "uuid", "address", "mac", "user"})
_LINKING_KEYS = frozenset({"id", "scenario", "disk", "mode", "name", "group", "cell", "job", "reference", "raw", "arm"})
"""Names by which parts of the document refer to each other. They stay, and the command prints them."""
_VERSION_KEYS = frozenset({"firmware", "kernel", "driver"})
"""Four numbers with dots may be a version there."""
_KEPT_OPTIONS = ("-k", "-m", "--profile", "--time", "--rounds", "--seed", "--max-writes", "--breakdown")
_PLAIN_NAME = re.compile(r"(?:lab|host|here|local|localhost|pve|node|kvm|debian|ubuntu|guest|server|this|vm)-?\d*")
"""Names that identify no machine."""
_SYSTEM = re.compile(
    r"/(?:usr|bin|sbin|sys|proc|boot|opt/fio|run/virt-overhead|var/lib/(?:virt-overhead|vz|libvirt))(?:/|$)"
    r"|/(?:dev|tmp|srv|mnt|var|etc|run|root|home|withheld)/?$"
    r"|/dev/(?:(?:sd|vd|xvd|hd)[a-z]+\d*|nvme\d+(?:n\d+)?(?:p\d+)?|md\d+|dm-\d+|loop\d+|zd\d+|rbd\d+|sr\d+|kvm|null)$"
    r"|/dev/disk/by-[a-z]+/withheld$"
)
"""Paths that are the same on every machine."""
_TOKENS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("URL", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>)]+"), "https://withheld"),
    (
        "link of a disk",
        re.compile(r"/dev/disk/(by-(?:id|uuid|partuuid|label|partlabel|path|diskseq))/[^\s\"'<>,;)]+"),
        rf"/dev/disk/\1/{WITHHELD}",
    ),
    ("serial number", re.compile(r"(\(serial )[^)]+|(\bserial=)[^\s,;\"']+"), rf"\1\2{WITHHELD}"),
    ("UUID", re.compile(r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), WITHHELD),
    ("name of a target", re.compile(r"\b(?:iqn|nqn)\.\d{4}[^\s\"',;]+"), WITHHELD),
    ("WWN", re.compile(r"(?i)\b(?:wwn-0x|eui\.|naa\.|0x)[0-9a-f]{16,}\b"), WITHHELD),
    ("user", re.compile(r"[\w.+-]+@[\w.-]+(?:![\w-]+)?"), f"user@{WITHHELD}"),
    ("address", re.compile(r"(?i)\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b"), WITHHELD),
)
_STATED_SERIAL = re.compile(r"\(serial ([^)]+)\)|\bserial=([^\s,;\"']+)")
_SIMULATED = "sim_"
"""How the serial numbers of the embedded lab begin."""
_PATH = re.compile(r"(?<![\w.</])/[\w.@+%-]+(?:/[\w.@+%-]+)*")
_IPV4 = re.compile(r"(?<![\w.+-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?i)(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])")


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A results.json without identities, and how many different ones of each kind were in it."""

    document: Any
    withheld: Mapping[str, int]


def withhold_identities(document: Any) -> SharedRun:
    """The document of a results.json without what identifies machines and users. A second time, nothing changes."""
    cleaner = _Cleaner(dict(_name_machines(document)), frozenset(_list_serials(document)))
    cleaned = cleaner.clean(document, "")
    return SharedRun(cleaned, dict(Counter(kind for kind, _ in cleaner.withheld)))


def find_identities(document: Any) -> Iterator[str]:
    """The places of a document that still identify machines or users: "provenance.host.hostname"."""
    yield from dict.fromkeys(_list_differences(document, withhold_identities(document).document))


def find_gaps(run: Run) -> Iterator[str]:
    """Why a run is not whole, so that others cannot judge its figures; nothing if it is."""
    if run.lab.imported:
        yield "its figures are of another tool"
    if run.run.status != "complete":
        yield f"it is {run.run.status}"
    if run.unknown:
        yield f"another version wrote {', '.join(run.unknown)}"
    missing = [cell.id for cell in run.cells if not cell.measured and cell.skipped is None]
    if missing:
        yield f"{count(len(missing), 'cell')} without figures and without a reason, the first is {missing[0]}"
    if not any(cell.usable and not cell.is_baseline for cell in run.cells):
        yield "no cell with a guest has valid figures"
    if not run.provenance.get("host"):
        yield "it does not describe the host"


def describe_shared(run: Run, shared: SharedRun) -> Iterator[str]:
    """What the document of this run has, which names stay in it, and what was withheld: a line each."""
    void = sum(cell.verdict is Verdict.VOID for cell in run.cells)
    cells = count(len(run.cells), "cell") + (f" ({void} void)" if void else "")
    yield f"values, intervals and verdicts of {cells}, the configuration that was read back, versions and settings"
    models = dict.fromkeys(disk.facts.name for disk in run.disks if disk.facts.name)
    host = run.provenance.get("host")
    cpu = host.get("cpu") if isinstance(host, dict) else None
    yield f"hardware: {', '.join([str(cpu or 'a CPU that is not known'), *models])}"
    names = [
        ("scenarios", dict.fromkeys(cell.scenario for cell in run.cells)),
        ("disks and storages", dict.fromkeys(cell.disk for cell in run.cells)),
        ("modes", dict.fromkeys(cell.mode for cell in run.cells)),
    ]
    yield "names that stay: " + "; ".join(f"{what} {', '.join(some)}" for what, some in names)
    if files := run.provenance.get(FIO_FILES):
        yield f"the texts of your fio files for {', '.join(files) if isinstance(files, dict) else 'scenarios'}"
    kinds = [f"{number} x {kind}" for kind, number in sorted(shared.withheld.items())]
    yield f"withheld: {', '.join(kinds) or 'nothing'}"


def _name_machines(document: Any) -> Iterator[tuple[str, str]]:
    """The names of hosts and VMs in the document, and what replaces each."""
    for keys, word in ((_HOST_KEYS, "host"), (_VM_KEYS, "vm")):
        names = dict.fromkeys(
            name for name in _list_values(document, keys) if name and not _PLAIN_NAME.fullmatch(name.lower())
        )
        for number, name in enumerate(names, start=1):
            yield name, f"{word}{number}"
            short, dot, _ = name.partition(".")
            if dot and len(short) > 2 and not _PLAIN_NAME.fullmatch(short.lower()) and short not in names:
                yield short, f"{word}{number}"


def _list_serials(node: Any, key: str = "") -> Iterator[str]:
    """The serial numbers that the document states as such. They may stand elsewhere as well, in the name of a link."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _list_serials(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _list_serials(value, key)
    elif isinstance(node, str):
        stated = [node] if key == "serial" else [first or other for first, other in _STATED_SERIAL.findall(node)]
        yield from (
            serial for serial in stated if len(serial) > 4 and serial != WITHHELD and not serial.startswith(_SIMULATED)
        )


def _list_values(node: Any, keys: frozenset[str]) -> Iterator[str]:
    """The texts that stand under these keys, wherever they are."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in keys and isinstance(value, str):
                yield value
            else:
                yield from _list_values(value, keys)
    elif isinstance(node, list):
        for value in node:
            yield from _list_values(value, keys)


class _Cleaner:
    """Replaces identities. `withheld` collects the kinds and texts of those that were found."""

    def __init__(self, machines: Mapping[str, str], serials: frozenset[str]) -> None:
        self._machines = machines
        self._serials = (
            re.compile("|".join(map(re.escape, sorted(serials, key=len, reverse=True)))) if serials else None
        )
        longest_first = sorted(machines, key=len, reverse=True)
        self._names = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
        self.withheld: set[tuple[str, str]] = set()

    def clean(self, node: Any, key: str) -> Any:
        """A part of the document that stands under this key."""
        if isinstance(node, dict):
            return {
                self._clean_text(name, "name"): self.clean(value, name)
                for name, value in node.items()
                if not (name == "sha256" and isinstance(value, dict))  # of the images: they hold keys of this machine
            }
        if isinstance(node, list):
            return [self.clean(value, key) for value in node]
        return self._clean_value(node, key) if isinstance(node, str) else node

    def _clean_value(self, text: str, key: str) -> str:
        if key == "command":
            return self._replace("command line", text, self._clean_text(_shorten_command(text), key))
        if key == "from" or (key in _SECRET_KEYS and text):
            return self._replace("path" if key == "from" else key, text, WITHHELD)
        return self._clean_text(text, key)

    def _clean_text(self, text: str, key: str) -> str:
        for kind, pattern, instead in _TOKENS:
            text = self._substitute(kind, pattern, partial(_expand, instead), text)
        if self._serials is not None:
            text = self._substitute("serial number", self._serials, lambda _match: WITHHELD, text)
        text = self._substitute("path", _PATH, _clean_path, text)
        if key not in _VERSION_KEYS:
            text = self._substitute("address", _IPV4, _clean_address, text)
        text = self._substitute("address", _IPV6, _clean_address, text)
        if self._machines and key not in _LINKING_KEYS:
            text = self._substitute("name of a machine", self._names, lambda match: self._machines[match[0]], text)
        return text

    def _substitute(
        self, kind: str, pattern: re.Pattern[str], instead: Callable[[re.Match[str]], str], text: str
    ) -> str:
        return pattern.sub(lambda match: self._replace(kind, match[0], instead(match)), text)

    def _replace(self, kind: str, text: str, instead: str) -> str:
        if text != instead:
            self.withheld.add((kind, text))
        return instead


def _expand(instead: str, match: re.Match[str]) -> str:
    return match.expand(instead)


def _clean_path(match: re.Match[str]) -> str:
    return match[0] if _SYSTEM.match(match[0]) else f"/{WITHHELD}"


def _clean_address(match: re.Match[str]) -> str:
    try:
        address = ip_address(match[0])
    except ValueError:
        return match[0]
    return match[0] if address.is_loopback or address.is_unspecified else WITHHELD


def _shorten_command(command: str) -> str:
    """The program of a command line with the options that say what was measured, and how long."""
    try:
        words = shlex.split(command)
    except ValueError:
        return WITHHELD
    program = words[0].rpartition("/")[2] if words else ""
    if program not in ("pytest", "virt-overhead"):
        return WITHHELD
    return shlex.join([program, *(["run"] if words[1:2] == ["run"] else []), *_keep_options(words[1:])])


def _keep_options(words: Iterable[str]) -> Iterator[str]:
    wanted = False
    for word in words:
        if wanted and not word.startswith("-"):
            yield word
        option, equals, _ = word.partition("=")
        is_kept = option in _KEPT_OPTIONS
        if is_kept:
            yield word
        wanted = is_kept and not equals


def _list_differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """The places at which two documents of one form differ; a key that differs is a difference of its parent."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            yield place or "the top level"
        for key in (key for key in one if key in other):
            yield from _list_differences(one[key], other[key], f"{place}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list):
        for number, (value, cleaned) in enumerate(zip(one, other, strict=True)):
            yield from _list_differences(value, cleaned, f"{place}[{number}]")
    elif one != other:
        yield place
