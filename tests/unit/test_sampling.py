"""The host's counters at format_times times: the real program on this machine, which reads files of a test."""

from __future__ import annotations

import platform
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.counters import CounterFiles, Sample, VmThreads, format_times, parse_samples, read_samples
from harness.lab.transport.local import LocalRunner

RUNNER = LocalRunner("host here")
DISK = next((path.name for path in Path("/sys/class/block").iterdir()), "")


@pytest.fixture(autouse=True)
def _perl() -> None:
    if shutil.which("perl") is None:
        pytest.skip("perl is not installed")
    if not DISK:
        pytest.skip("this machine shows no block device")


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def samples(times: Sequence[float], files: CounterFiles | None = None) -> list[Sample]:
    files = files or CounterFiles((DISK,))
    return parse_samples(read_samples(RUNNER, files, times, deadline=30), files, RUNNER.name, expected=len(times))


def test_the_counters_are_read_at_the_planned_times_in_order() -> None:
    start = uptime() + 0.4
    times = [start, start + 0.05, start + 0.3, start + 1.0]
    found = samples(times)
    assert len(found) == 4
    for each, at in zip(found, times, strict=True):
        assert at - 0.001 <= each.begun <= at + 0.3
        assert each.begun <= each.ended <= each.begun + 0.2
    assert [each.begun for each in found] == sorted(each.begun for each in found)
    totals = [each.counters.cpu.total for each in found]
    assert totals == sorted(totals)
    assert totals[-1] > totals[0]


def test_what_happens_between_two_times_is_in_the_second_one_only() -> None:
    start = uptime() + 0.4
    found: list[Sample] = []
    thread = threading.Thread(target=lambda: found.extend(samples([start, start + 0.8])))
    thread.start()
    while uptime() < start + 0.15:
        time.sleep(0.02)
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass
    thread.join()
    before, after = (each.counters.host.busy_s for each in found)
    assert after - before >= 0.25


def test_the_clock_source_is_that_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = tmp_path / "current_clocksource"
    monkeypatch.setattr("harness.lab.counters.CLOCK", str(clock))
    assert samples([uptime()])[0].counters.clock is None
    clock.write_text("kvm-clock\n")
    start = uptime() + 0.5
    found: list[Sample] = []
    thread = threading.Thread(target=lambda: found.extend(samples([start, start + 0.6])))
    thread.start()
    while uptime() < start + 0.2:
        time.sleep(0.02)
    clock.write_text("acpi_pm\n")
    thread.join()
    assert [each.counters.clock for each in found] == ["kvm-clock", "acpi_pm"]


def test_times_that_have_passed_are_read_at_once() -> None:
    now = uptime()
    found = samples([now - 5, now - 3])
    assert all(now - 0.01 <= each.begun <= now + 2 for each in found)


def test_without_times_nothing_is_read() -> None:
    assert samples([]) == []


def test_times_are_in_seconds_of_uptime() -> None:
    assert format_times([12.3449, 100.0]) == "12.3449 100.0000\n"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="/proc/uptime is read on other machines")
def test_the_time_of_a_reading_is_finer_than_proc_uptime() -> None:
    start = uptime() + 0.2
    found = samples([start + number / 100 for number in range(8)])
    assert any(abs(each.begun * 100 - round(each.begun * 100)) > 0.01 for each in found)
    assert all(abs(each.begun - each.ended) < 60 for each in found)


def test_a_disk_that_is_gone_is_an_error_that_names_it_before_the_first_time() -> None:
    started = time.monotonic()
    with pytest.raises(HostError, match=r"host here: its counters cannot be read: .*voh-gone/stat: the device is gone"):
        samples([uptime() + 600], CounterFiles((DISK, "voh-gone")))
    assert time.monotonic() - started < 300, "it did not wait for the time of the reading"


def test_a_guest_that_is_gone_is_an_error_that_names_its_file() -> None:
    gone = VmThreads(999999999, {999999999: "main"}, kvm=None)
    with pytest.raises(HostError, match="/proc/999999999/stat is gone"):
        samples([uptime()], CounterFiles((DISK,), gone))


def test_counters_that_this_kvm_does_not_have_are_none() -> None:
    files = CounterFiles((), VmThreads(1, {1: "main"}, kvm="/nowhere"))
    (found,) = samples([uptime()], files)
    assert found.counters.kvm is None
    assert found.counters.qemu is not None


def test_fewer_samples_than_times_are_an_error() -> None:
    files = CounterFiles((DISK,))
    printed = read_samples(RUNNER, files, [0.0, 0.0], deadline=30)
    assert len(parse_samples(printed, files, "host here", expected=2)) == 2
    with pytest.raises(HostError, match="host here: its counters were read 2 times instead of 3"):
        parse_samples(printed, files, "host here", expected=3)
    with pytest.raises(HostError, match="were read 0 times instead of 1"):
        parse_samples("", files, "host here", expected=1)
