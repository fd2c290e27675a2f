"""The pages of the reference that are made from the code: the commands, and the keys of results.json."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from docs.website.tables import escape
from harness.analysis.metrics import METRICS
from harness.cli import commands
from harness.features.io_costs import IO_COSTS

_ON_COMMANDS = """For everyone who types commands: every command with its options and an example. Made from the command
line itself by `python -m docs.website.generate`. [Running](../running.md) explains how to use them."""

_ON_KEYS = """For people who write scripts: every object of results.json with its keys. Made from the
[JSON Schema](../results.schema.json) by `python -m docs.website.generate`. [Results](../results.md) explains the
format."""


def command_page(parser: argparse.ArgumentParser, of_runs: Sequence[Any]) -> str:
    """Every command with its help, options and example, and the options of a run: `of_runs` are pytest's."""
    return "\n".join(
        [
            "# Commands and options",
            "",
            _ON_COMMANDS,
            "",
            "## Options of a run",
            "",
            "For `pytest` in a checkout, and for `virt-overhead run` anywhere, beside pytest's own options.",
            "",
            "| option | meaning |",
            "|---|---|",
            *(_run_option(option.attrs(), option.names()) for option in of_runs),
            "",
            *(line for command in commands(parser) for line in _command(command)),
        ]
    )


def _run_option(attributes: Mapping[str, Any], names: Sequence[str]) -> str:
    choices = "|".join(attributes.get("choices") or ())
    value = "" if attributes.get("nargs") == 0 else f"={attributes.get('metavar') or choices}"
    name = f"{names[0]}{value}".replace("|", "\\|")
    return f"| `{name}` | {escape(attributes['help'].replace('%%', '%'))} |"


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (f"## {parser.prog}", "")
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield from ("```", usage, "```", "")
    for text in (parser.description, parser.epilog):
        if text:
            yield from (escape(text), "")
    rows = [each for each in parser._actions if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)]
    if rows:
        yield from ("| argument | meaning |", "|---|---|")
        yield from (f"| {_names(each)} | {escape(_help(each, parser))} |" for each in rows)
        yield ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from ("| command | what it does |", "|---|---|")
            yield from (f"| `{each.dest}` | {escape(each.help or '')} |" for each in action._choices_actions)
            yield ""
    if example := getattr(parser, "example", ""):
        yield from ("Example:", "", "```", example, "```", "")


def _names(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    value = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else metavar
    if not action.option_strings:
        return f"`{value}`".replace("|", "\\|")
    words = "" if action.nargs == 0 else f" {value}"
    return ", ".join(f"`{name}{words}`" for name in action.option_strings).replace("|", "\\|")


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog, "type": getattr(action.type, "__name__", "")}


def schema_page(text: str) -> str:
    """Every object of results.json with its keys, from the JSON Schema `text`."""
    schema = json.loads(text)
    lines = [
        "# Keys of results.json",
        "",
        _ON_KEYS,
        "",
        "## Metrics",
        "",
        "| name | unit | better | what it is |",
        "|---|---|---|---|",
        *(f"| `{metric.name}` | {metric.unit} | {metric.better} | {metric.label} |" for metric in METRICS.values()),
        "",
        "## Costs of an I/O",
        "",
        "Seconds of CPU time, or a number, for one I/O. [How they are counted](../measuring.md#what-an-io-costs).",
        "",
        "| name | unit | what it is |",
        "|---|---|---|",
        *(f"| `{cost.name}` | {cost.unit} | {cost.title} |" for cost in IO_COSTS.values()),
        "",
        *_object("The document", schema),
    ]
    for name, definition in sorted(schema["$defs"].items()):
        lines += _object(name, definition)
    return "\n".join(lines)


def _object(name: str, definition: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {name}", "")
    if text := definition.get("description"):
        yield from (escape(text.partition("\n\n")[0].replace("\n", " ")), "")
    if properties := definition.get("properties"):
        yield from ("| key | type | meaning |", "|---|---|---|")
        required = definition.get("required", ())
        for key, value in properties.items():
            optional = "" if key in required else ", optional"
            meaning = " ".join(value.get("description", "").split())
            yield f"| `{key}` | {_type(value)}{optional} | {escape(meaning)} |"
        yield ""
    elif kind := _type(definition):
        yield from (f"Type: {kind}", "")


def _type(value: Mapping[str, Any]) -> str:
    """The type of a key in words, with links to other objects."""
    if reference := value.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for combined in ("anyOf", "oneOf"):
        if combined in value:
            return " or ".join(dict.fromkeys(_type(each) for each in value[combined]))
    if allowed := value.get("enum", [value["const"]] if "const" in value else []):
        return ", ".join(f"`{each}`" for each in allowed)
    kind, inside = value.get("type", "any"), {}
    if kind == "array":
        kind, inside = "list", value.get("items") or (value.get("prefixItems") or [{}])[0]
    elif kind == "object":
        inside = value.get("additionalProperties") or {}
    return f"{kind} of {_type(inside)}" if inside else kind
