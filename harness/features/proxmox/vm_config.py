"""What runs create on a node, as the creation log records it, and its configuration of VMs and drives. Pure."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from harness.feature import FeatureStorage, NodeStorage, list_brought
from harness.features.proxmox import GuestRules
from harness.lab.created import Thing
from harness.lab.pin import TAG
from harness.model.attach import ATTACH_OPTIONS, Attach, Attachment, Controller
from harness.model.guest import GUEST_MEMORY, GUEST_OPTIONS, GuestOptions, NumaMode
from harness.model.option import BUSES, SCSI_BUSES, Bus, Pve
from harness.model.values import Limited, LimitWay, RateLimit, format_field

LONGEST_SERIAL = 60
CONTROLLERS: Mapping[Controller, str] = {"single": "virtio-scsi-single", "shared": "virtio-scsi-pci"}
"""PVE's names of its SCSI controllers."""
_WAYS: Mapping[LimitWay, str] = {"total": "", "read": "_rd", "write": "_wr"}
"""The suffix of PVE's limits."""
_OFFERED: tuple[Bus, ...] = ("virtio-blk", "virtio-scsi", "sata", *(bus for bus in BUSES if BUSES[bus].scsihw))
CDROM = "ide2"
"""The drive of the guest's own medium: the guest image's ISO, or a template's cloud-init drive."""


def refuse_drive(attach: Attachment) -> str | None:
    """The options of an attachment that Proxmox VE's drives do not have, as a message; None if they have all.

    A device that is passed through is no drive.
    """
    if not isinstance(attach, Attach):
        return None
    if attach.bus not in _OFFERED:
        # On a q35 machine, which all guests here are, PVE's IDE drives are on AHCI.
        return f"a guest of Proxmox VE has no bus {attach.bus}; allowed: {', '.join(_OFFERED)}"
    missing = [what for name, row in ATTACH_OPTIONS.items() if (what := _refuse_option(attach, name, row.pve))]
    return f"Proxmox VE does not offer {', '.join(missing)}" if missing else None


def _refuse_option(attach: Attach, name: str, pve: Pve[Attach] | None) -> str | None:
    """What a drive does not have of an option; None if it has it."""
    if pve is None:
        # With `scsiblock=1`, PVE still made a scsi-hd.
        return f"{name} = {format_field(attach, name)}" if getattr(attach, name) != getattr(Attach(), name) else None
    if name in attach.used and pve.buses and attach.bus not in pve.buses:
        return f"{pve.what} for {attach.bus}"
    return pve.refused(attach)


def list_by_arguments(attach: Attachment) -> list[str]:
    """The options of an attachment that drives lack, and that arguments of QEMU have."""
    used = attach.used if isinstance(attach, Attach) else {}
    return [name for name, row in used.items() if row.pve is not None and row.pve.by_arguments(attach)]  # type: ignore[arg-type] # it is one


def format_drive(source: str, attach: Attachment, serial: str) -> str:
    """PVE's configuration of a drive. `source` is a volume id or a path. Sets every option that affects a figure.

    Raises ValueError for options that `refuse_drive` names, and for a source or serial that the format cannot hold.
    """
    if (why := refuse_drive(attach)) or not isinstance(attach, Attach):
        raise ValueError(why or "a device that is passed through is no drive")
    if "," in source or "," in serial or len(serial) > LONGEST_SERIAL:
        raise ValueError(f"{source} with serial {serial} cannot be written as a drive of Proxmox VE")
    elsewhere = list_by_arguments(attach)
    rows = [
        (name, row.pve) for name, row in ATTACH_OPTIONS.items() if row.pve and row.pve.key and name not in elsewhere
    ]
    everywhere = [(name, pve) for name, pve in rows if pve.always and not pve.buses]
    options: dict[str, str | int] = {pve.key: pve.value(getattr(attach, name)) for name, pve in everywhere}
    options |= {"backup": 0, "serial": serial}
    for name, pve in rows:
        if pve.key not in options and (pve.always or name in attach.used) and attach.bus in (pve.buses or _OFFERED):
            options[pve.key] = pve.value(getattr(attach, name))
    for limited, limit in attach.limits.items():
        options |= _format_limit(limited, limit)
    return ",".join([source, *(f"{key}={value}" for key, value in options.items())])


