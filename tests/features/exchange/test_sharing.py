"""A run for others: nothing in it identifies a machine or a user, it is still a run, and it is sent only on request."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.config.names import RunId
from harness.errors import ConfigError
from harness.features.exchange import sharing
from harness.features.exchange.sharing import (
    ShareRequest,
    find_entry_problems,
    find_gaps,
    find_identities,
    share_run,
    withhold_identities,
)
from harness.results import Run, RunStore
from harness.results.store import make_stored_adapter, parse_run, to_stored
from tests.build import synthetic_run

GALLERY = Path(__file__).parents[3] / "docs" / "gallery"
IDENTITIES = {
    "acme-kvm7": "name of a machine",
    "acme-kvm7.example.org": "name of a machine",
    "PHM1234567890": "serial",
    "S4EWNX0R123456": "serial number",
    "192.0.2.77": "address",
    "2001:db8::7": "address",
    "52:54:00:12:34:56": "address",
    "jane": "user",
    "webshop": "name of a machine",
    "customers": "path",
    "c0ffee00-1234-4321-abcd-0123456789ab": "UUID",
    "eui.0025385b71b12345": "WWN",
    "iqn.2026-01.org.example:disk1": "name of a target",
}
TEXTS = (
    "acme-kvm7: /dev/disk/by-id/nvme-INTEL_S4EWNX0R123456 (serial S4EWNX0R123456) does not answer at 192.0.2.77:22",
    "acme-kvm7.example.org is [2001:db8::7], its card 52:54:00:12:34:56; login jane@192.0.2.77.",
    "the file /srv/customers/disk.raw of VM webshop, read with ssh://jane@acme-kvm7/srv/customers",
    "eui.0025385b71b12345, c0ffee00-1234-4321-abcd-0123456789ab and iqn.2026-01.org.example:disk1",
    "nvme-INTEL_S4EWNX0R123456 is the disk (serial S4EWNX0R123456)",
)
HARMLESS = (
    "/usr/bin/fio is fio-3.39; QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)",
    "fio, QEMU and the disk agree within 0.1% at 12:30:45; 8.45 I/Os in flight, 32 requested, s/IO, B/s",
    "0000:01:00.0 at /sys/bus/pci/devices, /dev/nvme0n1 and /dev/disk/by-id/withheld",
    "guest:lvm against twin:lvm: 52:54 of 127.0.0.1",
)


def dump(run: Run) -> Any:
    return make_stored_adapter().dump_python(to_stored(run), mode="json")


@pytest.fixture(scope="module")
def run() -> Run:
    """A run whose every free text names machines and users."""
    run = synthetic_run()
    host: dict[str, Any] = {
        "hostname": "acme-kvm7.example.org",
        "serial": "PHM1234567890",
        "cpu": "AMD EPYC 7313",
        "notes": [*TEXTS],
    }
    cells = tuple(replace(cell, host="acme-kvm7", notes=TEXTS) for cell in run.cells)
    command = "/home/jane/bin/virt-overhead run --lab=/home/jane/acme.toml -k 'lvm and randread' --profile=smoke"
    provenance: dict[str, Any] = {**run.provenance, "host": host, "guest": {"borrowed": "webshop", "text": TEXTS[2]}}
    return replace(
        run,
        run=replace(run.run, command=command, scenarios=dict.fromkeys(run.run.scenarios, TEXTS[0])),
        lab=replace(run.lab, host="acme-kvm7", why=TEXTS[1]),
        provenance=provenance,
        cells=cells,
    )


def test_nothing_that_identifies_a_machine_or_a_user_is_left(run: Run) -> None:
    before, shared = dump(run), withhold_identities(dump(run))
    text = json.dumps(shared.document)
    assert [identity for identity in IDENTITIES if identity not in json.dumps(before)] == []
    assert [identity for identity in IDENTITIES if identity in text] == []
    assert {*IDENTITIES.values()} - {"serial", "user"} <= set(shared.withheld) | {"name of a machine"}
    assert "AMD EPYC 7313" in text
    assert shared.document["run"]["command"] == "virt-overhead run -k 'lvm and randread' --profile=smoke"


def test_it_is_still_the_run_with_all_of_its_figures(run: Run) -> None:
    document = withhold_identities(dump(run)).document
    shared = parse_run(document, json.dumps(document).encode())
    assert [cell.id for cell in shared.cells] == [cell.id for cell in run.cells]
    assert [cell.metrics for cell in shared.cells] == [cell.metrics for cell in run.cells]
    assert {cell.host for cell in shared.cells} == {shared.lab.host} == {"host1"}
    assert list(find_identities(document)) == []


def test_the_places_with_identities_are_named(run: Run) -> None:
    places = list(find_identities(dump(run)))
    assert {"run.command", "lab.host", "lab.why", "provenance.host.hostname", "cells[0].notes[0]"} <= set(places)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_identifies_nobody_stays(text: str) -> None:
    assert withhold_identities({"notes": [text]}).document == {"notes": [text]}


@pytest.mark.parametrize("text", TEXTS)
def test_a_second_time_nothing_changes(text: str) -> None:
    names = {"host": "acme-kvm7", "hostname": "acme-kvm7.example.org", "borrowed": "webshop"}
    once = withhold_identities({**names, "note": text})
    assert once.withheld
    again = withhold_identities(once.document)
    assert (again.document, again.withheld) == (once.document, {})


def test_a_run_that_is_not_whole_says_why(run: Run) -> None:
    assert list(find_gaps(run)) == []
    broken = replace(run, run=replace(run.run, status="interrupted"), provenance={})
    assert list(find_gaps(broken)) == ["it is interrupted", "it does not describe the host"]


class Receiver(BaseHTTPRequestHandler):
    """A server that keeps what is posted, and answers with `answer`."""

    answer = (201, {"Location": "/runs/1"}, b"stored\nas 1")
    received: tuple[tuple[str, str, bytes], ...] = ()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).received += ((self.path, self.headers["Content-Type"], body),)
        status, headers, text = type(self).answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> type[Receiver]:
    class One(Receiver):
        received = ()

    return One


@pytest.fixture
def url(receiver: type[Receiver]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), receiver) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.fixture
def stored(run: Run, tmp_path: Path) -> Path:
    store = RunStore.create(tmp_path / "reports", RunId(run.run.id))
    store.write_results(run)
    return store.path


def test_it_is_posted_as_the_file_that_share_writes_and_is_described_before(
    stored: Path, url: str, receiver: type[Receiver], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shared.json"
    assert main(["export", str(stored), "--share", str(file), "--post", f"{url}/runs"]) == 0
    ((path, kind, body),) = receiver.received
    assert (path, kind, body) == ("/runs", "application/json", file.read_bytes())
    printed = capsys.readouterr().out
    assert "acme" not in printed + body.decode()
    sent, _, answered = printed.partition("sending it to ")
    assert "names that stay: scenarios optane; disks and storages optane; modes host, passthrough" in sent
    assert "withheld: " in sent
    assert "the server answered 201 /runs/1 stored as 1" in answered


def test_identities_are_sent_only_if_they_are_asked_for(
    stored: Path, url: str, receiver: type[Receiver], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(stored), "--post", url, "--identities"]) == 0
    assert b"acme-kvm7" in receiver.received[0][2]
    assert "everything in it, with names, serial numbers" in capsys.readouterr().out
    assert main(["export", str(stored), "--identities"]) == 2
    assert "--identities: nothing is shared" in capsys.readouterr().err


def test_an_answer_that_cannot_be_read_does_not_hide_that_the_run_was_accepted(
    stored: Path, url: str, receiver: type[Receiver]
) -> None:
    receiver.answer = (201, {"Content-Encoding": "gzip"}, b"not gzip")
    *_, last = share_run(RunStore.open(stored), ShareRequest(url=url))
    assert last == "the server answered 201 with a text that cannot be read"


def test_a_server_that_never_ends_its_answer_is_given_up(
    stored: Path, url: str, receiver: type[Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(request: Receiver) -> None:
        with contextlib.suppress(OSError):
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                request.wfile.write(b"x")
                time.sleep(0.05)

    monkeypatch.setattr(receiver, "do_POST", drip)
    monkeypatch.setattr(sharing, "_WHOLE_SECONDS", 0.5)
    with pytest.raises(ConfigError, match=r"has not answered after 0\.5 s, so it is not known whether it has the run"):
        list(share_run(RunStore.open(stored), ShareRequest(url=url)))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ((403, {}, b"not from you"), "did not accept the run: 403 not from you"),
        ((307, {"Location": "https://elsewhere.example/runs"}, b""), "307 https://elsewhere.example/runs"),
        ((500, {}, b"\x1b[2Jbroken"), "did not accept the run: 500"),
    ],
)
def test_a_refusal_is_an_error_and_a_redirection_is_not_followed(
    stored: Path, url: str, receiver: type[Receiver], answer: Any, shown: str
) -> None:
    receiver.answer = answer
    with pytest.raises(ConfigError) as error:
        list(share_run(RunStore.open(stored), ShareRequest(url=url)))
    assert shown in error.value.message
    assert "\x1b" not in error.value.message
    assert len(receiver.received) == 1


def test_a_password_of_the_url_is_not_shown(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(stored), "--post", "http://me:canary-1f@127.0.0.1:1/runs"]) != 0
    out, err = capsys.readouterr()
    assert "canary-1f" not in out + err
    assert "nothing was stored" in err


@pytest.mark.parametrize("address", ["ftp://me:canary-1f@127.0.0.1/runs", "me:canary-1f@127.0.0.1/runs"])
def test_a_password_of_what_is_no_url_is_not_shown(
    address: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(stored), "--post", address]) == 2
    out, err = capsys.readouterr()
    assert "canary-1f" not in out + err
    assert "not the URL of a web server" in err
    assert "sending" not in out


def test_a_secret_in_the_answer_of_the_server_is_not_shown(stored: Path, url: str, receiver: type[Receiver]) -> None:
    receiver.answer = (201, {"Location": "https://me:canary-1f@host/runs/1?token=canary-2f"}, b"")
    answered = list(share_run(RunStore.open(stored), ShareRequest(url=url)))[-1]
    assert "canary" not in answered
    assert "@host/runs/1" in answered


def test_an_entry_of_the_gallery_is_ready_when_its_form_is_filled(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = tmp_path / "gallery"
    assert main(["export", str(stored), "--gallery", str(gallery)]) == 0
    entry = gallery / stored.name
    assert f"fill in {entry / 'about.toml'}: 4 to do" in capsys.readouterr().out
    assert "acme" not in (entry / "index.html").read_text()
    form = entry / "about.toml"
    filled = form.read_text().replace('machine = ""', 'machine = "a home server"').replace('= ""', '= "none"')
    form.write_text(filled)
    assert list(find_entry_problems(entry)) == []
    form.write_bytes(b"\xef\xbb\xbf" + filled.replace("\n", "\r\n").encode())
    assert list(find_entry_problems(entry)) == []
    form.write_text(filled.replace('"a home server"', "1"))
    assert list(find_entry_problems(entry)) == ["about.toml: machine must be text in quotes"]
    form.write_bytes(filled.encode("utf-16"))
    assert list(find_entry_problems(entry)) == ["about.toml: line 1: not valid UTF-8; save the file as UTF-8"]
    form.write_text(filled.replace("a home server", "the server at 192.0.2.77"))
    (entry / "raw").mkdir()
    assert list(find_entry_problems(entry)) == [
        "raw does not belong there",
        "about.toml identifies a machine or a user: machine",
    ]


def test_a_run_that_is_not_whole_is_no_entry(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore.create(tmp_path / "reports", RunId(run.run.id))
    store.write_results(replace(run, run=replace(run.run, status="interrupted")))
    assert main(["export", str(store.path), "--gallery", str(tmp_path / "gallery")]) != 0
    assert "is not for the gallery: it is interrupted" in capsys.readouterr().err
    assert not (tmp_path / "gallery").exists()


@pytest.mark.parametrize(
    "entry", [path.parent for path in sorted(GALLERY.glob("*/results.json"))], ids=lambda path: str(path.name)
)
def test_every_run_of_the_gallery_is_whole_and_anonymous_and_in_its_list(entry: Path) -> None:
    assert list(find_entry_problems(entry)) == []
    assert f"]({entry.name}/index.html)" in (GALLERY / "README.md").read_text()


def test_the_gallery_has_only_entries_and_its_list() -> None:
    entries = {path.parent.name for path in GALLERY.glob("*/results.json")}
    assert {path.name for path in GALLERY.iterdir()} == {*entries, "README.md"}
