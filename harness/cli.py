"""The command line: all actions outside a pytest run."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.analysis import METRICS
from harness.calibrate.assess import doubts
from harness.calibrate.command import calibrate, disk_of, summary
from harness.calibrate.trials import LEAST_SLICES, CalibrationSpec
from harness.doctor.command import DoctorRequest, doctor, hosts_of
from harness.errors import ConfigError, HarnessError
from harness.events import Events, Note
from harness.exchange import command as exchange
from harness.exchange.exporting import export_run
from harness.exchange.importing import import_run
from harness.files import write_atomically
from harness.guest.hypervisors import findings_of, remover_of
from harness.image import ensure_images
from harness.init.command import init
from harness.init.request import add_init, init_request
from harness.lab.created import read_log
from harness.lab.embedded import lab as embedded
from harness.lab.hosts import reach_host
from harness.lab.inventory import HostSpec, Inventory, load_lab
from harness.lab.lease import end_holder, lease
from harness.lab.withdrawn import withdraw_secrets
from harness.measure.reap import described, reap
from harness.model.disk_class import REQUESTED_CLASSES
from harness.progress import Progress, StandardOutput
from harness.signals import ended_like_ctrl_c
from harness.units import format_duration

ROOT = Path(__file__).resolve().parent.parent
REPORTS = Path("reports")
FAILED = 1
USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. A HarnessError is printed as a message, never as a traceback."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not getattr(options, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    options.words = sys.argv[1:] if arguments is None else arguments
    try:
        with ended_like_ctrl_c():
            status: int = options.run(options)
            sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"virt-overhead: {error}\n")
        return USAGE
    except HarnessError as error:
        sys.stderr.write(f"virt-overhead: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("virt-overhead: interrupted\n")
        return 130
    except OSError as error:
        # This includes errors of the output itself: a full disk, or a reader (`| head`) that has ended.
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"virt-overhead: {error}\n")
        _drop_output()
        return FAILED
    return status


def _drop_output() -> None:
    """Discard what is not printed yet. Otherwise Python tries again when it exits, and fails with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="virt-overhead",
        description="Measure how much disk performance a virtual machine loses in each attach mode, and why.",
        epilog="To measure, run pytest, for example: pytest -k optane",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    quickstart = commands.add_parser("quickstart", help="measure the simulated Optane disk in the embedded lab")
    quickstart.set_defaults(run=_quickstart, takes_rest=True)

    add_init(commands).set_defaults(run=_init)

    images = commands.add_parser("images", help="build the missing images, and print where they are")
    images.add_argument("--rebuild", action="store_true", help="build all images again with today's packages")
    images.add_argument("--verify", action="store_true", help="compare every file with its checksum")
    images.set_defaults(run=_images)

    lab = commands.add_parser("lab", help="the embedded lab: a KVM host in QEMU on this machine")
    actions = lab.add_subparsers(required=True, metavar="ACTION")
    for name, action, text in (
        ("up", _lab_up, "start the lab host, and leave it running"),
        ("down", _lab_down, "stop the lab host"),
        ("status", _lab_status, "print whether the lab host runs; exit status 3 if not"),
    ):
        actions.add_parser(name, help=text).set_defaults(run=action)
    ssh = actions.add_parser("ssh", help="log in to the lab host, or run the command that follows")
    ssh.set_defaults(run=_lab_ssh, takes_rest=True)

    doctors = commands.add_parser("doctor", help="check whether the lab's hosts or this machine are fit for measuring")
    doctors.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: this machine)")
    doctors.add_argument("--host", metavar="NAME", help="only this host (`lab`: the embedded lab's)")
    doctors.add_argument("--json", action="store_true", help="print the findings as JSON")
    change = doctors.add_mutually_exclusive_group()
    change.add_argument("--tune", action="store_true", help="hold better settings until Ctrl-C or the end of COMMAND")
    change.add_argument("--restore", action="store_true", help="restore the settings that a killed --tune changed")
    doctors.add_argument("command", nargs="*", metavar="-- COMMAND", help="with --tune: the command to run meanwhile")
    doctors.set_defaults(run=_doctor)

    report = commands.add_parser("report", help="rebuild the HTML report of a run and print its table")
    report.add_argument("path", nargs="?", type=Path, default=REPORTS / "latest", metavar="RUN")
    report.add_argument("--markdown", action="store_true", help="print Markdown, for example for a CI job summary")
    report.set_defaults(run=_report)

    compare = "compare two runs of different disks, or before and after a change"
    commands.add_parser("compare", parents=[_compare_options()], help=compare).set_defaults(run=_compare)
    exchange.add_import(commands).set_defaults(run=_import)
    exchange.add_export(commands).set_defaults(run=_export)

    _add_calibrate(commands)

    reaper = commands.add_parser("reap", help="list what killed runs left on the lab's hosts, and remove it")
    reaper.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: the embedded lab)")
    reaper.add_argument("--host", metavar="NAME", help="only this host")
    reaper.add_argument(
        "--yes", action="store_true", help="remove it (default: only list it; in the embedded lab: remove it)"
    )
    reaper.add_argument("--force", action="store_true", help="first stop the run that holds the host")
    reaper.set_defaults(run=_reap)
    return parser


