"""`virt-overhead init` and `quick`: the command line says which host to inspect, as its table in a lab file.

And `virt-overhead` without a command: what comes next in this directory.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from harness.cli import FAILED, REPORTS, number_from, print_json
from harness.errors import ConfigError, HarnessError
from harness.files import shipped

OUTPUT = Path("lab.toml")
UNKNOWN_NODE = "localhost"
"""PVE's name for the node that answers, until its own name is known."""
_LAST_PORT = 65535
_API_PORT = 8006
"""Of Proxmox VE."""
_OF_NODE = ("user", "token", "secret", "ca_file", "fingerprint", "node", "guest_address")
_ADDRESS = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<address>\[[^\]\s]+\]|[^:@\s]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class InitRequest:
    """What the user requested: the host's table of a lab file and its name, and where to write the file."""

    name: str
    host: dict[str, Any]
    output: Path | None
    """None: only print JSON."""
    force: bool = False
    as_json: bool = False
    reserved: Collection[str] = ()
    """Names that no storage or disk gets, because scenarios have them."""


def add_commands(commands: Any) -> None:
    """Add the verbs `init` and `quick` to the subparsers."""
    parser = commands.add_parser(
        "init",
        help="find the storages and disks of a host that can be measured, and write lab.toml",
        example="virt-overhead init --ssh root@192.0.2.7 --key ~/.ssh/id_ed25519",
    )
    _add_host(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"the file to write (default: {OUTPUT})")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--json", action="store_true", help="print what was found as JSON; write a file only with --output"
    )
    parser.set_defaults(run=_init)
    _add_quick(commands)


def _add_quick(commands: Any) -> None:
    parser = commands.add_parser(
        "quick",
        help="measure in a few minutes what a VM loses on a storage of this host, without a configuration",
        example="virt-overhead quick /var/lib/libvirt/images",
    )
    parser.add_argument(
        "storage", nargs="?", metavar="PATH|STORAGE", help="a directory or a storage (default: most free space)"
    )
    _add_host(parser)
    parser.add_argument("--host-only", action="store_true", help="measure the storage on the host, without any guest")
    parser.add_argument("--vm", metavar="NAME", help="plug the disk into this running VM, through its guest agent")
    parser.add_argument("--reports", type=Path, metavar="DIR", default=REPORTS, help="the directory of runs (reports)")
    parser.add_argument("--max-writes", metavar="SIZE", help="write at most so much to the storage, for example 20GiB")
    parser.set_defaults(run=_quick, output=None, json=False, force=False)


def _quick(options: argparse.Namespace) -> NoReturn:
    from harness.features.init.lab_file import QuickRequest, measure_quickly

    limit = [f"--max-writes={options.max_writes}"] if options.max_writes else []
    request = QuickRequest(
        host=read_request(options, _list_reserved()),
        storage=options.storage,
        host_only=options.host_only,
        vm=options.vm,
        reports=options.reports,
        arguments=limit,
    )
    measure_quickly(request)


