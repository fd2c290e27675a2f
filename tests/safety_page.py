"""Generates docs/reference/safety-tables.md: the kinds of the creation log, and the functions that write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.files import read_script
from harness.guest.libvirt.backend import Domain
from harness.lab.created import Thing
from harness.measure.reap import FEATURE_THINGS, HOST_THINGS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "safety-tables.md"
THINGS: tuple[type[Thing], ...] = tuple(dict.fromkeys((*HOST_THINGS, Domain, *FEATURE_THINGS)))

WRITING = re.compile(
    r"\b(blkdiscard|cryptsetup(?! status)|dd|fallocate|fio|losetup -d|lvcreate|lvremove|mdadm|mkfs\.\w+|mkswap|mount|"
    r"partx|pvcreate|pvremove|qemu-img (?:create|convert)|rm|rmdir|sfdisk|truncate|umount|vgcreate|vgremove|wipefs|"
    r"zfs create|"
    r"zpool (?:create|destroy|labelclear))(?![\w./])"
)
"""Programs that can destroy data or make it inaccessible."""


@dataclass(frozen=True, slots=True)
class Call:
    """A command in a function: the receiver that runs it (for example `region.device`), and its constant words."""

    function: str
    receiver: str
    words: str

    @property
    def needs_permission(self) -> bool:
        """Whether it runs through a permission and not through a plain runner."""
        return bool(re.search(r"(^|[.])(devices?|region|writable|members|room)$", self.receiver))

    @property
    def is_on_a_host(self) -> bool:
        """Whether it runs on a machine that may have a disk under test."""
        return bool(re.search(r"runner$|^host$|^here$|\.runner\(", self.receiver))


@cache
def calls() -> tuple[Call, ...]:
    """Every command that the harness runs with `run`, `run_on_file`, `run_all` or `run_pinned`."""
    return tuple(_calls())


def _calls() -> Iterator[Call]:
    for file in sorted((ROOT / "harness").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not re.search(r"\b(run|run_on_file|run_all|run_pinned)\(", text):
            continue
        tree = ast.parse(text)
        module = file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and (
                    found := _call(node, f"{module}.{function.name}", constants, function)
                ):
                    yield found


def _call(node: ast.Call, function: str, constants: dict[str, ast.expr], scope: ast.FunctionDef) -> Call | None:
    match node.func:
        case ast.Attribute(value=receiver, attr="run" | "run_on_file") if node.args:
            return Call(function, ast.unparse(receiver), _words(node.args[0], constants, scope))
        case ast.Name(id="run_all") if len(node.args) > 1:
            return Call(function, ast.unparse(node.args[0]), _words(node.args[1], constants, scope))
        case ast.Name(id="run_pinned") if len(node.args) > 2:
            return Call(function, ast.unparse(node.args[1]), _words(node.args[2], constants, scope))
    return None


def _words(argv: ast.expr, constants: dict[str, ast.expr], scope: ast.FunctionDef) -> str:
    """The constant words of a command, and of the names in it."""
    local = {
        target.id: node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(argv):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.Name) and (value := local.get(node.id, constants.get(node.id))) is not None:
            found += find_texts(value)
    return " ".join(found)


def find_texts(value: ast.expr) -> Iterator[str]:
    """The constant texts in a value, and the scripts that it reads."""
    for node in ast.walk(value):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.Call(
                func=ast.Name(id="read_script"), args=[ast.Constant(value=str(package)), ast.Constant(value=str(name))]
            ):
                yield read_script(package, name)


def programs(words: str) -> list[str]:
    """The programs in these words that can destroy data."""
    return list(dict.fromkeys(match[0] for match in WRITING.finditer(words)))


def things_table() -> str:
    rows = []
    for thing in THINGS:
        identity = [name for name in thing.model_fields if name not in ("kind", "disks")]
        kind = thing.model_fields["kind"].default
        words = " ".join((thing.__doc__ or "").split("\n\n")[0].split())
        rows.append((f"`{kind}`", words, ", ".join(f"`{name}`" for name in identity)))
    return table(("kind", "what", "recorded"), sorted(rows))


def commands_table() -> str:
    rows: dict[str, dict[str, None]] = {}
    for call in calls():
        if call.needs_permission:
            rows.setdefault(call.function, {})[f"`{call.receiver}`"] = None
    commands = {
        call.function: programs(" ".join(c.words for c in calls() if c.function == call.function)) for call in calls()
    }
    return table(
        ("function", "programs", "permission"),
        sorted(
            (f"`{function.removeprefix('harness.')}`", ", ".join(commands[function]) or "as requested", ", ".join(by))
            for function, by in rows.items()
        ),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def section(name: str) -> str:
    """The text of the page between the markers with this name."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- end of {name} -->", PAGE.read_text(encoding="utf-8"), re.S)
    assert found is not None, f"{PAGE} has no section {name}"
    return found[1]


def write_section(name: str, text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    marks = (f"<!-- {name} -->", f"<!-- end of {name} -->")
    before, _, rest = page.partition(marks[0])
    PAGE.write_text(f"{before}{marks[0]}\n{text}\n{marks[1]}{rest.partition(marks[1])[2]}", encoding="utf-8")
