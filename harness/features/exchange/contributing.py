"""Gives a run to others: as a file, as an entry of the gallery, or by HTTP POST. sharing.py makes the document."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, ResultsError
from harness.features.exchange.sharing import describe_shared, find_gaps, find_identities, withhold_identities
from harness.files import write_page
from harness.results import Run, RunStore
from harness.results.store import make_stored_adapter, to_stored
from harness.terminal import hide_password_of, hide_passwords, one_line
from harness.units import format_size
from harness.untrusted import parse_json

_CONNECT_SECONDS, _ANSWER_SECONDS = 10, 120
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
    try:
        with requests.post(
            url, data=text.encode(), headers=headers, timeout=limits, allow_redirects=False, stream=True
        ) as answer:
            first = next(answer.iter_content(_MOST_SHOWN), b"").decode(errors="replace").strip()
            status, place = answer.status_code, answer.headers.get("Location", "")
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
    # What is no URL may still have a password, at a place where it cannot be found.
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
    if not store.report_path.is_file() or run.run.id not in store.report_path.read_text(encoding="utf-8"):
        yield f"index.html is not the page of run {run.run.id}: virt-overhead report {entry}"
    extra = {path.name for path in entry.iterdir()} - {"results.json", "index.html", FORM}
    yield from (f"{name} does not belong there" for name in sorted(extra))
    yield from _find_form_problems(entry / FORM)


def _find_form_problems(path: Path) -> Iterator[str]:
    try:
        form = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        yield f"{FORM} cannot be read: {error}"
        return
    yield from (
        f"{FORM}: {key} is empty: {about}" for key, about in _FIELDS.items() if not str(form.get(key, "")).strip()
    )
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
