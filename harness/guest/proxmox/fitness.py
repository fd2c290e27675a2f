"""Whether a node of Proxmox VE can be measured on: what was read from its API against what runs need of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.doctor.findings import Finding, Level, not_available
from harness.errors import HarnessError
from harness.lab.inventory import DiskById, DiskByStorage, HostSpec
from harness.lab.proxmox import ROOT, GuestRules, ProxmoxSpec
from harness.units import format_size

OLDEST = (9, 0)
"""Since then QEMU is told of drives in the form that was tried. Older ones are read back, too, but were not tried."""

FILE_STORAGES = ("dir", "nfs", "cifs", "cephfs", "btrfs")
STORAGE_TYPES: Mapping[str, tuple[str, ...]] = {
    "lvm": ("lvm",),
    "lvm-thin": ("lvmthin",),
    "raw": FILE_STORAGES,
    "qcow2": FILE_STORAGES,
    "zvol": ("zfspool",),
}
"""Types of storage whose volumes are such a layout."""
_VM = (
    *("VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.Disk", "VM.Config.CPU", "VM.Config.Memory"),
    *("VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.GuestAgent.Audit"),
)


@dataclass(frozen=True, slots=True)
class Needed:
    """A privilege on a path of Proxmox VE, and what it is for."""

    path: str
    privilege: str
    purpose: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the API tells of a node. `granted` holds the privileges of the lab's login by path.

    `hvm` says whether its CPU offers virtualisation, None where that is not told; `free_ids` is how many ids of the
    lab's range are free, None where not all volumes can be seen; `reached` is the node that commands run on, empty
    where that is not told; `claims` has of each disk under test who else names it, None where that could not be read.
    """

    version: str
    granted: Mapping[str, frozenset[str]]
    storages: Sequence[Mapping[str, Any]]
    bridges: Sequence[str]
    hvm: bool | None
    free_ids: int | None
    reached: str = ""
    claims: Mapping[str, Sequence[str] | None] = field(default_factory=dict)


def needed(host: HostSpec, spec: ProxmoxSpec) -> list[Needed]:
    """Every privilege that runs on this host need with this lab file."""
    rules = spec.guest
    found = [Needed("/vms", each, "guests") for each in _VM]
    found.append(Needed(f"/sdn/zones/localnetwork/{rules.bridge}", "SDN.Use", "the guest's network card"))
    if rules.template is None:
        path = f"/storage/{rules.iso_storage}"
        found += [Needed(path, each, "the guest's ISO") for each in ("Datastore.AllocateTemplate", "Datastore.Audit")]
    else:
        found += [Needed("/vms", each, "clones of a template") for each in ("VM.Clone", "VM.Config.Cloudinit")]
        found.append(Needed("/storage", "Datastore.AllocateSpace", "clones of a template"))
    if rules.network == "static":
        found.append(Needed("/vms", "VM.GuestAgent.Unrestricted", "setting the guest's address"))
    if rules.template is not None and rules.reach == "direct":
        found.append(Needed("/vms", "VM.GuestAgent.FileRead", "the host key of a clone"))
    if host.disks:
        found += [Needed("/", each, "layouts on a disk") for each in ("Sys.Audit", "Sys.Modify")]
        found += [
            Needed("/storage", each, "layouts on a disk") for each in ("Datastore.Allocate", "Datastore.AllocateSpace")
        ]
    for storage in dict.fromkeys(each for disk in host.stored for each in disk.storages.values()):
        privileges = ("Datastore.AllocateSpace", "Datastore.Audit")
        found += [Needed(f"/storage/{storage}", each, f"volumes on {storage}") for each in privileges]
    return found


def examine_node(host: HostSpec, spec: ProxmoxSpec, seen: NodeState) -> list[Finding]:
    """Every check's findings, in the order in which they are shown."""
    return [
        _version(seen),
        _reached(spec, seen),
        *_privileges(host, spec, seen),
        _passthrough(spec),
        _virtualisation(spec.guest, seen),
        *_media(spec.guest, seen),
        _bridge(spec.guest, seen),
        _ids(spec.guest, seen),
        *(finding for disk in host.disks if isinstance(disk, DiskById) for finding in [_claimed(disk, seen)]),
        *(finding for disk in host.stored for finding in _stored(disk, seen)),
    ]


def unreachable(error: HarnessError) -> Finding:
    """The finding where the API could not be asked."""
    why = "guests and storages are made through it"
    return Finding("Proxmox VE", error.message, Level.PROBLEM, why, error.hint or "")


def _version(seen: NodeState) -> Finding:
    why = "what is asked of QEMU by a drive's options has changed with versions, and so have privileges"
    number = tuple(int(part) for part in seen.version.split(".")[:2] if part.isdigit())
    if number >= OLDEST:
        return Finding("Proxmox VE", seen.version, Level.OK, why)
    return Finding("Proxmox VE", seen.version, Level.ADVICE, why, f"upgrade to {OLDEST[0]}.{OLDEST[1]} or newer")


def _reached(spec: ProxmoxSpec, seen: NodeState) -> Finding:
    why = "disks are looked at over SSH, and who uses them is asked of the API: it has to be one node"
    if seen.reached in ("", spec.api.node):
        return Finding("node", spec.api.node, Level.OK, why)
    advice = "correct node under [host.NAME.api], or address under [host.NAME]"
    return Finding("node", f"the API's is {spec.api.node}, SSH leads to {seen.reached}", Level.PROBLEM, why, advice)