def _format_limit(limited: Limited, limit: RateLimit) -> dict[str, str | int]:
    """PVE has its bandwidths in MiB/s, but the length of their bursts under the name of bytes."""
    kind, unit = ("iops", 1) if limited.kind == "iops" else ("mbps", MIB)
    way = _WAYS[limited.way]
    options: dict[str, str | int] = {f"{kind}{way}": f"{limit.rate / unit:.15g}"}
    if limit.burst is not None:
        lasting = f"{limited.kind}{way}_max_length"
        options |= {f"{kind}{way}_max": f"{limit.burst / unit:.15g}", lasting: limit.seconds}
    return options


def choose_controller(attachments: Iterable[Attachment]) -> str:
    """The kind of SCSI controller (`scsihw`) of a VM with these disks. Raises ValueError if they need several."""
    disks = [attach for attach in attachments if isinstance(attach, Attach) and attach.bus in SCSI_BUSES]
    kinds = {BUSES[attach.bus].scsihw or CONTROLLERS[attach.controller] for attach in disks} or {CONTROLLERS["single"]}
    if len(kinds) > 1:
        raise ValueError(f"a VM of Proxmox VE has one kind of SCSI controller, not {' and '.join(sorted(kinds))}")
    return kinds.pop()


def choose_drives(buses: Mapping[str, Bus], taken: Iterable[str] = ()) -> dict[str, str]:
    """A drive of the VM (`scsi0`) for each disk in `buses`, by the disk's name. Uses no drive in `taken`.

    Raises ValueError if a bus has too few places.
    """
    occupied = {CDROM, *taken}
    keys: dict[str, str] = {}
    for disk, bus in buses.items():
        facts = BUSES[bus]
        places = (f"{facts.hypervisor}{number}" for number in range(facts.most))
        free = next((place for place in places if place not in occupied), None)
        if free is None:
            raise ValueError(f"a VM of Proxmox VE has room for {facts.most} disks on {bus}")
        occupied.add(free)
        keys[disk] = free
    return keys


def parse_drive(drive: str) -> dict[str, str]:
    """The options of a drive string by name. `file` is its volume or path."""
    source, *options = drive.split(",")
    pairs = (option.partition("=") for option in options)
    return {"file": source.removeprefix("file=")} | {key: value for key, _, value in pairs}


MIB = 1024**2
SHORT = 63
"""The length of a label in a DNS name, and so of a VM's name."""
_POLICIES: Mapping[NumaMode, str] = {"strict": "bind", "preferred": "preferred", "interleave": "interleave"}


def name_vm(run_id: str) -> str:
    """`voh-RUN`, in which characters that are not valid in a DNS name are replaced."""
    return f"{TAG}-{re.sub('[^A-Za-z0-9-]', '-', run_id)}"[:SHORT].rstrip("-")


def write_notes(run_id: str, token: str) -> str:
    """The VM's notes, for its administrator. The token identifies the VM as the one that the run created."""
    return (
        f"virt-overhead run {run_id}: created for this run, and removed at its end or by `virt-overhead reap`. "
        f"To keep this VM, remove this token from its notes: {token}"
    )


def read_token(notes: str) -> str | None:
    """The token in the notes that `write_notes` wrote."""
    match = re.search(r"token from its notes: ([0-9a-f]{32})", notes)
    return match[1] if match else None


def build_marks(run_id: str, token: str) -> dict[str, object]:
    """The marks of a run's VM from its creation on: for its administrator, and for its removal."""
    return {
        "name": name_vm(run_id),
        "tags": f"{TAG};{name_vm(run_id).lower()}",
        "description": write_notes(run_id, token),
    }


