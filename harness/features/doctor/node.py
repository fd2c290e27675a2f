"""The doctor's findings about a node of Proxmox VE: its state from its API, and what runs need. Only reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import ConfigError, HarnessError, HostError, LabUnavailable, SafetyError
from harness.features.doctor.machine import HostFinding, Level, make_finding
from harness.features.proxmox import ROOT, GuestRules, ProxmoxSpec
from harness.features.proxmox.client import (
    TO_CREATE_VOLUMES,
    Client,
    Needed,
    PveError,
    list_needed_to_borrow,
    open_client,
)
from harness.features.proxmox.creation import list_used_ids
from harness.features.proxmox.disk_users import read_claims, read_node
from harness.features.proxmox.layouts import STORAGE_TYPES
from harness.features.proxmox.vm_config import free_ids
from harness.lab.inventory import DiskById, DiskByStorage, HostSpec
from harness.lab.transport.base import Runner
from harness.units import format_size

OLDEST = (9, 0)
"""The oldest tested version. Older versions pass drives to QEMU in another form, which is read back but not tested."""

_VM = (
    *("VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.Disk", "VM.Config.CPU", "VM.Config.Memory"),
    *("VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.GuestAgent.Audit"),
)


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the API reports of a node. `granted` has the privileges of the lab's login by path.

    `hvm` is whether its CPU offers virtualisation, None if unknown. `free_ids` is the number of free ids in the lab's
    range, None if the login may not see all volumes. `reached` is the node on which commands run, empty if they run on
    a machine that is not a node.
    `claims` has the users of each disk under test, None if they could not be read.
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
    privileges = list_needed_to_borrow(spec.borrowed) if spec.borrowed else _needed_to_boot(spec.guest)
    if host.disks:
        privileges += [Needed("/", name, "layouts on a disk") for name in ("Sys.Audit", "Sys.Modify")]
        privileges += [
            Needed("/storage", name, "layouts on a disk") for name in ("Datastore.Allocate", "Datastore.AllocateSpace")
        ]
    for storage in dict.fromkeys(name for disk in host.stored for name in disk.names):
        privileges += [Needed(f"/storage/{storage}", volume, f"volumes on {storage}") for volume in TO_CREATE_VOLUMES]
    return privileges


def _needed_to_boot(rules: GuestRules) -> list[Needed]:
    privileges = [Needed("/vms", name, "guests") for name in _VM]
    privileges.append(Needed(f"/sdn/zones/localnetwork/{rules.bridge}", "SDN.Use", "the guest's network card"))
    if rules.template is None:
        path = f"/storage/{rules.iso_storage}"
        privileges += [
            Needed(path, name, "the guest's ISO") for name in ("Datastore.AllocateTemplate", "Datastore.Audit")
        ]
    else:
        privileges += [Needed("/vms", name, "clones of a template") for name in ("VM.Clone", "VM.Config.Cloudinit")]
        privileges.append(Needed("/storage", "Datastore.AllocateSpace", "clones of a template"))
    if rules.network == "static":
        privileges.append(Needed("/vms", "VM.GuestAgent.Unrestricted", "setting the guest's address"))
    if (storage := rules.backup_storage) is not None:
        on = {"VM.Backup": "/vms", "Datastore.AllocateSpace": f"/storage/{storage}"}
        privileges += [Needed(path, name, "backups of guests") for name, path in on.items()]
    if rules.template is not None and rules.reach == "direct":
        privileges.append(Needed("/vms", "VM.GuestAgent.FileRead", "the host key of a clone"))
    return privileges


def examine_node(host: HostSpec, spec: ProxmoxSpec, state: NodeState) -> list[HostFinding]:
    """The findings of all checks, in the order in which they are shown."""
    return [
        _version(state),
        _reached(host.name, spec, state),
        *_privileges(host, spec, state),
        _passthrough(spec),
        _virtualisation(spec.guest, state),
        *(_of_booting(spec.guest, state) if spec.boots_guests else ()),
        _ids(spec.guest, state),
        *(finding for disk in host.disks if isinstance(disk, DiskById) for finding in [_claimed(disk, state)]),
        *(finding for disk in host.stored for finding in _stored(disk, state)),
    ]


def unreachable(error: HarnessError) -> HostFinding:
    """The finding if the API does not answer."""
    why = "runs create guests and storages through it"
    return HostFinding("Proxmox VE", error.message, Level.PROBLEM, why, error.hint or "")


def _version(state: NodeState) -> HostFinding:
    why = "QEMU's options for a drive, and the privileges, differ between versions"
    number = tuple(int(part) for part in state.version.split(".")[:2] if part.isdigit())
    if number >= OLDEST:
        return HostFinding("Proxmox VE", state.version, Level.OK, why)
    return HostFinding("Proxmox VE", state.version, Level.ADVICE, why, f"upgrade to {OLDEST[0]}.{OLDEST[1]} or newer")


def _reached(name: str, spec: ProxmoxSpec, state: NodeState) -> HostFinding:
    why = "disks are checked over SSH, and their users through the API: both must be the same node"
    if state.reached == spec.api.node:
        return HostFinding("node", spec.api.node, Level.OK, why)
    advice = f"correct host.{name}.api.node or host.{name}.address"
    leads = f"SSH leads to {state.reached}"
    if not state.reached:
        leads = "commands run on a machine that is not a node of Proxmox VE"
        advice = f"name root's SSH key for the node as host.{name}.key: without it, commands run on this machine"
    return HostFinding("node", f"the API is on {spec.api.node}, but {leads}", Level.PROBLEM, why, advice)


def _privileges(host: HostSpec, spec: ProxmoxSpec, state: NodeState) -> Iterator[HostFinding]:
    why = "without a privilege, a run fails later with a 403"
    missing: dict[str, list[Needed]] = {}
    for privilege in needed(host, spec):
        if privilege.privilege not in state.granted.get(privilege.path, frozenset()):
            missing.setdefault(privilege.purpose, []).append(privilege)
    if not missing:
        yield HostFinding("privileges", f"{spec.api.who} has all that runs need", Level.OK, why)
    for purpose, lacking in missing.items():
        names = ", ".join(f"{privilege.privilege} on {privilege.path}" for privilege in lacking)
        page = "docs/proxmox.md" if spec.boots_guests else "docs/borrow.md"
        advice = f"give {spec.api.who} a role with these privileges: {page} has one"
        yield HostFinding("privileges", f"for {purpose}, {spec.api.who} lacks {names}", Level.PROBLEM, why, advice)


def _passthrough(spec: ProxmoxSpec) -> HostFinding:
    why = f"Proxmox VE accepts the path of a device only from {ROOT} with a password, and not from a token"
    if spec.api.why_no_devices is None:
        return HostFinding("passthrough", f"{spec.api.who} may attach devices", Level.OK, why)
    advice = f"to measure the modes passthrough and partition, log in as {ROOT} without a token"
    return HostFinding("passthrough", f"not with {spec.api.who}: its modes are skipped", Level.ADVICE, why, advice)


def _virtualisation(rules: GuestRules, state: NodeState) -> HostFinding:
    why = "without it, Proxmox VE starts no guest with KVM, and emulated guests do not represent real hardware"
    if state.hvm is None:
        return make_finding("virtualisation", why, None)
    value = "the CPU offers it" if state.hvm else "the CPU does not offer it"
    if state.hvm == rules.kvm:
        return HostFinding("virtualisation", value, Level.OK, why)
    if state.hvm:
        return HostFinding(
            "virtualisation", f"{value}, but the lab file has kvm = false", Level.ADVICE, why, "kvm = true"
        )
    return HostFinding("virtualisation", value, Level.PROBLEM, why, "enable it in the firmware, or set kvm = false")


_UNSEEN = "does not exist, or the login may not see it"


def _of_booting(rules: GuestRules, state: NodeState) -> Iterator[HostFinding]:
    yield from _media(rules, state)
    yield _bridge(rules, state)
    yield from _containers(rules, state)


def _media(rules: GuestRules, state: NodeState) -> Iterator[HostFinding]:
    if rules.template is not None:
        return
    why = "guests boot from an ISO, which is uploaded to this storage"
    entry = {str(storage["storage"]): storage for storage in state.storages}.get(rules.iso_storage)
    if entry is None or "iso" not in str(entry.get("content", "")).split(","):
        value = f"{rules.iso_storage} {'does not accept ISOs' if entry else _UNSEEN}"
        suitable = [
            str(storage["storage"]) for storage in state.storages if "iso" in str(storage.get("content", "")).split(",")
        ]
        advice = _suggest_one("set guest.iso_storage to", suitable, "Datastore.Audit on a storage that accepts ISOs")
        yield HostFinding("ISO storage", value, Level.PROBLEM, why, advice)
    else:
        free = format_size(int(entry.get("avail", 0)))
        yield HostFinding("ISO storage", f"{rules.iso_storage}, {free} free", Level.OK, why)


def _containers(rules: GuestRules, state: NodeState) -> Iterator[HostFinding]:
    if rules.container_storage is None:
        return
    why = "containers of Proxmox VE get a root on this storage, from a template on that for ISOs"
    contents = {str(storage["storage"]): str(storage.get("content", "")).split(",") for storage in state.storages}
    wanted = ((rules.container_storage, "rootdir"), (rules.iso_storage, "vztmpl"))
    lacking = [(storage, content) for storage, content in wanted if content not in contents.get(storage, [])]
    if not lacking:
        yield HostFinding("container storage", rules.container_storage, Level.OK, why)
        return
    value = ", ".join(
        f"{storage} {'does not accept ' + content if storage in contents else _UNSEEN}" for storage, content in lacking
    )
    advice = "name another one, or allow it: pvesm set STORAGE --content (all that it accepts, and this)"
    yield HostFinding("container storage", value, Level.PROBLEM, why, advice)


def _bridge(rules: GuestRules, state: NodeState) -> HostFinding:
    why = "SSH reaches the guest through it"
    if rules.bridge in state.bridges:
        return HostFinding("bridge", rules.bridge, Level.OK, why)
    advice = _suggest_one("set guest.bridge to", state.bridges, "SDN.Use on a bridge")
    return HostFinding("bridge", f"{rules.bridge} {_UNSEEN}", Level.PROBLEM, why, advice)


def _suggest_one(action: str, names: Sequence[str], privilege: str) -> str:
    """What to set instead; without any, the login may see too little."""
    return f"{action} {' or '.join(names)}" if names else f"create one, or give the login {privilege}"


def _ids(rules: GuestRules, state: NodeState) -> HostFinding:
    first, last = rules.vmids
    why = "each guest needs a free one; an id for which a volume of an earlier VM remains is not free"
    if state.free_ids is None:
        advice = "see pvesm status on the node, and give the login Datastore.Audit on its storages"
        return HostFinding("VM ids", "unknown: the login may not see all volumes", Level.PROBLEM, why, advice)
    value = f"{state.free_ids} of {last - first + 1} are free"
    if state.free_ids:
        return HostFinding("VM ids", value, Level.OK, why)
    return HostFinding("VM ids", value, Level.PROBLEM, why, "virt-overhead reap, or widen vmids in the lab file")


def _claimed(disk: DiskById, state: NodeState) -> HostFinding:
    check, why = f"{disk.name}: owner", "runs never write to a disk that a storage or a guest uses"
    claims = state.claims.get(disk.name)
    if claims is None:
        advice = "give the login VM.Audit on /vms and Datastore.Audit on /storage"
        return HostFinding(check, "unknown: the login may not see all guests and storages", Level.PROBLEM, why, advice)
    if claims:
        advice = "remove it from that configuration if you need nothing on it, or name another disk"
        return HostFinding(check, "; ".join(claims), Level.PROBLEM, why, advice)
    return HostFinding(check, "no storage and no guest uses it", Level.OK, why)


def _stored(disk: DiskByStorage, state: NodeState) -> Iterator[HostFinding]:
    known = {str(storage["storage"]): storage for storage in state.storages}
    why = "the type of a storage determines the layout of its volumes"
    every = tuple(dict.fromkeys(kind for kinds in STORAGE_TYPES.values() for kind in kinds))
    # A storage that is named without a layout can have any supported type.
    wanted: list[tuple[str, str, tuple[str, ...]]] = [
        (layout, name, STORAGE_TYPES[layout]) for layout, name in disk.storages.items()
    ]
    for layout, storage, allowed in wanted or [("VMs", disk.at, every)]:
        check = f"{disk.name}: storage"
        entry = known.get(storage)
        if entry is None:
            advice = _suggest_one("name instead", list(known), f"Datastore.Audit on /storage/{storage}")
            yield HostFinding(check, f"{storage} {_UNSEEN}", Level.PROBLEM, why, advice)
        elif entry["type"] not in allowed:
            value = f"{storage} is of type {entry['type']}, whose volumes do not have the layout {layout}"
            yield HostFinding(check, value, Level.PROBLEM, why, f"name one of type {' or '.join(allowed)}")
        elif "images" not in str(entry.get("content", "")).split(",") or not entry.get("active"):
            value = f"{storage} is not active, or does not accept disk images"
            yield HostFinding(check, value, Level.PROBLEM, why, f"pvesm set {storage} --content images")
        else:
            free = format_size(int(entry.get("avail", 0)))
            yield HostFinding(check, f"{storage} ({entry['type']}) for {layout}, {free} free", Level.OK, why)


def node_findings(host: HostSpec, runner: Runner) -> list[HostFinding]:
    """The doctor's findings about a node of Proxmox VE."""
    spec = host.hypervisor
    assert isinstance(spec, ProxmoxSpec), "no other hypervisor is on such a host"
    try:
        with open_client(host.name, spec) as client:
            return examine_node(host, spec, read_state(host, spec, client, runner))
    except (LabUnavailable, ConfigError, HostError) as error:
        return [unreachable(error)]