def _add_host(parser: argparse.ArgumentParser) -> None:
    """The options that say which host."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--ssh", metavar="USER@HOST[:PORT]", help="a host over SSH (default: this machine)")
    where.add_argument("--proxmox", metavar="HOST[:PORT]", help="a node of Proxmox VE, by the address of its API")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the private SSH key for the host or the node")
    api = parser.add_argument_group("with --proxmox")
    api.add_argument("--user", metavar="USER@REALM", help="the user of the API (default: root@pam)")
    api.add_argument("--token", metavar="NAME", help="the name of a token of that user")
    api.add_argument(
        "--secret",
        metavar="KIND:NAME",
        help="where the password or the token's value is stored: env:VARIABLE, file:PATH or keyring:SERVICE",
    )
    api.add_argument("--ca-file", type=Path, metavar="FILE", help="the CA that signed the node's certificate")
    api.add_argument("--fingerprint", metavar="SHA256", help="the fingerprint of the node's certificate")
    api.add_argument(
        "--ssh-port", type=number_from(1, 65_535), metavar="PORT", help="with --key: the port of SSH on the node (22)"
    )
    api.add_argument("--node", metavar="NAME", help="the node's name in its cluster")
    api.add_argument(
        "--guest-address",
        metavar="ADDRESS/PREFIX",
        help="a free address for the guests, for example 192.0.2.50/24, if their network has no DHCP",
    )


def _init(options: argparse.Namespace) -> int:
    from harness.features.init.lab_file import init

    inspected = init(read_request(options, _list_reserved()))
    print("\n".join(inspected.lines))
    return 0 if inspected.found_any else FAILED


def _list_reserved() -> tuple[str, ...]:
    """Names that mean something else: a storage or disk with that of a scenario would be measured by it only."""
    from harness.model.disk import REQUESTED_CLASSES

    return (*(path.stem for path in shipped("scenarios").glob("*.toml")), *REQUESTED_CLASSES)


def read_request(options: argparse.Namespace, reserved: Collection[str]) -> InitRequest:
    """The request of the command line. Raises ConfigError if options contradict each other."""
    of_node = {name: getattr(options, name) for name in _OF_NODE}
    if surplus := [name for name, value in of_node.items() if value is not None and options.proxmox is None]:
        raise ConfigError(f"--{surplus[0].replace('_', '-')} needs --proxmox", hint="virt-overhead init --help")
    if options.key is not None and options.ssh is None and options.proxmox is None:
        raise ConfigError("--key needs --ssh or --proxmox", hint="virt-overhead init --ssh root@HOST --key FILE")
    if options.ssh_port is not None and (options.proxmox is None or options.key is None):
        raise ConfigError("--ssh-port needs --proxmox and --key", hint="virt-overhead init --ssh USER@HOST:PORT")
    if options.ssh is not None:
        name, host = _describe_ssh_host(options)
    elif options.proxmox is not None:
        name, host = _describe_node(options, of_node)
    else:
        name, host = "here", {"kind": "local"}
    output = options.output or (None if options.json else OUTPUT)
    return InitRequest(name, host, output, options.force, options.json, reserved)


def _describe_ssh_host(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    user, address, port = _parse_address(
        "--ssh", options.ssh, "USER@HOST or USER@HOST:PORT, for example root@192.0.2.7"
    )
    if options.key is None:
        raise ConfigError("--ssh needs --key", hint="name the private key for that host, for example ~/.ssh/id_ed25519")
    host: dict[str, Any] = {"kind": "ssh", "address": address.strip("[]")}
    host |= {"port": port} if port else {}
    host |= {"user": user} if user not in (None, "root") else {}
    return _name_host(address), host | {"key": _make_absolute(options.key)}


def _describe_node(options: argparse.Namespace, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    allowed = "HOST or HOST:PORT, for example 192.0.2.9; the user of the API has an option of its own, --user"
    user, address, port = _parse_address("--proxmox", options.proxmox, allowed)
    if user:
        raise ConfigError(f"--proxmox {options.proxmox}: allowed: {allowed}")
    kind, _, name = (given["secret"] or "").partition(":")
    if kind not in ("env", "file", "keyring") or not name or not name.isprintable():
        raise ConfigError(
            "--proxmox needs --secret env:VARIABLE, file:PATH or keyring:SERVICE",
            hint="store the password in a file that only you can read: --secret file:$HOME/.pve-password",
        )
    secret = {kind: _make_absolute(Path(name)) if kind == "file" else name}
    api: dict[str, Any] = {"url": f"https://{address}:{port or _API_PORT}", "node": given["node"] or UNKNOWN_NODE}
    api |= {key: given[key] for key in ("user", "token", "fingerprint") if given[key]} | {"secret": secret}
    api |= {"ca_file": _make_absolute(given["ca_file"])} if given["ca_file"] else {}
    key = {"key": _make_absolute(options.key)} if options.key else {}
    key |= {"port": options.ssh_port} if options.ssh_port is not None else {}
    static = {"network": "static", "address": given["guest_address"]} if given["guest_address"] else None
    return _name_host(address), {"kind": "proxmox", **key, "api": api} | ({"guest": static} if static else {})


def _parse_address(option: str, text: str, allowed: str) -> tuple[str | None, str, int | None]:
    """User, address and port; an IPv6 address is in brackets."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"] or 0) > _LAST_PORT:
        raise ConfigError(f"{option} {text}: allowed: {allowed}")
    return match["user"], match["address"], int(match["port"] or 0) or None


def _make_absolute(path: Path) -> str:
    """The path as a lab file needs it: a relative one would depend on the directory in which pytest starts."""
    return str(path if str(path).startswith("~") else path.absolute())


