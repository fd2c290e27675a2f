"""A calibration for tests; nothing here was measured."""

from __future__ import annotations

from harness.features.calibrate.calibration import BootNoise, Calibration, Conditions, SliceNoise

CALIBRATION = Calibration(
    written="2026-01-02",
    host="node1",
    disk="optane",
    run="20260102-000000-abcd",
    seed=7,
    groups=40,
    rounds=3,
    false_alarms=2,
    noise_sd=0.021,
    noise_sd_by_job={},
    smallest_detectable={3: 0.0662, 5: 0.0347},
    delay=None,
    conditions=Conditions("6.12", "10.0", "kvm", {}),
    disk_identity="/dev/disk/by-id/nvme-alpha (serial A)",
    slices=(SliceNoise("host", "randread-4k-qd32", 0.2, 120, 0.06, within=2e-4, between=1e-4, best_s=0.346),),
    slice_s=0.35,
    boots=BootNoise("randread-4k-qd32", 5, 3, sd=0.03, sd_of_blocks=0.04, share=(0.0, 0.36, 0.9)),
    lab_kind="bare-metal",
)
