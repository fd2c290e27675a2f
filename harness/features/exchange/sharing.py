"""Gives a run to others without what identifies machines and users: as a file, as an entry of the gallery, or by POST.

Withheld are names of hosts and VMs, serial numbers, addresses, users, links and UUIDs of disks, paths outside of the
system's directories, URLs and command lines. What these are is decided by their keys and their form, so a text of a
newer feature is treated like any other.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from harness.analysis import Verdict
from harness.config.problems import read_toml
from harness.errors import ConfigError, ResultsError
from harness.files import write_page
from harness.lab.transport.base import Overdue, within
from harness.report.numbers import count
from harness.results import Run, RunStore
from harness.results.records import FIO_FILES
from harness.results.store import make_stored_adapter, to_stored
from harness.terminal import hide_password_of, hide_passwords, one_line
from harness.units import format_size
from harness.untrusted import parse_json

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
            name
            for key, name in _list_texts(document)
            if key in keys and name and not _PLAIN_NAME.fullmatch(name.lower())
        )
        for number, name in enumerate(names, start=1):
            yield name, f"{word}{number}"
            short, dot, _ = name.partition(".")
            if dot and len(short) > 2 and not _PLAIN_NAME.fullmatch(short.lower()) and short not in names:
                yield short, f"{word}{number}"


def _list_serials(document: Any) -> Iterator[str]:
    """The serial numbers that the document states as such. They may stand elsewhere as well, in the name of a link."""
    for key, text in _list_texts(document):
        stated = [text] if key == "serial" else [first or other for first, other in _STATED_SERIAL.findall(text)]
        yield from (
            serial for serial in stated if len(serial) > 4 and serial != WITHHELD and not serial.startswith(_SIMULATED)
        )


def _list_texts(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The texts of a document with the keys under which they stand, alone or in a list."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _list_texts(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _list_texts(value, key)
    elif isinstance(node, str):
        yield key, node


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


_CONNECT_SECONDS, _ANSWER_SECONDS, _WHOLE_SECONDS = 10, 120, 600
_MOST_SHOWN = 300
"""Bytes of an answer that are shown."""
FORM = "about.toml"
_FIELDS = {
    "machine": "what it is and what it is for: a home server, a node of a cluster",
    "storage": "the disks, and what is built on them",
    "settings": 'what differs from the defaults of the distribution; "none" is an answer',
    "shows": "what a reader can learn from the run, in one sentence",
}
_CONTRIBUTOR = "contributor"


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """Where a run goes to; None for a way that is not wanted. `identities`: nothing is withheld from file and POST."""

    file: Path | None = None
    gallery: Path | None = None
    url: str | None = None
    identities: bool = False


def share_run(store: RunStore, request: ShareRequest) -> Iterator[str]:
    """Share the run as requested. Yields a line about each step; what is sent is described before it is sent.

    Raises ConfigError if something cannot be written or sent, and ResultsError for a run that is not fit for it.
    """
    if request.url is not None:
        _require_web_server(request.url)
    run = store.read_results()
    document = make_stored_adapter().dump_python(to_stored(run), mode="json")
    shared = withhold_identities(document)
    content = document if request.identities else shared.document
    text = _format(content)
    yield f"results.json of run {run.run.id}, {format_size(len(text.encode()))}:"
    if request.identities:
        yield "  everything in it, with names, serial numbers, addresses, paths and command lines"
    else:
        yield from (f"  {line}" for line in describe_shared(run, shared))
    if request.file is not None:
        write_page(request.file, text, option="--share")
        yield f"written: {request.file}"
    if request.gallery is not None:
        yield from _add_to_gallery(run, _format(shared.document), request.gallery)
    if request.url is not None:
        yield f"sending it to {hide_passwords(request.url, is_url=True)}"
        yield post_document(request.url, text)


def post_document(url: str, text: str) -> str:
    """Send the document to the URL as the body of a POST, and return what the server answered in one line.

    A redirection is not followed, because its server is not the one that the user has named. Raises ConfigError.
    """
    import requests  # noqa: PLC0415 - half a second, for this option only

    _require_web_server(url)
    headers = {"Content-Type": "application/json", "User-Agent": f"virt-overhead/{version('virt-overhead')}"}
    limits = (_CONNECT_SECONDS, _ANSWER_SECONDS)

    def send() -> tuple[int, str, str]:
        with requests.post(
            url, data=text.encode(), headers=headers, timeout=limits, allow_redirects=False, stream=True
        ) as answer:
            try:
                first = next(answer.iter_content(_MOST_SHOWN), b"").decode(errors="replace").strip()
            except requests.RequestException:
                first = "with a text that cannot be read"  # The status is what counts.
            return answer.status_code, answer.headers.get("Location", ""), first

    try:
        status, place, first = within(_WHOLE_SECONDS, send)
    except Overdue:
        raise ConfigError(
            f"--post: the server has not answered after {_WHOLE_SECONDS} s, so it is not known whether it has the run",
            hint="ask who runs the server, or write the document with --share FILE and send it yourself",
        ) from None
    except (requests.RequestException, ValueError) as error:
        raise ConfigError(
            f"--post: nothing was stored: {hide_password_of(url, str(error))}",
            hint="check the URL and the network, or write the document with --share FILE and send it yourself",
        ) from error
    reply = hide_passwords(one_line(" ".join(filter(None, (str(status), place, first)))))
    if not 200 <= status < 300:
        raise ConfigError(
            f"--post: the server did not accept the run: {reply}",
            hint="a login belongs into ~/.netrc; if the run has moved, name the new URL" if status < 500 else None,
        )
    return f"the server answered {reply}"


def _require_web_server(url: str) -> None:
    # Not shown: a text that is not a URL may have a password where hide_passwords does not look for one.
    if not url.lower().startswith(("https://", "http://")):
        raise ConfigError("--post: this is not the URL of a web server", hint="for example https://host/runs")


def find_entry_problems(entry: Path) -> Iterator[str]:
    """Why a directory of the gallery is not ready for others: whole, anonymous, with a page and a filled form."""
    store = RunStore.open(entry)
    run, content = store.read_results_and_content()
    if entry.name != run.run.id:
        yield f"the directory must have the name of its run, {run.run.id}"
    yield from (f"results.json: {gap}" for gap in find_gaps(run))
    document = parse_json(content, "results.json", ResultsError)
    yield from (f"results.json identifies a machine or a user: {place}" for place in find_identities(document))
    page = store.report_path
    if not page.is_file() or run.run.id.encode() not in page.read_bytes():
        yield f"index.html is not the page of run {run.run.id}: virt-overhead report {entry}"
    extra = {path.name for path in entry.iterdir()} - {"results.json", "index.html", FORM}
    yield from (f"{name} does not belong there" for name in sorted(extra))
    yield from _find_form_problems(entry / FORM)


def _find_form_problems(path: Path) -> Iterator[str]:
    try:
        form = read_toml(path, what="form", hint="virt-overhead export --gallery DIR writes one")
    except ConfigError as error:
        yield error.with_hint.replace(str(path), FORM)
        return
    for key in (*_FIELDS, _CONTRIBUTOR):
        value = form.get(key, "")
        if not isinstance(value, str):
            yield f"{FORM}: {key} must be text in quotes"
        elif key in _FIELDS and not value.strip():
            yield f"{FORM}: {key} is empty: {_FIELDS[key]}"
    yield from (f"{FORM}: {key} is not a key of the form" for key in form if key not in (*_FIELDS, _CONTRIBUTOR))
    written = {key: value for key, value in form.items() if key in _FIELDS}
    yield from (f"{FORM} identifies a machine or a user: {place}" for place in find_identities(written))


def _add_to_gallery(run: Run, text: str, gallery: Path) -> Iterator[str]:
    """A directory with the anonymous run, its page, and a form to fill."""
    from harness.report.html import write_report  # noqa: PLC0415 - the other ways need no report

    if gaps := list(find_gaps(run)):
        raise ResultsError(
            f"run {run.run.id} is not for the gallery: {'; '.join(gaps)}", hint="choose a run that is complete"
        )
    entry = gallery / run.run.id
    try:
        entry.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{entry} cannot be created: {error.strerror}", hint="name a directory of yours") from error
    write_page(entry / "results.json", text, option="--gallery")
    page = write_report(RunStore.open(entry))
    if not (entry / FORM).exists():
        lines = (f"# {about}\n{key} = {json.dumps('')}\n" for key, about in _FIELDS.items())
        who = f'# a name to show beside the run; may stay empty\n{_CONTRIBUTOR} = ""\n'
        form = "# What the run does not know about itself.\n" + "".join(lines) + who
        write_page(entry / FORM, form, option="--gallery")
    yield f"written: {entry / 'results.json'} and {page}"
    missing = [problem for problem in find_entry_problems(entry) if problem.startswith(FORM)]
    yield f"fill in {entry / FORM}: {len(missing)} to do" if missing else f"{entry} is ready"


def _format(document: Any) -> str:
    return json.dumps(document, allow_nan=False, ensure_ascii=False, indent=1) + "\n"