def build_shell_parameters(rules: GuestRules, iso: str, vcpus: int) -> dict[str, object]:
    """A VM that boots the volume `iso` and has no disk yet. PVE's defaults (lsi, pc, kvm64) do not apply."""
    return {
        **_build_hardware(rules, vcpus),
        "ostype": "l26",
        "serial0": "socket",
        "vga": "serial0",
        "tablet": 0,
        CDROM: f"{iso},media=cdrom",
        "boot": f"order={CDROM}",
    }


def _build_hardware(rules: GuestRules, vcpus: int) -> dict[str, object]:
    """The settings that all guests of runs have."""
    return {
        "machine": "q35",
        "cpu": rules.cpu,
        "sockets": 1,
        "cores": vcpus,
        "memory": rules.memory // MIB,
        "balloon": 0,
        "kvm": int(rules.kvm),
        "scsihw": CONTROLLERS["single"],
        "agent": "enabled=1",
        "net0": f"virtio,bridge={rules.bridge}",
        "onboot": 0,
    }


def build_size_parameters(guest: GuestOptions, vcpus: int, cpu: str = "host") -> dict[str, object]:
    """The settings for the requested size and placement, with `vcpus` vCPUs. They replace those of every guest.

    `cpu` is the model of guests that request none.

    Raises ValueError for options that `unplaced` names.
    """
    if why := refuse_options(guest):
        raise ValueError(why)
    sockets = guest.topology[0] if guest.topology else 1
    memory = guest.memory or GUEST_MEMORY
    parameters: dict[str, object] = {"cores": vcpus // sockets}
    parameters |= {"sockets": sockets} if guest.topology else {}
    for name in guest.requested:
        if (pve := GUEST_OPTIONS[name].pve) is not None and pve.key:
            parameters[pve.key] = pve.value(getattr(guest, name))
    if guest.hide_kvm:
        parameters["cpu"] = f"{guest.cpu or cpu},hidden=1"
    if guest.numa_nodes or guest.hugepages:
        # Proxmox VE has huge pages only with a NUMA node of the guest that lies on nodes of the host.
        nodes = (guest.numa_nodes or "0").replace(",", ";")
        policy = _POLICIES[guest.numa_mode or "strict"]
        cpus = "0" if vcpus == 1 else f"0-{vcpus - 1}"
        parameters |= {"numa": 1, "numa0": f"cpus={cpus},hostnodes={nodes},memory={memory // MIB},policy={policy}"}
    return parameters


def refuse_options(guest: GuestOptions) -> str | None:
    """The options of a guest that Proxmox VE does not have, as a message with the remedy; None if it has all."""
    refusals = (row.pve.refused(guest) for row in GUEST_OPTIONS.values() if row.pve is not None)
    return next((why for why in refusals if why), None)


def list_root_options(guest: GuestOptions, attach: Attachment | None) -> list[str]:
    """The requested options that Proxmox VE lets only root@pam with a password set, such as arguments of QEMU."""
    of_guest = [
        name
        for name in guest.requested
        if (pve := GUEST_OPTIONS[name].pve) is not None and (pve.root_only or pve.by_arguments(guest))
    ]
    return of_guest + [f"attach.{name}" for name in (list_by_arguments(attach) if attach is not None else ())]


def build_clone_parameters(
    rules: GuestRules, template: Mapping[str, Any], vcpus: int, public_key: str
) -> dict[str, object]:
    """The settings for a clone of the template with the configuration `template`.

    cloud-init adds the run's key. Raises ValueError if cloud-init is requested but the template has no such drive.
    """
    settings = _build_hardware(rules, vcpus)
    if any("cloudinit" in str(value) for key, value in template.items() if DRIVE.fullmatch(key)):
        gateway = f",gw={rules.gateway}" if rules.gateway else ""
        settings |= {
            "ciuser": "root",
            "sshkeys": quote(public_key, safe=""),
            "ipconfig0": f"ip={rules.address}{gateway}" if rules.address else "ip=dhcp",
        }
    elif rules.network == "cloud-init":
        raise ValueError(f"template {rules.template} has no cloud-init drive")
    return settings


def free_ids(vmids: tuple[int, int], used: Collection[int]) -> Iterator[int]:
    """The free ids of the lab's range, in order."""
    return (vmid for vmid in range(vmids[0], vmids[1] + 1) if vmid not in used)


Maker = Literal["lvm", "lvmthin", "directory", "zfs"]
"""What PVE creates on a device under `nodes/NODE/disks/`."""

MOUNTS = "/mnt/pve"
"""Where PVE mounts the directories that it creates on a disk."""

_TYPES: Mapping[Maker, str] = {"lvm": "lvm", "lvmthin": "lvmthin", "directory": "dir", "zfs": "zfspool"}
"""The type of the storage that PVE creates for each."""

DRIVE = re.compile(r"(virtio|scsi|sata|ide|efidisk|tpmstate|unused)\d+|vmstate")
_UUID = re.compile(r"(?:^|,)uuid=([0-9a-fA-F-]+)")


class CreatedVm(Thing):
    """A VM. `token` is random and in its notes from the beginning. `uuid` is its SMBIOS UUID, which its clones lack.

    A clone gets its `uuid` from PVE. It is recorded later, and is empty until then.
    """

    kind: Literal["pve-vm"] = "pve-vm"
    node: str
    vmid: int
    name: str
    token: str
    uuid: str = ""

    @classmethod
    def planned(cls, node: str, vmid: int, run_id: str, *, clone: bool = False) -> CreatedVm:
        """A VM that is about to be created, with a unique identity."""
        token = secrets.token_hex(16)
        return cls(node=node, vmid=vmid, name=name_vm(run_id), token=token, uuid="" if clone else str(uuid.uuid4()))

    @property
    def words(self) -> str:
        return f"VM {self.vmid}"

    def differs(self, config: Mapping[str, Any]) -> str | None:
        """Why the VM with this configuration is not the one that the run created; None if it is."""
        if self.token not in str(config.get("description", "")):
            return f"the notes of VM {self.vmid} do not contain the run's token"
        if (name := str(config.get("name", ""))) != self.name:
            return f"VM {self.vmid} is called {name}, not {self.name}"
        if self.uuid and (shown := read_uuid(config)) != self.uuid:
            return f"the SMBIOS of VM {self.vmid} has the UUID {shown or '(none)'}, not {self.uuid}"
        return None


class CreatedVolume(Thing):
    """A volume that belongs to the VM `vmid` with this token. `identity` is its unique identity, once it exists.

    `in_store`: the run also created its storage. `place` has key and value of its storage if a feature locates it.
    """

    kind: Literal["pve-volume"] = "pve-volume"
    node: str
    volid: str
    vmid: int
    token: str
    in_store: bool = False
    place: tuple[()] | tuple[str, str] = ()
    identity: str = ""

    @property
    def words(self) -> str:
        return f"volume {self.volid}"

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def name(self) -> str:
        """On its storage."""
        return self.volid.partition(":")[2]


class CreatedStore(Thing):
    """A storage on the partition with the UUID `partuuid`, which the run chose when it wrote the partition table."""

    kind: Literal["pve-store"] = "pve-store"
    node: str
    name: str
    maker: Maker
    partuuid: str

    @property
    def words(self) -> str:
        return f"storage {self.name}"

    @property
    def place(self) -> Mapping[str, str]:
        """The properties of its entry in the storage configuration that define its type and its place."""
        where = {
            "lvm": {"vgname": self.name},
            "lvmthin": {"vgname": self.name, "thinpool": self.name},
            "directory": {"path": f"{MOUNTS}/{self.name}"},
            "zfs": {"pool": self.name},
        }
        return {"type": _TYPES[self.maker], "nodes": self.node, **where[self.maker]}

    def differs(self, entry: Mapping[str, Any]) -> str | None:
        """Why this entry of the storage configuration is not the one that the run created; None if it is.

        Its name, type, place and node identify it. Everything else can be set by PVE itself or by its owner, such as
        the mount point of a ZFS pool.
        """
        for key, value in {"storage": self.name, **self.place}.items():
            if (shown := str(entry.get(key, "(not set)"))) != value:
                return f"storage {self.name} has {key} {shown}, not {value}"
        return None

    def others(self, entries: Iterable[Mapping[str, Any]]) -> list[str]:
        """The other storages on the same volume group, pool or directory, which would be removed with it."""
        group, pool, path = (str(self.place.get(key, "\0")) for key in ("vgname", "pool", "path"))
        return [
            str(entry["storage"])
            for entry in entries
            if entry["storage"] != self.name
            and (
                entry.get("vgname") == group
                or f"{entry.get('pool', '')}/".startswith(f"{pool}/")
                or f"{entry.get('path', '')}/".startswith(f"{path}/")
            )
        ]


THINGS: tuple[type[Thing], ...] = (CreatedVm, CreatedVolume, CreatedStore)


def read_uuid(config: Mapping[str, Any]) -> str:
    """The SMBIOS UUID that PVE gives to each VM that it creates or clones; empty if there is none."""
    match = _UUID.search(str(config.get("smbios1", "")))
    return match[1].lower() if match else ""


def list_volumes(config: Mapping[str, Any], vmid: int) -> dict[str, str]:
    """The VM's own volumes, and for each the first setting that names it. Removing the VM removes them.

    Without the cloud-init drive, because PVE may write it again at any time.
    """
    volumes: dict[str, str] = {}
    for key in sorted(config):
        if DRIVE.fullmatch(key.partition(" ")[0]):
            volid = parse_drive(str(config[key]))["file"]
            if parse_owner(volid) == vmid and not _is_cloudinit(volid):
                volumes.setdefault(volid, key)
    return volumes


def parse_owner(volid: str) -> int | None:
    """The VM or container that owns a volume according to its name; None for an ISO or another file, and for a path."""
    storage, separator, name = volid.partition(":")
    if volid.startswith("/") or not separator or not storage:
        return None
    match = re.search(r"(?:^|/)(?:vm|base|subvol|basevol)-(\d+)-[^/]+$", name) or re.match(r"(\d+)/[^/]+$", name)
    return int(match[1]) if match else None


def _is_cloudinit(volid: str) -> bool:
    return re.search(r"vm-\d+-cloudinit(\.(raw|qcow2))?$", volid) is not None


def list_owners(listed: Sequence[Mapping[str, Any]]) -> set[int]:
    """The VMs and containers that own the volumes in the list of a storage."""
    owners = {
        parse_owner(str(volume.get("volid", ""))) for volume in listed if volume.get("content") in ("images", "rootdir")
    }
    owners |= {int(volume["vmid"]) for volume in listed if volume.get("vmid") and volume.get("content") != "backup"}
    return {owner for owner in owners if owner is not None}


def find_node_storage(type_: str) -> NodeStorage | None:
    """What storages of this type need on a node; None if no feature knows the type."""
    return next((storage.on_node for storage in list_brought(FeatureStorage) if storage.kind.space == type_), None)


def locate_storage(entry: Mapping[str, Any]) -> tuple[()] | tuple[str, str]:
    """Key and value AT of a storage with this entry of a node's configuration; empty if no feature locates it."""
    kinds = [storage for storage in list_brought(FeatureStorage) if storage.kind.space == entry.get("type")]
    places = ((kind.key, kind.on_node.locate(entry)) for kind in kinds if kind.on_node is not None)
    return next((place for place in places if place[1]), ())