def _name_host(address: str) -> str:
    """The host's name in the lab file: the first part of its name, or its address with hyphens."""
    from harness.features.init.offers import Names

    address = address.strip("[]")
    is_name = re.fullmatch(r"[A-Za-z][\w-]*(\.[\w-]+)*", address)
    return Names().name(address.partition(".")[0] if is_name else address, "host")


@dataclass(frozen=True, slots=True)
class Next:
    """A command, and what it is for."""

    command: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What was found, a sentence each, and what to do next, the most useful step first."""

    found: tuple[str, ...]
    steps: tuple[Next, ...]


def show_overview(options: argparse.Namespace) -> int:
    """Print the situation of the current directory."""
    situation = look_around(Path.cwd(), os.environ)
    if options.json:
        print_json(asdict(situation))
        return 0
    print("\n".join(f"{sentence}." for sentence in situation.found))
    print("next:")
    widest = max(len(step.command) for step in situation.steps)
    for step in situation.steps:
        print(f"  {step.command:{widest}}  {step.purpose}")
    print("all commands: virt-overhead --help")
    return 0


def look_around(directory: Path, environment: Mapping[str, str]) -> Situation:
    """The situation in `directory`: no file there is changed, and no host is asked."""
    lab, lab_steps = _describe_lab(directory, environment)
    runs, run_steps = _newest_run(directory)
    return Situation((lab, runs), (*run_steps, *lab_steps))


def _describe_lab(directory: Path, environment: Mapping[str, str]) -> tuple[str, tuple[Next, ...]]:
    from harness.lab.lab_file import LAB_FILE, LAB_VARIABLE, find_lab, load_lab

    path = find_lab(None, directory, environment)
    if path is None:
        missing = f"${LAB_VARIABLE} names it" if environment.get(LAB_VARIABLE) else f"there is no {LAB_FILE} here"
        return (
            f"Lab: {missing}, so the embedded lab with its simulated disks is measured",
            (
                Next("virt-overhead quickstart", "measure a simulated disk; needs no spare disk"),
                Next("virt-overhead quick", "measure a storage of this machine in a few minutes; needs no lab.toml"),
                Next("virt-overhead init", "find the disks of this machine, or of --ssh or --proxmox, for lab.toml"),
            ),
        )
    try:
        inventory = load_lab(path)
    except HarnessError as error:
        doctor = Next(f"virt-overhead doctor --lab {path.name}", "check the corrected file and its hosts")
        return f"Lab: {error.message}", (doctor,)
    disks = [disk.name for host in inventory.hosts for disk in host.measured]
    hosts = ", ".join(host.name for host in inventory.hosts)
    measure = Next(
        f"virt-overhead run -k {disks[0] if disks else 'any_disk'}", "measure; this erases disks that allow it"
    )
    if disks and all(host.disks == () and all(storage.at for storage in host.stored) for host in inventory.hosts):
        measure = Next("virt-overhead run -k storage", "measure; this writes only to volumes that it creates")
    return (
        f"Lab: {path.name} has the disks {', '.join(disks) or 'none'} on {hosts}",
        (
            Next(f"virt-overhead doctor --lab {_word(path, directory)}", "are the hosts fit for measuring?"),
            Next("virt-overhead run --collect-only -q", "list the cells, and measure nothing"),
            measure,
        ),
    )


def _word(path: Path, directory: Path) -> Path:
    return path.relative_to(directory) if path.is_relative_to(directory) else path


def _newest_run(directory: Path) -> tuple[str, tuple[Next, ...]]:
    from harness.results import RunStore

    reports = directory / REPORTS
    if not os.path.lexists(reports / "latest"):
        return "Runs: nothing was measured here yet", ()
    try:
        run = RunStore.open(reports / "latest").read_results().run
    except HarnessError as error:
        return f"Runs: {error.message}", ()
    told = f"Runs: the newest is {run.id}, profile {run.profile}, status {run.status}"
    match run.status:
        case "running":
            return told, (Next("virt-overhead watch", "follow the run"),)
        case "interrupted" | "failed":
            resume = Next(f"virt-overhead run --resume={REPORTS / run.id}", "measure the rest, with the same selection")
            return told, (resume, Next("virt-overhead report", "what was measured so far"))
    others = {path.parent.name for path in reports.glob("*/results.json")} - {run.id, "latest"}
    then = Next("virt-overhead baseline set NAME", "name the run, to compare later runs with it")
    if others:
        then = Next(f"virt-overhead compare {max(others)} latest", "what changed between two runs")
    return told, (Next("virt-overhead report", "its answers, and the page"), then)
