"""The command that starts a double."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxmoxer import ProxmoxAPI

from pve_double.__main__ import main

ROOT = Path(__file__).parents[2]
DISK = "/dev/disk/by-id/nvme-optane,PHM1,2G,/dev/nvme0n1"


@pytest.fixture
def said() -> Iterator[dict[str, str]]:
    """What a double prints when it is ready, by the first word."""
    words = ["--listen", "127.0.0.1:0", "--password", "pw of root", "--token", "root@pam!t1=secret", "--disk", DISK]
    faults = ["--fault", '{"kind": "gone", "match": "GET /version"}']
    process = subprocess.Popen(
        [sys.executable, "-m", "pve_double", *words, *faults], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        yield dict(line.strip().split(": ", 1) for line in lines)
    finally:
        process.terminate()
        process.wait(timeout=600)
        process.stdout.close()


def test_it_prints_its_authority_and_where_it_listens_and_serves_what_it_was_told(said: dict[str, str]) -> None:
    address = said["ready"].removeprefix("https://")
    authority = Path(said["CA"])
    assert authority.read_text().startswith("-----BEGIN CERTIFICATE-----")
    root = ProxmoxAPI(address, user="root@pam", password="pw of root", verify_ssl=said["CA"])
    with pytest.raises(Exception, match="596"):
        root("version").get()
    assert root("version").get()["release"] == "9.2"
    token = ProxmoxAPI(address, user="root@pam", token_name="t1", token_value="secret", verify_ssl=said["CA"])
    links = [each.get("by_id_link") for each in token("nodes/pve/disks/list").get()]
    assert links == [None, "/dev/disk/by-id/nvme-optane"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--disk", "/dev/sdb"], "is not BY_ID,SERIAL,SIZE,DEVICE"),
        (["--token", "root@pam"], "is not USER!NAME=VALUE"),
        (
            ["--token", "bench@pve!voh=SECRET"],
            "argument --token: the only user at the start is root@pam, not bench@pve",
        ),
        (["--fault", '{"bogus": 1}'], "is no fault"),
        (["--listen", "127.0.0.1"], "is not ADDRESS:PORT"),
        (["--listen", "127.0.0.1:https"], "is not ADDRESS:PORT"),
        (["--listen", "192.0.2.1:0"], "argument --listen: 192.0.2.1:0: Cannot assign requested address"),
    ],
)
def test_an_option_that_makes_no_sense_is_told(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--password", "x", *words])
    assert message in capsys.readouterr().err
