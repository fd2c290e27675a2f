"""`virt-overhead import` and `virt-overhead export`, and the same of images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from harness.cli import REPORTS, add_json, print_json, terminal_events


def add_commands(commands: Any) -> None:
    """Add the verbs `import` and `export` to the subparsers, and both as actions to the verb `images`."""
    _add_import(commands)
    _add_export(commands)
    _add_actions(commands.choices["images"])


def _add_import(commands: Any) -> None:
    parser = commands.add_parser(
        "import",
        help="read fio's output from elsewhere (JSON or text) into a run that can be reported and compared",
        example="virt-overhead import --host results/host --guest lvm=results/guest",
    )
    parser.add_argument(
        "--host",
        nargs="+",
        action="extend",
        type=Path,
        required=True,
        metavar="PATH",
        help="fio's output on the host: files, or directories with .json files",
    )
    parser.add_argument(
        "--guest",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME=PATH", "PATH"),
        help="fio's output in a guest, and the name of its attach mode; repeat it for further modes",
    )
    parser.add_argument("--disk", default="disk", metavar="NAME", help="a name for the disk (%(default)s)")
    parser.add_argument(
        "--scenario", default="imported", metavar="NAME", help="the beginning of the cells' ids (%(default)s)"
    )
    parser.add_argument("--hardware", metavar="TEXT", help="what was measured, if it is real hardware")
    parser.add_argument(
        "--reports", type=Path, default=REPORTS, metavar="DIR", help="where to store the run (%(default)s)"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="leave out files that cannot be read (default: import nothing then)"
    )
    add_json(parser, "the answers of the run and the path of its report")
    parser.set_defaults(run=_import)


def _add_export(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="write the measurements of a run as CSV or Parquet, for fio-plot, or for Prometheus; share a run",
        example="virt-overhead export latest --csv run.csv",
    )
    parser.add_argument("path", nargs="?", type=Path, default=REPORTS / "latest", metavar="RUN")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a row for each measurement")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="the same with typed columns; needs pyarrow")
    parser.add_argument("--fio-plot", type=Path, metavar="DIR", help="fio's JSON output, one file per arm and job")
    parser.add_argument(
        "--openmetrics", type=Path, metavar="FILE", help="gauges for Prometheus, for node_exporter's textfile collector"
    )
    sharing = parser.add_argument_group(
        "share the run", "Host names, serial numbers, addresses, users, paths and command lines are withheld."
    )
    sharing.add_argument("--share", type=Path, metavar="FILE", help="write the results.json that --post would send")
    sharing.add_argument(
        "--post", metavar="URL", help="send it to a server of your choice by HTTP POST, after saying what it has"
    )
    sharing.add_argument(
        "--identities", action="store_true", help="withhold nothing from --share and --post: for a server of your own"
    )
    sharing.add_argument(
        "--gallery", type=Path, metavar="DIR", help="make an entry of the gallery in DIR: the run, its page and a form"
    )
    add_json(parser, "what was written and sent")
    parser.set_defaults(run=_export)


def _add_actions(images: Any) -> None:
    actions = images.add_subparsers(metavar="ACTION")
    export = actions.add_parser(
        "export",
        help="write all images and their private SSH key into one file",
        example="virt-overhead images export images.tar",
    )
    add_json(export, "the file and its digest")
    export.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: a name with the digest")
    export.set_defaults(run=_export_images)
    importing = actions.add_parser(
        "import",
        help="use the images of such a file, instead of building them here",
        example="virt-overhead images import images.tar",
    )
    add_json(importing, "the directories and the digest")
    importing.add_argument("file", type=Path, metavar="FILE", help="what `images export` wrote")
    importing.add_argument("--digest", metavar="SHA256", help="refuse the file if its digest is another")
    importing.set_defaults(run=_import_images)


def _import(options: argparse.Namespace) -> int:
    from harness.cli import show_report
    from harness.features.exchange.importing import import_run

    store, left_out = import_run(_request_import(options), options.reports)
    if not options.json:
        sys.stdout.writelines(f"left out: {message}\n" for message in left_out)
    form = {"markdown": False, "annotations": False, "card": False, "verbose": True, "json": options.json}
    return show_report(argparse.Namespace(path=store.path, left_out=left_out, **form))


def _request_import(options: argparse.Namespace) -> Any:
    """The request of the command line. Raises ConfigError for a name that is not valid."""
    from harness.config.names import plain_name
    from harness.errors import ConfigError
    from harness.features.exchange.importing import HOST, ImportRequest
    from harness.terminal import format_command

    guests: dict[str, tuple[Path, ...]] = {}
    for first, *others in options.guest:
        name, equals, path = first.partition("=")
        if not equals or not path:
            raise ConfigError(f"--guest {first}: it must be NAME=PATH", hint="for example --guest lvm=results/guest")
        guests[name] = (*guests.get(name, ()), Path(path), *map(Path, others))
    for option, name in (("--disk", options.disk), ("--scenario", options.scenario), *(("--guest", n) for n in guests)):
        try:
            plain_name(name)
        except ValueError as error:
            raise ConfigError(f"{option} {name}: {error}", hint="choose another name") from None
    if HOST.name in guests:
        raise ConfigError(f"--guest {HOST.name}=: this name is for the host itself", hint="name the attach mode")
    return ImportRequest(
        host=tuple(options.host),
        guests=guests,
        disk=options.disk,
        scenario=options.scenario,
        hardware=options.hardware,
        keep_going=options.keep_going,
        command=format_command(("virt-overhead", *options.words)),
    )


def _export(options: argparse.Namespace) -> int:
    from harness.errors import ConfigError
    from harness.features.exchange.exporting import ExportRequest, export_run
    from harness.features.exchange.sharing import ShareRequest, share_run
    from harness.results import RunStore

    sharing = ShareRequest(options.share, options.gallery, options.post, options.identities)
    is_shared = bool(sharing.file or sharing.gallery or sharing.url)
    if sharing.identities and not (sharing.file or sharing.url):
        raise ConfigError("--identities: nothing is shared", hint="add --share FILE or --post URL")
    written = []
    forms = (options.csv, options.parquet, options.fio_plot, options.openmetrics)
    if any(forms) or not is_shared:
        written = export_run(ExportRequest(options.path, *forms))
    if not options.json:
        sys.stdout.writelines(f"{line}\n" for line in written)
    for line in share_run(RunStore.open(options.path), sharing) if is_shared else ():
        written.append(line)
        if not options.json:
            print(line, flush=True)
    if options.json:
        print_json({"written": written})
    return 0


def _export_images(options: argparse.Namespace) -> int:
    from harness.features.exchange.bundling import export_images
    from harness.image import ensure_images

    images = ensure_images(terminal_events(options), rebuild=options.rebuild, verify=options.verify)
    path, digest = export_images(images.all, images.key, options.file)
    if options.json:
        print_json({"path": path, "digest": digest})
        return 0
    print(f"digest {digest}")
    print(f"{path}   (keep it private: who has its SSH key can log in to the guests and the labs)")
    return 0


def _import_images(options: argparse.Namespace) -> int:
    from harness.features.exchange.bundling import import_images
    from harness.image import Cache, choose_cache

    events = terminal_events(options)
    directories, digest = import_images(options.file, Cache(choose_cache()), events, digest=options.digest)
    if options.json:
        print_json({"paths": directories, "digest": digest})
        return 0
    print(f"digest {digest}")
    for directory in directories:
        print(directory)
    return 0
