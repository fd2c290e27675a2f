"""A directory that looks like the root of a KVM host with one NVMe disk, for what reads sysfs and procfs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.events import Events
from harness.lab.facts import HostFacts
from harness.lab.inventory import DiskById
from harness.lab.lease import lease
from harness.lab.transport.local import LocalRunner

DISK = DiskById("optane", "/dev/disk/by-id/nvme-900P", "PHM1", destroy=True)
QUEUE = "sys/block/nvme0n1/queue"
POLICY = "sys/devices/system/cpu/cpufreq/policy"
FACTS = HostFacts(
    {
        "hostname": "node1",
        "kernel": "6.12.1",
        "cpu": "EPYC",
        "cpus": "2",
        "user": "0",
        "fio": "fio-3.39",
        "qemu": "QEMU emulator version 10.0.2",
        "libvirt": "libvirtd (libvirt) 11.3.0",
    }
)
KSM = "sys/kernel/mm/ksm/run"
_GOVERNORS = (f"{POLICY}0/scaling_governor", f"{POLICY}1/scaling_governor")
_FILES = {
    "proc/filesystems": "nodev\ttracefs\n\text4",
    "proc/mounts": "tracefs /sys/kernel/tracing tracefs rw,nosuid,nodev,noexec,relatime 0 0",
    "sys/kernel/tracing/events/block/block_rq_issue/id": "1267",
    "sys/kernel/tracing/events/kvm/kvm_msi_set_irq/id": "1799",
    "proc/loadavg": "0.02 0.05 0.01 1/120 4711",
    "proc/meminfo": "MemTotal:       33554432 kB\nMemAvailable:   30000000 kB\nHugePages_Total:       0",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority",
    "proc/cmdline": "root=/dev/sda1 quiet",
    "proc/stat": "cpu  100 0 100 9000 0 0 0 0 0 0\ncpu0 50 0 50 4500 0 0 0 0 0 0",
    "proc/vmstat": "pswpin 0\npswpout 0",
    "proc/sys/vm/dirty_ratio": "20",
    "proc/sys/vm/dirty_bytes": "0",
    "proc/sys/vm/dirty_background_ratio": "10",
    "proc/sys/vm/dirty_background_bytes": "0",
    f"{POLICY}0/scaling_governor": "performance",
    f"{POLICY}0/scaling_available_governors": "performance powersave",
    f"{POLICY}1/scaling_governor": "performance",
    f"{POLICY}1/scaling_available_governors": "performance powersave",
    "sys/devices/system/cpu/cpufreq/boost": "1",
    "sys/devices/system/cpu/smt/control": "on",
    "sys/devices/system/cpu/smt/active": "1",
    "sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected",
    "sys/devices/system/cpu/vulnerabilities/spectre_v2": "Mitigation: Retpolines; STIBP: disabled",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/name": "POLL",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/latency": "0",
    "sys/devices/system/cpu/cpu0/cpuidle/state1/name": "C1",
    "sys/devices/system/cpu/cpu0/cpuidle/state1/latency": "2",
    "sys/devices/system/cpu/cpu0/cpuidle/state1/disable": "0",
    "sys/devices/system/cpu/cpuidle/current_driver": "intel_idle",
    "sys/devices/system/cpu/cpuidle/current_governor": "menu",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "sys/devices/system/node/node0/cpulist": "0-1",
    KSM: "0",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/mm/transparent_hugepage/defrag": "always defer [madvise] never",
    "sys/module/kvm_amd/parameters/nested": "1",
    "sys/module/kvm/parameters/halt_poll_ns": "200000",
    "sys/module/pcie_aspm/parameters/policy": "[default] performance powersave",
    f"{QUEUE}/scheduler": "[none] mq-deadline",
    f"{QUEUE}/nr_requests": "1023",
    f"{QUEUE}/rotational": "0",
    f"{QUEUE}/write_cache": "write through",
    f"{QUEUE}/rq_affinity": "1",
    f"{QUEUE}/nomerges": "0",
    f"{QUEUE}/iostats": "1",
    "sys/block/nvme0n1/stat": "10 0 80 1 20 0 160 2 0 3 3",
    "dev/kvm": "",
    "dev/nvme0n1": "",
}


class Tree:
    """Files below `root` in place of the host's. All is well there until something else is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for path, text in _FILES.items():
            self.write(path, text)
        link = root / DISK.id.lstrip("/")
        link.parent.mkdir(parents=True)
        link.symlink_to("../../nvme0n1")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n" if text else "", encoding="utf-8")

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8").strip()

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    @contextmanager
    def leased(self, run_id: str) -> Iterator[None]:
        """A run measures on the host."""
        directory = self.root / "run" / "virt-overhead"
        directory.parent.mkdir(exist_ok=True)
        with lease(LocalRunner("host node1"), "node1", run_id, Events(), directory=str(directory)):
            yield

    def slow(self) -> None:
        """All that `--tune` mends: two governors, a scheduler, merging, accounting."""
        for path in _GOVERNORS:
            self.write(path, "powersave")
        self.write(f"{QUEUE}/scheduler", "none [mq-deadline] bfq")
        self.write(KSM, "1")
        self.write(f"{QUEUE}/iostats", "0")

    @property
    def settings(self) -> dict[str, str]:
        """The files that `--tune` may write, in the words that they hold."""
        return {path: self.read(path) for path in (*_GOVERNORS, f"{QUEUE}/scheduler", f"{QUEUE}/iostats", KSM)}
