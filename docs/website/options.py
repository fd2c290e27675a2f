"""The page of options: those of attachments, guests, layouts and profiles, and fio's, from the tables in the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from docs.website.tables import name_values, quote
from harness.features.fio_files.options import ALLOWED, ENGINES
from harness.model.attach import ATTACH_OPTIONS, Attach
from harness.model.guest import ANY_GUEST, GUEST_OPTIONS
from harness.model.option import Option
from harness.model.workloads import PROFILES, Profile
from harness.units import format_size

_LAYOUTS = ("Partition", "Lvm", "LvmThin", "RawFile", "Qcow2", "Md", "Zvol", "ZfsFile", "Rbd")
"""The layouts with keys, by the names of their records."""

_STUDY = "[local-disks]: https://pcnews.ru/blogs/testirovanie_proizvoditelnosti_neskolkih_tipov_nakopitelej_v_virtualnoj_srede-844577.html"

_INTRODUCTION = """For people who write scenarios and lab files: every option with its values and its default. Made from
the code by `python -m docs.website.generate`. [Scenarios](../scenarios.md) explains how to use them."""

_PROFILE_HEAD = (
    "| profile | ramp | runtime | blocks | rounds | iodepth | span | target | time limit | round limit | conditioning "
    "| new boot in each round |"
)


def options_page(schema: str) -> str:
    """Every option of an attachment, a guest, a layout and a profile. `schema` is the JSON Schema of results.json."""
    return "\n".join(
        [
            "# Options of modes, guests and profiles",
            "",
            _INTRODUCTION,
            "",
            "## Attachment",
            "",
            "`attach` of a mode: how the guest gets the disk.",
            "",
            *_options("attach.", Attach(), ATTACH_OPTIONS, "../scenarios.md"),
            "## Guest",
            "",
            "`[guest]` of a scenario, `[mode.NAME.guest]`, and `[host.NAME.guest]` of a lab file.",
            "",
            *_options("", ANY_GUEST, GUEST_OPTIONS, "../lab.md"),
            "## What does not go together",
            "",
            "A file with such a combination is refused before anything is touched; the message names what is allowed.",
            "",
            *_conflicts(),
            "## Layout",
            "",
            "`layout` of a mode: what is built on the disk. Sizes are powers of two.",
            "",
            *_layouts(json.loads(schema)["$defs"]),
            "## Profiles",
            "",
            *_profiles(),
            "## Options of fio files",
            "",
            "fio gets these options of [your own fio file](../scenarios.md#your-own-fio-file) as they are:",
            "",
            quote(ALLOWED),
            "",
            f"Engines: {quote(ENGINES)}",
            "",
            _STUDY,
            "",
        ]
    )


def _options(prefix: str, options: object, rows: Mapping[str, Option[Any]], page: str) -> Iterator[str]:
    yield from ("| key | values | default | name in libvirt and QEMU |", "|---|---|---|---|")
    for name, row in rows.items():
        values = row.values or quote(map(_format_toml, list_values(options, name)))
        default = row.by_default or f"`{_format_toml(getattr(options, name))}`"
        line = f"| `{prefix}{name}` | {values} | {default} | {row.docs} |"
        yield re.sub(r"\]\(([a-z-]+\.md)", r"](../\1", line.replace("](#", f"]({page}#"))
    yield ""


def _format_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _conflicts() -> Iterator[str]:
    yield from ("| option | conflicts with |", "|---|---|")
    tables: tuple[tuple[str, Mapping[str, Option[Any]]], ...] = (("attach.", ATTACH_OPTIONS), ("", GUEST_OPTIONS))
    for prefix, rows in tables:
        for name, row in rows.items():
            if row.buses is not None:
                allowed = quote(row.buses.names)
                yield f"| `{prefix}{name}` | another `bus` than {allowed}, {row.buses.why} |"
            for conflict in row.conflicts:
                yield f"| `{prefix}{name}` | `{conflict.other}`, {conflict.why} |"
    yield ""


def _layouts(records: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| key | layout | values | default | meaning |", "|---|---|---|---|---|")
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in _LAYOUTS:
        properties = records[name]["properties"]
        for key, value in properties.items():
            if key != "kind":
                row = (f"`layout.{key}`", *_describe(value, required=key in records[name].get("required", ())))
                rows.setdefault(row, []).append(f"`{properties['kind']['const']}`")
    for (key, *rest), layouts in sorted(rows.items()):
        yield f"| {key} | {', '.join(layouts)} | {' | '.join(rest)} |"
    yield ""


def _describe(value: Mapping[str, Any], *, required: bool) -> tuple[str, str, str]:
    """Values, default and meaning of a key of a layout."""
    meaning = " ".join(value["description"].split())
    plain = next((kind for kind in value.get("anyOf", ()) if kind != {"type": "null"}), value)
    default = value.get("default", ())
    if "oneOf" in value:
        return '`{ kind = "device" }`, `{ kind = "md", ... }`', "the disk", meaning
    if meaning.startswith("Bytes"):
        return "a size", f'`"{format_size(default)}"`', meaning
    values = name_values(plain)
    if required:
        return values, "required", meaning
    shown = {True: "`true`", False: "`false`", None: "none"}.get(default) if isinstance(default, bool | None) else ""
    return values, shown or ("none" if default == [] else f"`{default}`"), meaning


def _profiles() -> Iterator[str]:
    yield from (_PROFILE_HEAD, "|" + "---|" * 12)
    yield from map(_format_profile, PROFILES)
    yield ""


def _format_profile(profile: Profile) -> str:
    rounds = str(profile.rounds)
    if profile.most_rounds > profile.rounds:
        rounds += f" to {profile.most_rounds}"
    cells = (
        f"`{profile.name}`",
        f"{profile.ramp:g} s",
        f"{profile.runtime:g} s",
        str(profile.blocks),
        rounds,
        ", ".join(map(str, profile.iodepth)),
        format_size(profile.span),
        f"{profile.target * 100:g} %" if profile.target else "none",
        f"{profile.time_limit / 60:g} min" if profile.time_limit else "none",
        f"{profile.round_limit / 60:g} min",
        f"`{profile.conditioning}`",
        "yes" if profile.reboot else "no",
    )
    return f"| {' | '.join(cells)} |"


def list_values(options: object, name: str) -> tuple[Any, ...]:
    """The values of an option if its type lists them; empty for other types."""
    hint = get_type_hints(type(options))[name]
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (alternative for alternative in get_args(hint) if alternative is not type(None))
    return (True, False) if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
