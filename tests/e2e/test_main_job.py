"""The main job for real: nested KVM, LVM, ext4, libvirt, SSH and fio, nothing mocked."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from harness.model.layout import Lvm
from tests.e2e.machines import latest, measure


def test_every_selected_cell_of_the_smoke_profile_is_measured_under_kvm(tmp_path: Path) -> None:
    # Small reads and large writes: two of four workloads that a quickstart measures. Writes to the host's cache need
    # nothing but its CPU, whose speed under emulation changes too much within the three seconds of their slices.
    selected = "optane and (randread or seqwrite and not cached)"
    done = measure(tmp_path, "-k", selected, "--profile=smoke", "--rounds=1", "-v", f"--junit-xml={tmp_path}/junit.xml")
    assert done.returncode == 0, done.stdout
    run = latest(tmp_path)
    assert (run.run.status, run.lab.accel, run.lab.representative) == ("complete", "kvm", False)
    guest = run.provenance["guest"]
    assert isinstance(guest, dict)
    assert guest["hypervisor"] == "KVM"
    cycles = run.provenance["cycles"]
    assert isinstance(cycles, dict)
    assert (cycles["counted"], bool(cycles["why"])) == (False, True)

    assert len(run.cells) == 9
    for cell in run.cells:
        arms = {"host", "twin", "guest"} - ({"guest", "twin"} if cell.mode == "host" else set())
        arms -= {"twin"} if cell.mode == "passthrough" else set()
        for metric in ("iops", "bw", "lat_mean", "clat_mean"):
            measured = {arm for arm in ("host", "twin", "guest") if getattr(cell.metrics[metric], arm)}
            assert measured == arms, f"{cell.id} {metric}"
        assert all((tmp_path / "latest" / raw).read_text().startswith("{") for raw in cell.raw)
    lvm = run.cell("optane-lvm-randread-4k-qd32")
    assert lvm.mode_detail.layout == Lvm()
    assert (lvm.effective.cache, lvm.effective.aio, lvm.effective.iothread) == ("none", "native", True)
    command = (tmp_path / "latest" / "raw" / "optane-batch1-round1-host.json.command").read_text()
    # By the kernel's path: that is what the guard has checked.
    assert re.search(r"filename=/dev/dm-[0-9]+\n", command)
    cached = run.cell("optane-raw-cached-randread-4k-qd32")
    assert cached.effective.qemu_cache_direct is False
    assert cached.cached is not None
    assert cached.cached.reads["guest"].share > 0.9

    html = (tmp_path / "latest" / "index.html").read_text()
    assert "KVM nested under emulation" in html
    assert all(cell.id in html for cell in run.cells)
    assert "optane-lvm-randread-4k-qd32" in done.stdout
    assert "fio ran" in done.stdout
    properties = {
        each.get("name")
        for case in ET.parse(tmp_path / "junit.xml").iter("testcase")
        if "optane-lvm-randread-4k-qd32" in case.get("name", "")
        for each in case.iter("property")
    }
    assert {"iops.host", "iops.twin", "iops.guest", "iops.overhead", "verdict"} <= properties