def _add_calibrate(commands: Any) -> None:
    calibrator = commands.add_parser(
        "calibrate", help="measure how small a difference a lab's hosts can show, and store the result"
    )
    calibrator.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: the embedded lab)")
    calibrator.add_argument("--host", metavar="NAME", help="only this host")
    calibrator.add_argument("--disk", metavar="NAME", help="the disk to use (default: the host's first)")
    calibrator.add_argument(
        "--groups", type=_from(1), default=40, help="groups that compare a device with itself (%(default)s)"
    )
    calibrator.add_argument("--rounds", type=_from(2), default=3, help="blocks of each group (%(default)s)")
    calibrator.add_argument(
        "--repetitions", type=_from(1), default=5, help="measurements of each known delay (%(default)s)"
    )
    calibrator.add_argument("--seconds", type=_from(1), default=1, help="seconds of each slice (%(default)s)")
    calibrator.add_argument(
        "--slices",
        type=_from(LEAST_SLICES),
        default=120,
        help="short slices of each series that finds their length (%(default)s)",
    )
    calibrator.add_argument(
        "--boots", type=_from(2), default=5, help="boots of the guest that are compared (%(default)s)"
    )
    calibrator.add_argument("--seed", type=_from(0), help="the seed of all random orders, to repeat a calibration")
    calibrator.set_defaults(run=_calibrate)


def _compare_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    for side in ("before", "after"):
        name = side.upper()
        parser.add_argument(side, type=Path, metavar=name, help="a run: reports/RUN-ID, or `latest` for the newest")
        parser.add_argument(f"--{side}-scenario", metavar="NAME", help=f"only this scenario of {name}")
    parser.add_argument("--metric", choices=tuple(METRICS), help="show this metric (default: the main one of each job)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for example for a CI job summary")
    form.add_argument("--json", action="store_true", help="print the comparison of all metrics as JSON")
    return parser


def _events() -> Events:
    return Events(Progress(StandardOutput()))


def _quickstart(options: argparse.Namespace) -> int:
    os.chdir(ROOT)
    command = [sys.executable, "-m", "pytest", "-k", "optane", "--lab=embedded", "--profile=smoke", *options.rest]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _init(options: argparse.Namespace) -> int:
    # A storage or disk with the name of a scenario would be measured by that scenario only.
    scenarios = [path.stem for path in (ROOT / "scenarios").glob("*.toml")]
    inspected = init(init_request(options, (*scenarios, *REQUESTED_CLASSES)))
    print("\n".join(inspected.lines))
    return 0 if inspected.found_any else FAILED


def _images(options: argparse.Namespace) -> int:
    images = ensure_images(_events(), rebuild=options.rebuild, verify=options.verify)
    for image in (images.fio, images.guest, images.emulator, images.lab):
        print(f"{image.name:6} {image.path}")
    return 0


def _lab_up(_options: argparse.Namespace) -> int:
    machine = embedded.up(ensure_images(_events()), _events())
    print(
        f"lab host is running under {machine.accel}: SSH on 127.0.0.1:{machine.port}; "
        "stop it with: virt-overhead lab down"
    )
    return 0


def _lab_down(_options: argparse.Namespace) -> int:
    print("lab host stopped" if embedded.down() else "no lab host was running")
    return 0


def _lab_status(_options: argparse.Namespace) -> int:
    machine = embedded.state().running()
    if machine is None:
        print("not running")
        return 3
    up = format_duration(time.time() - machine.started)
    print(f"running for {up} under {machine.accel} (process {machine.pid}), SSH on 127.0.0.1:{machine.port}")
    print(f"{machine.accel}, because {machine.why}")
    return 0


def _lab_ssh(options: argparse.Namespace) -> int:
    machine = embedded.running()
    known = embedded.state().known_hosts
    write_atomically(known, f"lab {machine.host_key}\n")
    settings = ["HostKeyAlias=lab", f'UserKnownHostsFile="{known}"', "IdentitiesOnly=yes", "LogLevel=ERROR"]
    flags = [part for setting in settings for part in ("-o", setting)]
    os.execvp("ssh", ["ssh", *flags, "-i", machine.key, "-p", str(machine.port), "root@127.0.0.1", *options.rest])


