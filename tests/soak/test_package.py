"""The main job from an installed wheel: in the embedded lab, and on this machine with a loop device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.machines import latest
from tests.package.installed import Installed, install
from tests.soak.test_local_host import fio_in_path, local_libvirt

__all__ = ["fio_in_path", "local_libvirt"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("package"))


def test_the_main_job_runs_from_the_wheel_in_the_embedded_lab(installed: Installed) -> None:
    options = ("--lab=embedded", "--profile=smoke", "--rounds=1", "--junit-xml=junit.xml")
    done = installed.run("virt-overhead", "run", "-k", "optane and randread and (host or lvm)", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    run = latest(installed.directory / "reports")
    assert (run.run.status, run.lab.accel) == ("complete", "kvm")
    metric = run.cell("optane-lvm-randread-4k-qd32").metrics["iops"]
    assert None not in (metric.host, metric.twin, metric.guest)
    assert "optane-lvm-randread-4k-qd32" in (installed.directory / "junit.xml").read_text()
    assert (installed.directory / "reports" / "latest" / "index.html").is_file()


@pytest.mark.usefixtures("local_libvirt")
def test_a_loop_device_of_this_machine_is_measured_from_the_wheel(
    installed: Installed, tmp_path: Path, fio_in_path: dict[str, str]
) -> None:
    lab = installed.directory / "lab.toml"
    lab.write_text(
        f'[host.here]\nkind = "local"\n[host.here.disk.optane]\nfile = "{tmp_path}/disk.img"\nsize = "1 GiB"\n'
        "destroy = true\n"
    )
    selected = "optane and randread and raw and not cached"
    done = installed.run("virt-overhead", "run", "-k", selected, "--profile=smoke", "--rounds=1", env=fio_in_path)
    lab.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    run = latest(installed.directory / "reports")
    assert (run.lab.kind, run.run.status) == ("local", "complete")
    assert run.cell("optane-raw-randread-4k-qd32").metrics["iops"].guest
