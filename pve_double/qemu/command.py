"""The QEMU command of a VM, as `qm showcmd` prints it, and what PVE checks while it makes it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from pve_double.errors import PveError
from pve_double.formats import parse
from pve_double.qemu import blockdev, network, numa
from pve_double.qemu.blockdev import Image, chipset
from pve_double.qemu.drives import Drive, drives
from pve_double.qemu.machine import Config, agent_enabled, boot_order, cpus
from pve_double.qemu.machine_type import check_version
from pve_double.schema import COUNTS
from pve_double.state import Node
from pve_double.storage.volumes import is_volume_id, split_volume_id
from pve_double.tasks import TaskLog

KVM = "/usr/bin/kvm"
RUN = "/var/run/qemu-server"
_LEGACY_FIRST = {"c": 100, "d": 200, "n": 300}
_IOTHREAD = "iothread is only valid with virtio disk or virtio-scsi-single controller, ignoring"


def image_of(node: Node, drive: Drive) -> Image | None:
    """What backs a drive; None for an empty CD drive. The host's own CD drive has no path on a node without one."""
    if drive.file == "none":
        return None
    if drive.file == "cdrom":
        return Image("", "raw")
    if not is_volume_id(drive.file):
        return Image(drive.file, "raw")
    storage = node.store.config(split_volume_id(drive.file)[0])
    rbd = None
    if storage.kind == "rbd" and not storage.maps_images:
        pool, *namespace, image = storage.image_of(split_volume_id(drive.file)[1]).split("/")
        rbd = {"pool": pool, "image": image, "conf": storage.rbd_login["conf"], "user": storage.rbd_login["id"]}
        rbd |= {"namespace": namespace[0]} if namespace else {}
    return Image(node.store.path(drive.file), node.store.parse(drive.file).format, storage.kind, rbd)


def drive_command(node: Node, config: Config, drive: Drive, log: TaskLog) -> list[str]:
    """The arguments of one drive, with PVE's warnings about it."""
    if drive.file == "cdrom":
        log.warn("no physical CD-ROM available, ignoring")
    if blockdev.iothread_ignored(drive, config):
        log.warn(_IOTHREAD)
    return blockdev.arguments(drive, image_of(node, drive), config, boot_indexes(config).get(drive.key))


def check_blockdev(drive: Drive, config: Config, prefix: str) -> None:
    if chipset(config).has_blockdev:
        blockdev.check(drive, prefix)


def blockdev_text(drive: Drive, image: Image) -> str:
    """The -blockdev of a drive, for QEMU's complaint about it."""
    return json.dumps(blockdev.blockdev(drive, image), sort_keys=True)


def boot_indexes(config: Config) -> dict[str, int]:
    """QEMU's bootindex by device: from 100 on in order, or PVE's legacy order with the CD drives at 200."""
    boot = parse("pve-qm-boot", config["boot"].strip()) if "boot" in config else {"legacy": "cdn"}
    if "legacy" not in boot:
        return {device: 100 + place for place, device in enumerate(boot_order(config))}
    first = {letter: 100 * (place + 1) for place, letter in enumerate(boot["legacy"])}
    cdroms = [drive.key for drive in drives(config) if drive.is_cdrom]
    found = {key: first["d"] + place for place, key in enumerate(cdroms)} if "d" in first else {}
    if "c" in first and "bootdisk" in config:
        found[config["bootdisk"]] = first["c"]
    if "n" in first:
        found |= {f"net{card.index}": first["n"] + card.index for card in network.cards(config)}
    return found


def build(node: Node, vmid: int, config: Config, log: TaskLog) -> list[str]:
    """The whole command. Raises PveError where PVE finds that the VM cannot be started so."""
    q35 = chipset(config).q35
    if config.get("kvm", "1") == "1" and not node.settings.kvm:
        raise PveError(
            "KVM virtualisation configured, but not available. Either disable in VM configuration or enable in BIOS."
        )
    check_version(config, node.name)
    words = [*_affinity(config), KVM, *_identity(vmid, config), *_processors(node, config), *numa.memory(config)]
    found = list(drives(config))
    for drive in found:
        if chipset(config).has_blockdev and drive.file != "none" and not drive.flag("scsiblock"):
            words += ["-object", blockdev.throttle_group(drive)]
    words += _chipset_devices(q35, config) + _serial_ports(vmid, config) + _agent(vmid, config)
    words += ["-device", "ahci,id=ahci0,multifunction=on,bus=pci.0,addr=0x7"] if _has_sata(found) else []
    words += _passed_through(node, config)
    made: set[str] = set()
    for drive in found:
        words += _once(drive_command(node, config, drive, log), made)
    words += _network(node, vmid, config)
    words += ["-machine", _machine(config, q35=q35)]
    return words + shlex.split(config.get("args", ""))


