"""`python -m tests.structure` prints the figures of the code's structure; exit status 1 if one is beyond its limit.

The limits are in limits.toml beside this file. They only become narrower: whoever improves a figure lowers its limit.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.structure.figures import Figures, measure

_LIMITS = Path(__file__).with_name("limits.toml")
_ROOT = Path(__file__).resolve().parents[2]


def find_excesses(figures: Figures, limits: dict[str, object]) -> Iterator[str]:
    """A line for each figure that is beyond its limit."""
    lines, modules = limits["lines"], limits["modules"]
    assert isinstance(lines, dict)
    assert isinstance(modules, dict)
    for name, size in figures.sizes.items():
        if size.lines > lines.get(name, size.lines):
            yield f"{name}: {size.lines} lines, at most {lines[name]}"
        if size.modules > modules.get(name, size.modules):
            yield f"{name}: {size.modules} modules, at most {modules[name]}"
    at_most = limits["at_most"]
    assert isinstance(at_most, dict)
    shown = _counts(figures)
    for name, limit in at_most.items():
        if shown[name] > limit:
            yield f"{name}: {shown[name]:g}, at most {limit:g}"
    if figures.verbs * 100 < float(str(limits["verbs_percent_at_least"])):
        yield f"functions that begin with a verb: {figures.verbs:.1%}, at least {limits['verbs_percent_at_least']} %"


def _counts(figures: Figures) -> dict[str, float]:
    return {
        "vague_names_per_1000": round(figures.vague, 1),
        "class_names_twice": len(figures.repeated_classes),
        "tables_beside_values": len(figures.tables),
        "views": len(figures.views),
        "circles": len(figures.circles),
        "unimported_modules": len(figures.unimported),
    }


def main() -> int:
    figures = measure(_ROOT)
    for name, size in figures.sizes.items():
        print(f"{name:10} {size.modules:4} modules {size.lines:6} lines")
    for name, count in _counts(figures).items():
        print(f"{name.replace('_', ' ')}: {count:g}")
    print(f"functions that begin with a verb: {figures.verbs:.1%}")
    for title, names in (
        ("class names used twice", figures.repeated_classes),
        ("tables", figures.tables),
        ("views", figures.views),
        ("circles", [" <-> ".join(circle) for circle in figures.circles]),
        ("modules that nothing imports", figures.unimported),
    ):
        if names and "-v" in sys.argv:
            print(f"{title}: {', '.join(names)}")
    excesses = list(find_excesses(figures, tomllib.loads(_LIMITS.read_text(encoding="utf-8"))))
    for line in excesses:
        print(f"beyond its limit: {line}", file=sys.stderr)
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())