def _doctor(options: argparse.Namespace) -> int:
    if options.command and not options.tune:
        raise ConfigError("a COMMAND needs --tune", hint="run: virt-overhead doctor --tune -- COMMAND")
    request = DoctorRequest(options.tune, options.restore, options.json, tuple(options.command))
    return doctor(hosts_of(options.lab, options.host), request, findings_of)


def _calibrate(options: argparse.Namespace) -> int:
    inventory = _inventory(options)
    disks = {host: disk_of(host, options.disk) for host in inventory.hosts}
    spec = CalibrationSpec(
        groups=options.groups,
        rounds=options.rounds,
        repetitions=options.repetitions,
        seconds=options.seconds,
        slices=options.slices,
        boots=options.boots,
    )
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    events = _events()
    images = ensure_images(events)
    doubtful = False
    for host, disk in disks.items():
        calibration, path = calibrate(host, disk, spec, seed=seed, images=images, events=events)
        print("\n".join(summary(calibration)))
        for doubt in doubts(calibration.false_alarms, calibration.groups, calibration.delay):
            print(f"  not reliable: {doubt}")
            doubtful = True
        print(f"calibration: {path}")
    return FAILED if doubtful else 0


def _inventory(options: argparse.Namespace) -> Inventory:
    inventory = load_lab(options.lab) if options.lab else embedded.inventory()
    withdraw_secrets(inventory.hosts)
    return inventory.only(options.host) if options.host else inventory


def _from(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: allowed: a whole number from {least}")
        return int(text)

    return parse


def _report(options: argparse.Namespace) -> int:
    from harness.report import write_report  # noqa: PLC0415 - plotly takes a second to load
    from harness.report.markdown import markdown_table  # noqa: PLC0415
    from harness.report.terminal import print_run  # noqa: PLC0415
    from harness.results import RunStore  # noqa: PLC0415

    store = RunStore.open(options.path)
    run = store.read_results()
    if options.markdown:
        print(markdown_table(run))
        return 0
    print_run(run)
    print(f"report: {write_report(store)}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from harness.report.compare_command import Form, chosen_run, print_compared  # noqa: PLC0415 - as for the report

    before = chosen_run(options.before, REPORTS, options.before_scenario)
    after = chosen_run(options.after, REPORTS, options.after_scenario)
    form = Form.JSON if options.json else Form.MARKDOWN if options.markdown else Form.TERMINAL
    print_compared(before, after, form, options.metric)
    return 0


def _import(options: argparse.Namespace) -> int:
    store, left_out = import_run(exchange.import_request(options, options.words), options.reports)
    for message in left_out:
        print(f"left out: {message}")
    return _report(argparse.Namespace(path=store.path, markdown=False))


def _export(options: argparse.Namespace) -> int:
    print("\n".join(export_run(exchange.export_request(options))))
    return 0


def _reap(options: argparse.Namespace) -> int:
    inventory = _inventory(options)
    events = _events()
    found = waiting = False
    for spec in _reachable(inventory):
        # Only this harness creates things on the disposable lab host.
        remove = options.yes or spec.kind == "embedded"
        lines = _reap_host(spec, events, remove=remove, force=options.force)
        for line in lines:
            print(f"host {spec.name}: {line}")
        found = found or bool(lines)
        waiting = waiting or (bool(lines) and not remove)
    if not found:
        print("nothing was left")
    elif waiting:
        print("nothing was removed; `virt-overhead reap --yes` removes only what is listed here")
    return 0


def _reachable(inventory: Inventory) -> list[HostSpec]:
    """The hosts to check. A lab host that does not run is left out: its data was lost when it stopped."""
    return [host for host in inventory.hosts if host.kind != "embedded" or embedded.state().running()]


def _reap_host(spec: HostSpec, events: Events, *, remove: bool, force: bool) -> list[str]:
    """One line for each thing that killed runs left on the host; with `remove`, the line says what was done with it."""
    with reach_host(spec) as host:
        if force and (holder := end_holder(host.runner, host.name)):
            events(Note(f"host {host.name}: stopped the run that held it: {holder}"))
        with lease(host.runner, host.name, "reap", events) as held:
            leased = replace(host, runner=held.runner)
            with remover_of(leased) as remover:
                entries = read_log(leased.runner)
                return reap(leased.runner, remover, entries) if remove else [described(entry) for entry in entries]


if __name__ == "__main__":
    sys.exit(main())