def _once(arguments: list[str], made: set[str]) -> list[str]:
    """Without a controller that an earlier drive brought already."""
    words: list[str] = []
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        if re.search(r",id=scsihw\d", value):
            if value in made:
                continue
            made.add(value)
        words += [name, value]
    return words


def _has_sata(found: list[Drive]) -> bool:
    return any(drive.bus == "sata" for drive in found)


def _affinity(config: Config) -> list[str]:
    return ["/usr/bin/taskset", "--cpu-list", "--all-tasks", config["affinity"]] if "affinity" in config else []


def _identity(vmid: int, config: Config) -> list[str]:
    words = ["-id", str(vmid), "-name", f"{config.get('name', f'vm{vmid}')},debug-threads=on", "-no-shutdown"]
    words += ["-chardev", f"socket,id=qmp,path={RUN}/{vmid}.qmp,server=on,wait=off", "-mon", "chardev=qmp,mode=control"]
    words += ["-chardev", "socket,id=qmp-event,path=/var/run/qmeventd.sock,reconnect-ms=5000"]
    words += ["-mon", "chardev=qmp-event,mode=control", "-pidfile", f"{RUN}/{vmid}.pid", "-daemonize"]
    return words + (["-smbios", f"type=1,{config['smbios1']}"] if "smbios1" in config else [])


def cpu_model(config: Config) -> str:
    """The processor that the guest sees: the configured one, or the default with and without KVM."""
    default = "kvm64" if config.get("kvm", "1") == "1" else "qemu64"
    return str(parse("pve-vm-cpu-conf", config.get("cpu", "")).get("cputype") or default)


def _processors(node: Node, config: Config) -> list[str]:
    count, sockets = cpus(config), int(config.get("sockets", "1"))
    if count > node.settings.cpus:
        raise PveError(f"MAX {node.settings.cpus} vcpus allowed per VM on this node")
    model, has_kvm = cpu_model(config), config.get("kvm", "1") == "1"
    features = ",enforce,+kvm_pv_eoi,+kvm_pv_unhalt,+lahf_lm,+sep" if model == "kvm64" and has_kvm else ""
    features = features or (",+kvm_pv_eoi,+kvm_pv_unhalt" if has_kvm else "")
    if parse("pve-vm-cpu-conf", config.get("cpu", "")).get("hidden") == "1":
        # The flags are in the order of their names (resolve_cpu_flags in CPUConfig.pm).
        features = features.replace(",+kvm_pv_eoi", ",kvm=off,+kvm_pv_eoi") or ",kvm=off"
    topology = f"{count},sockets={sockets},cores={count // sockets},maxcpus={count}"
    boot = "menu=on,strict=on,reboot-timeout=1000,splash=/usr/share/qemu-server/bootsplash.jpg"
    return ["-smp", topology, "-nodefaults", "-boot", boot, "-cpu", f"{model}{features}"]


def _chipset_devices(q35: bool, config: Config) -> list[str]:
    if q35:
        words = ["-readconfig", "/usr/share/qemu-server/pve-q35-4.0.cfg"]
    else:
        words = ["-device", "pci-bridge,id=pci.1,chassis_nr=1,bus=pci.0,addr=0x1e"]
        words += ["-device", "pci-bridge,id=pci.2,chassis_nr=2,bus=pci.0,addr=0x1f"]
    if config.get("scsihw") == blockdev.SINGLE:
        words += ["-device", "pci-bridge,id=pci.3,chassis_nr=3,bus=pci.0,addr=0x5"]
    words += ["-device", f"vmgenid,guid={config['vmgenid']}"] if config.get("vmgenid", "0") != "0" else []
    if parse({"named": "vga"}, config.get("vga", "std")).get("type", "std") == "std":
        words += ["-device", f"VGA,id=vga,bus={'pcie.0,addr=0x1' if q35 else 'pci.0,addr=0x2'}"]
    if config.get("balloon") != "0":
        words += ["-device", "virtio-balloon-pci,id=balloon0,bus=pci.0,addr=0x3,free-page-reporting=on"]
    return words


def _serial_ports(vmid: int, config: Config) -> list[str]:
    words: list[str] = []
    for index in range(4):
        port = config.get(f"serial{index}")
        if port is not None:
            where = f"socket,id=serial{index},path={RUN}/{vmid}.serial{index},server=on,wait=off"
            where = where if port == "socket" else f"serial,id=serial{index},path={port}"
            words += ["-chardev", where, "-device", f"isa-serial,chardev=serial{index}"]
    return words