def read_state(host: HostSpec, spec: ProxmoxSpec, client: Client, runner: Runner) -> NodeState:
    """What the API reports of the node now."""
    paths = dict.fromkeys(privilege.path for privilege in needed(host, spec))
    return NodeState(
        version=str(client.get("version")["version"]),
        granted={path: client.privileges(path) for path in paths},
        storages=client.get(f"{client.node}/storage"),
        bridges=[str(bridge["iface"]) for bridge in client.get(f"{client.node}/network", {"type": "any_bridge"})],
        hvm=_has_hvm(client),
        free_ids=_free_ids(client, spec),
        reached=read_node(runner),
        claims={disk.name: _claims(client, runner, disk) for disk in host.disks if isinstance(disk, DiskById)},
    )


def _free_ids(client: Client, spec: ProxmoxSpec) -> int | None:
    try:
        return sum(1 for _ in free_ids(spec.guest.vmids, list_used_ids(client)))
    except SafetyError:
        return None


def _has_hvm(client: Client) -> bool | None:
    """Whether the CPU offers virtualisation; None if the login may not read it (Sys.Audit on the node)."""
    try:
        hvm = client.get(f"{client.node}/status").get("cpuinfo", {}).get("hvm")
    except PveError:
        return None
    return None if hvm is None else str(hvm) not in ("", "0")


def _claims(client: Client, runner: Runner, disk: DiskById) -> list[str] | None:
    try:
        return read_claims(client, runner, disk)
    except SafetyError:
        return None
