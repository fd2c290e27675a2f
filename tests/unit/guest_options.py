"""Every option of a guest, each changed once: what golden files, schema, read-back and Proxmox VE are tried with."""

from __future__ import annotations

from collections.abc import Mapping

from harness.model.guest import ANY_GUEST, GIB, MIB, GuestOptions

GUEST_OPTIONS: Mapping[str, GuestOptions] = {
    "study-1": GuestOptions(preset="study-1").over(ANY_GUEST),
    "vcpus": GuestOptions(vcpus=4),
    "topology": GuestOptions(sockets=2, cores=2, threads=2),
    "memory": GuestOptions(memory=GIB),
    "machine": GuestOptions(machine="pc-q35-9.2"),
    "pc": GuestOptions(machine="pc"),
    "cpu-max": GuestOptions(cpu="max"),
    "cpu-model": GuestOptions(cpu="EPYC-Milan"),
    "pins": GuestOptions(pin_vcpus=("2", "3"), pin_iothreads="4-5", pin_emulator="1"),
    "one-place": GuestOptions(pin_vcpus=("2-3",), pin_iothreads="2-3", pin_emulator="2-3"),
    "numa": GuestOptions(numa_nodes="0"),
    "numa-preferred": GuestOptions(numa_nodes="0", numa_mode="preferred"),
    "numa-interleave": GuestOptions(numa_nodes="0-1", numa_mode="interleave"),
    "hugepages": GuestOptions(hugepages=2 * MIB),
    "large-hugepages": GuestOptions(memory=GIB, hugepages=GIB),
    "polling": GuestOptions(poll_max_ns=32768, poll_grow=2, poll_shrink=4),
    "no-polling": GuestOptions(poll_max_ns=0),
    "haltpoll": GuestOptions(idle="haltpoll", haltpoll_ns=500_000),
    "poll": GuestOptions(idle="poll"),
    "hidden": GuestOptions(hide_kvm=True),
    "files": GuestOptions(
        emulator="/opt/qemu/bin/qemu-system-x86_64", kernel="/boot/vmlinuz", initramfs="/boot/initrd.img"
    ),
    "image": GuestOptions(image="/images/debian.qcow2", fio="/opt/fio/bin/fio"),
    "image-uefi": GuestOptions(image="/images/debian.qcow2", firmware="uefi", fio="install"),
}