def _agent(vmid: int, config: Config) -> list[str]:
    if not agent_enabled(config):
        return []
    return [
        *("-chardev", f"socket,path={RUN}/{vmid}.qga,server=on,wait=off,id=qga0"),
        *("-device", "virtio-serial,id=qga0,bus=pci.0,addr=0x8"),
        *("-device", "virtserialport,chardev=qga0,name=org.qemu.guest_agent.0"),
    ]


def _network(node: Node, vmid: int, config: Config) -> list[str]:
    words: list[str] = []
    indexes = boot_indexes(config)
    models = {"virtio": "virtio-net-pci"}
    for card in network.cards(config):
        if card.bridge and card.bridge not in node.settings.bridges:
            raise PveError(f"bridge '{card.bridge}' does not exist")
        script = "script=/usr/libexec/qemu-server/pve-bridge,downscript=/usr/libexec/qemu-server/pve-bridgedown"
        tap = f"type=tap,id=net{card.index},ifname=tap{vmid}i{card.index},{script}"
        words += ["-netdev", tap + (",vhost=on" if card.model == "virtio" else "")]
        device = f"{models.get(card.model, card.model)},mac={card.address},netdev=net{card.index},bus=pci.0"
        device += f",addr={0x12 + card.index:#x},id=net{card.index}"
        device += ",rx_queue_size=1024,tx_queue_size=256" if card.model == "virtio" else ""
        index = indexes.get(f"net{card.index}")
        words += ["-device", device + (f",bootindex={index}" if index is not None else "")]
    return words


def _passed_through(node: Node, config: Config) -> list[str]:
    """The PCI devices of the node that the VM gets, as PVE::QemuServer::PCI finds and writes them."""
    words: list[str] = []
    used: set[str] = set()
    for index in range(COUNTS["hostpci"]):
        if not (text := config.get(f"hostpci{index}")):
            continue
        given = parse("pve-qm-hostpci", text)
        pcie = given.get("pcie") == "1"
        if pcie and not chipset(config).q35:
            raise PveError("q35 machine model is not enabled")
        found = _functions(node, given)
        if twice := used & set(found):
            raise PveError(f"device '{min(twice)}' assigned more than once")
        used |= set(found)
        for place, address in enumerate(found):
            part = f".{place}" if len(found) > 1 else ""
            where = f"ich9-pcie-port-{index + 1},addr=0x0" if pcie else f"pci.0,addr={0x10 + index:#x}"
            device = f"vfio-pci,host={address},id=hostpci{index}{part},bus={where}{part}"
            device += ",rombar=0" if place == 0 and given.get("rombar") == "0" else ""
            words += ["-device", device + (",multifunction=on" if place == 0 and part else "")]
    return words


def _functions(node: Node, given: Mapping[str, str]) -> list[str]:
    """The addresses of all functions of the device, or of the first alternative of its mapping on this node."""
    if "host" in given and "mapping" in given:
        raise PveError("Cannot set both 'host' and 'mapping'.")
    asked = given.get("host", "")
    if mapping := given.get("mapping"):
        entries = [
            dict(part.partition("=")[::2] for part in each.split(",")) for each in node.pci_mappings.get(mapping, [])
        ]
        asked = next((each["path"] for each in entries if each.get("node") == node.name), "")
        if not asked:
            raise PveError(f"PCI device mapping not found for '{mapping}'")
    if not asked:
        raise PveError("Either 'host' or 'mapping' must be set.")
    known = node.executor.pci_devices()
    found: list[str] = []
    for each in asked.split(";"):
        whole = each if each.count(":") == 2 else f"0000:{each}"
        functions = [address for address in known if address == whole or address.startswith(f"{whole}.")]
        if not functions:
            raise PveError(f"no PCI device found for '{each}'")
        found += functions
    return found


def _machine(config: Config, *, q35: bool) -> str:
    kind = config.get("machine", "q35" if q35 else "pc").partition(",")[0].removeprefix("type=")
    acceleration = "" if config.get("kvm", "1") == "1" else "accel=tcg,"
    return f"{acceleration}hpet=off,type={kind}" + ("" if "+" in kind else "+pve0")


def printed(words: list[str], *, pretty: bool) -> str:
    """As `qm showcmd` prints it; with `pretty` each option on a line of its own."""
    text = shlex.join(words)
    return text.replace(" -", " \\\n  -") if pretty else text
