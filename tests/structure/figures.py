"""The figures: how large each package is, which words its names use, and which class names stand twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.structure.source import Module, find_circles, find_unimported, read_modules

VERBS = frozenset(Path(__file__).with_name("verbs.txt").read_text(encoding="utf-8").split())
VAGUE = ("each", "found", "own")
"""Words that say nothing about what a variable holds, if they are its whole name."""


@dataclass(frozen=True, slots=True)
class Size:
    modules: int
    lines: int


@dataclass(frozen=True, slots=True)
class Figures:
    """`vague` is per 1,000 names that are bound, `verbs` the share of functions that begin with a verb."""

    sizes: Mapping[str, Size]
    """By package: `harness`, `kernel` (all but the features), and each directory of `harness/`."""
    vague: float
    verbs: float
    repeated_classes: tuple[str, ...]
    tables: tuple[str, ...]
    """Classes `NameTable` beside a class `Name`."""
    views: tuple[str, ...]
    circles: tuple[tuple[str, ...], ...]
    unimported: tuple[str, ...]
    """Modules that no module imports."""


def measure(root: Path) -> Figures:
    """The figures of `harness/` in the checkout `root`."""
    modules = read_modules(root, "harness")
    classes = Counter(name for module in modules.values() for name in module.classes())
    variables = [name for module in modules.values() for name in module.variables()]
    functions = [name for module in modules.values() for name in module.functions()]
    return Figures(
        sizes=_sizes(modules),
        vague=1000 * sum(name.strip("_") in VAGUE for name in variables) / len(variables),
        verbs=sum(begins_with_verb(name) for name in functions) / len(functions),
        repeated_classes=tuple(sorted(name for name, count in classes.items() if count > 1)),
        tables=tuple(
            sorted(name for name in classes if name.endswith("Table") and name.removesuffix("Table") in classes)
        ),
        views=tuple(sorted(name for name in classes if name.endswith("View"))),
        circles=tuple(find_circles(modules)),
        unimported=tuple(find_unimported(modules)),
    )


def begins_with_verb(name: str) -> bool:
    return name.lstrip("_").partition("_")[0] in VERBS


def _sizes(modules: Mapping[str, Module]) -> dict[str, Size]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for module in modules.values():
        parts = module.name.split(".")
        package = (
            parts[1] if len(parts) > 1 and f"harness.{parts[1]}" in modules and _is_package(module, parts) else "(top)"
        )
        for name in ("harness", *(() if package == "features" else ("kernel",)), package):
            sizes[name] += module.lines
            counts[name] += 1
    return {name: Size(counts[name], sizes[name]) for name in sorted(sizes)}


def _is_package(module: Module, parts: list[str]) -> bool:
    return len(parts) > 2 or module.path.name == "__init__.py"