def _privileges(host: HostSpec, spec: ProxmoxSpec, seen: NodeState) -> Iterator[Finding]:
    why = "what is missing shows as a 403 in the middle of a run"
    missing: dict[str, list[Needed]] = {}
    for each in needed(host, spec):
        if each.privilege not in seen.granted.get(each.path, frozenset()):
            missing.setdefault(each.purpose, []).append(each)
    if not missing:
        yield Finding("privileges", f"{spec.api.who} has all that are needed", Level.OK, why)
    for purpose, lacking in missing.items():
        said = ", ".join(f"{each.privilege} on {each.path}" for each in lacking)
        advice = f"give {spec.api.who} a role with them: docs/proxmox.md has one"
        yield Finding("privileges", f"for {purpose} {spec.api.who} lacks {said}", Level.PROBLEM, why, advice)


def _passthrough(spec: ProxmoxSpec) -> Finding:
    why = f"Proxmox VE takes the path of a device from {ROOT} with a password alone, and from no token"
    if spec.api.why_no_devices is None:
        return Finding("passthrough", f"{spec.api.who} may pass devices", Level.OK, why)
    advice = f"log in as {ROOT} without a token where the modes passthrough and partition are wanted"
    return Finding("passthrough", f"not with {spec.api.who}: its modes are skipped", Level.ADVICE, why, advice)


def _virtualisation(rules: GuestRules, seen: NodeState) -> Finding:
    why = "without it Proxmox VE starts no guest with KVM; emulated ones tell nothing of real hardware"
    if seen.hvm is None:
        return not_available("virtualisation", why)
    value = "the CPU offers it" if seen.hvm else "the CPU does not offer it"
    if seen.hvm == rules.kvm:
        return Finding("virtualisation", value, Level.OK, why)
    if seen.hvm:
        return Finding("virtualisation", f"{value}, the lab file has kvm = false", Level.ADVICE, why, "kvm = true")
    return Finding("virtualisation", value, Level.PROBLEM, why, "enable it in the firmware, or write kvm = false")


def _media(rules: GuestRules, seen: NodeState) -> Iterator[Finding]:
    if rules.template is not None:
        return
    why = "guests boot from an ISO, which is uploaded there"
    found = {str(each["storage"]): each for each in seen.storages}.get(rules.iso_storage)
    if found is None or "iso" not in str(found.get("content", "")).split(","):
        value = f"{rules.iso_storage} {'takes no ISOs' if found else 'is not there'}"
        suitable = [str(each["storage"]) for each in seen.storages if "iso" in str(each.get("content", "")).split(",")]
        yield Finding(
            "ISO storage", value, Level.PROBLEM, why, f"iso_storage = one of: {', '.join(suitable) or 'none'}"
        )
    else:
        free = format_size(int(found.get("avail", 0)))
        yield Finding("ISO storage", f"{rules.iso_storage}, {free} free", Level.OK, why)


def _bridge(rules: GuestRules, seen: NodeState) -> Finding:
    why = "the guest is reached over SSH through it"
    if rules.bridge in seen.bridges:
        return Finding("bridge", rules.bridge, Level.OK, why)
    known = ", ".join(seen.bridges) or "none"
    return Finding("bridge", f"{rules.bridge} is not there", Level.PROBLEM, why, f"bridge = one of: {known}")


def _ids(rules: GuestRules, seen: NodeState) -> Finding:
    first, last = rules.vmids
    why = "each guest takes one for as long as it lasts; one whose earlier VM has left a volume is not taken"
    if seen.free_ids is None:
        advice = "see pvesm status on the node, and give the login Datastore.Audit on its storages"
        return Finding("VM ids", "not known: not all volumes can be seen", Level.PROBLEM, why, advice)
    value = f"{seen.free_ids} of {last - first + 1} are free"
    if seen.free_ids:
        return Finding("VM ids", value, Level.OK, why)
    return Finding("VM ids", value, Level.PROBLEM, why, "virt-overhead reap, or widen vmids in the lab file")


def _claimed(disk: DiskById, seen: NodeState) -> Finding:
    check, why = f"{disk.name}: owner", "a disk that a storage or a guest names is never written to"
    claims = seen.claims.get(disk.name)
    if claims is None:
        advice = "VM.Audit on /vms and Datastore.Audit on /storage"
        return Finding(check, "not known: not all guests and storages can be seen", Level.PROBLEM, why, advice)
    if claims:
        advice = "take it out of that configuration if nothing on it is needed, or name another disk"
        return Finding(check, "; ".join(claims), Level.PROBLEM, why, advice)
    return Finding(check, "no storage and no guest names it", Level.OK, why)


def _stored(disk: DiskByStorage, seen: NodeState) -> Iterator[Finding]:
    known = {str(each["storage"]): each for each in seen.storages}
    why = "a storage's type decides which layout its volumes are"
    for layout, storage in disk.storages.items():
        check = f"{disk.name}: storage"
        found = known.get(storage)
        allowed = STORAGE_TYPES[layout]
        if found is None:
            yield Finding(check, f"{storage} is not there", Level.PROBLEM, why, f"one of: {', '.join(known)}")
        elif found["type"] not in allowed:
            value = f"{storage} is of type {found['type']}, whose volumes are not {layout}"
            yield Finding(check, value, Level.PROBLEM, why, f"name one of type {' or '.join(allowed)}")
        elif "images" not in str(found.get("content", "")).split(",") or not found.get("active"):
            value = f"{storage} is not active, or not for disk images"
            yield Finding(check, value, Level.PROBLEM, why, f"pvesm set {storage} --content images")
        else:
            free = format_size(int(found.get("avail", 0)))
            yield Finding(check, f"{storage} ({found['type']}) for {layout}, {free} free", Level.OK, why)
