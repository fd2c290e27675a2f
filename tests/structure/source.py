"""Reads the modules of a package: names, functions, classes and imports, from the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOADED = ("report.py", "commands.py", "proxmox.py", "pytest_entry.py")
"""What `harness.feature`, the feature `proxmox` and pytest load."""


@dataclass(frozen=True)
class Module:
    """One file of Python. `name` is its dotted name."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    def variables(self) -> Iterator[str]:
        """Each name that the module binds: assignments, loops, parameters. A name that is bound twice counts twice."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.arg):
                yield node.arg

    def functions(self) -> Iterator[str]:
        """The names of functions and methods that are neither properties nor special methods."""
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTIONS) and not node.name.startswith("__"):
                decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
                if "property" not in decorators:
                    yield node.name

    def classes(self) -> Iterator[str]:
        return (node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def imports(self, modules: Mapping[str, Module]) -> set[str]:
        """The modules among `modules` that this one imports when it is imported itself; not for type checking only."""
        return {name for node in _run_at_import(self.tree.body) for name in self._targets(node) if name in modules} - {
            self.name
        }

    def all_imports(self) -> set[str]:
        """The dotted names in all of its import statements, also in functions and for type checking only."""
        return {name for node in ast.walk(self.tree) for name in self._targets(node)} - {self.name}

    def _targets(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
            yield node.module


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _run_at_import(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from _run_at_import(node.body + node.orelse + node.finalbody)


def read_modules(root: Path, package: str) -> dict[str, Module]:
    """The modules of a package below `root`, by dotted name, in the order of their names."""
    modules = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path)
    return modules


def find_unimported(modules: Mapping[str, Module]) -> list[str]:
    """The modules that no module imports: a merge may have brought them back. Packages count as imported, and the
    modules that something else loads by their names."""
    imported = set().union(*(module.all_imports() for module in modules.values()))
    return [
        name
        for name, module in modules.items()
        if name not in imported and module.path.name not in ("__init__.py", "__main__.py", *_LOADED)
    ]


def find_circles(modules: Mapping[str, Module]) -> list[tuple[str, ...]]:
    """The groups of modules that import each other, by Tarjan's algorithm for strongly connected components."""
    edges = {name: sorted(module.imports(modules)) for name, module in modules.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[tuple[str, ...]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in edges[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            members = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(members) > 1:
                circles.append(tuple(sorted(members)))

    for name in edges:
        if name not in index:
            visit(name)
    return sorted(circles)
