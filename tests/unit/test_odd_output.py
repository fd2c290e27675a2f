"""Every function that runs commands on a machine and gets odd output gives a value or an error of ours."""

from __future__ import annotations

import collections.abc
import dataclasses
import importlib
import inspect
import pkgutil
import random
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.config.names import RunId
from harness.errors import HarnessError, HostError
from harness.events import Events
from harness.features.neighbours.backups import backup_file
from harness.features.proxmox.client import check_answer
from harness.lab.created import CreationLog
from harness.lab.inventory import HostSpec
from harness.lab.lease import lease
from harness.lab.transport.base import Completed, HoldingRunner, Runner
from harness.layout import BlockSource
from harness.signals import Cleanup

ODD = [
    "",
    "a b",
    "one line",
    "\x00\xff\ufffd",
    "9" * 400,
    "-1",
    "nan",
    "inf 1 2 3",
    "{}",
    "[]",
    '{"a": [{"b": null}]}',
    "null",
    "[null]",
    "[{}]",
    "1\n2\n3\nx y z w v\n",
    "\t\t\t\n::\n=",
    "0",
    "=1\n= 2",
    "a\tb\tc\nd\te\tf\n",
    "/x /y\n/z",
    "1 2 3 4 5 6 7 8 9 10",
    "256 4096\n",
    "/dev/loop0\n",
    "removed\n",
]
PACKAGES = ("lab", "layout", "guest", "measure", "features")
ID = RunId("20260101-000000-abcd")
OTHER_ARGUMENTS = (
    "harness.lab.hosts.copy_guest",
    "harness.lab.hosts._find_guest_files",
    "harness.features.doctor.machine._look_at_storage",
    "harness.features.doctor.machine.examine_storage",
    "harness.features.doctor.node.node_findings",
    "harness.features.init.offers._list_output",
    "harness.features.filesystem.volumes.build_with_filesystems",
    "harness.features.snapshots.proxmox.open_vm_taker",
)
"""These need an image, a storage that is allowed on a host with libvirt, a node, a command, what builds layouts, or a
mode with a guest."""


class _Lines:
    """A held command that has printed this."""

    alive = True

    def __init__(self, text: str) -> None:
        self.lines = tuple(text.splitlines()) or ("",)

    def send(self, line: str) -> None:
        """Accepts everything."""

    def wait(self, *_arguments: object) -> bool:
        return True


class Odd:
    """A machine whose commands all print this, or with a seed each something else."""

    name = "host node1"
    fence = "true"
    alive = True
    windows = False

    def __init__(self, text: str, seed: int | None = None) -> None:
        self._write_text = text
        self._chance = None if seed is None else random.Random(seed)

    def run(self, argv: Sequence[str], *, check: bool = True, **_options: object) -> Completed:
        if self._chance is None:
            return Completed(tuple(argv), 0, self._write_text, self._write_text)
        status = 0 if check else self._chance.choice([0, 0, 1])
        return Completed(tuple(argv), status, self._chance.choice(ODD), self._chance.choice(ODD))

    def put(self, *_arguments: object, **_options: object) -> None:
        """Accepts everything."""

    def close(self) -> None:
        """Has nothing to close."""

    @contextmanager
    def hold(self, *_arguments: object, **_options: object) -> Iterator[_Lines]:
        yield _Lines(self._write_text)


_MACHINES = ("Runner", "CreationLog")
"""In the names of the types of a machine and of its creation log."""


def functions() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """The functions of the harness that take a machine or its creation log, with the types of their arguments."""
    for package in PACKAGES:
        path = importlib.import_module(f"harness.{package}").__path__
        for found in pkgutil.walk_packages(path, f"harness.{package}."):
            module = importlib.import_module(found.name)
            for name, function in vars(module).items():
                if not inspect.isfunction(function) or function.__module__ != found.name:
                    continue
                if not any(of in str(text) for text in function.__annotations__.values() for of in _MACHINES):
                    continue  # what its annotations name is slow to look up
                try:
                    hints = typing.get_type_hints(inspect.unwrap(function))
                except NameError:  # a type that is imported for type checkers only
                    continue
                parameters = inspect.signature(function).parameters.values()
                named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
                needed = {each.name: hints.get(each.name) for each in named if each.default is each.empty}
                if any(of in (Runner, HoldingRunner, CreationLog) for of in needed.values()):
                    yield f"{found.name}.{name}", function, needed


NAMED = {"place": "directory"}
"""Values of arguments and fields of which only some texts are possible."""


def value(of: Any, odd: Odd) -> Any:
    """Some value of this type. LookupError if none can be made up."""
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    plain: dict[Any, Any] = {str: "/x", int: 1, float: 1.0, bool: False, Path: Path("/x"), RunId: ID}
    made: dict[Any, Callable[[], Any]] = {
        Runner: lambda: odd,
        HoldingRunner: lambda: odd,
        Events: Events,
        CreationLog: lambda: CreationLog(typing.cast("Runner", odd), ID, "/x"),
        typing.Annotated: lambda: value(arguments[0], odd),
        typing.Union: lambda: None if type(None) in arguments else value(arguments[0], odd),
        typing.Literal: lambda: arguments[0],
        dict: lambda: {value(arguments[0], odd): value(arguments[1], odd)},
        list: lambda: [value(arguments[0], odd)],
        tuple: lambda: tuple(value(each, odd) for each in arguments if each is not Ellipsis),
        collections.abc.Callable: lambda: lambda *_arguments, **_options: None,
    }
    made[types.UnionType], made[collections.abc.Mapping] = made[typing.Union], made[dict]
    for several in (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection):
        made[several] = made[list]
    if of in plain:
        return plain[of]
    if (make := made.get(of) or made.get(origin)) is not None:
        return make()
    if isinstance(of, type) and dataclasses.is_dataclass(of):
        hints = typing.get_type_hints(of)
        needed = [
            each
            for each in dataclasses.fields(of)
            if each.init and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        ]
        return of(**{each.name: NAMED.get(each.name) or value(hints[each.name], odd) for each in needed})
    raise LookupError(of)


def _called(function: Callable[..., Any], needed: dict[str, Any], odd: Odd) -> None:
    arguments = {name: NAMED.get(name) or value(of, odd) for name, of in needed.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", lambda _seconds: None)
        try:
            found = function(**arguments)
            if inspect.isgeneratorfunction(inspect.unwrap(function)) and hasattr(found, "__enter__"):
                with found:
                    pass
            elif inspect.isgenerator(found):
                list(found)
        except HarnessError:
            return


def _is_callable(needed: dict[str, Any]) -> bool:
    """Whether all its arguments can be made up. Many need a permission of the guard, or a guest."""
    try:
        return bool([value(of, Odd("")) for of in needed.values()])
    except (LookupError, TypeError, ValueError):
        return False


_FUNCTIONS = [found for found in functions() if _is_callable(found[2])]


def test_the_functions_are_found() -> None:
    assert len(_FUNCTIONS) > 60


@pytest.mark.parametrize(
    ("function", "needed"),
    [pytest.param(function, needed, id=name) for name, function, needed in _FUNCTIONS if name not in OTHER_ARGUMENTS],
)
def test_odd_output_is_a_value_or_an_error_of_ours(function: Callable[..., Any], needed: dict[str, Any]) -> None:
    for text in ODD:
        _called(function, needed, Odd(text))
    for seed in range(30):
        _called(function, needed, Odd("a b", seed))


@pytest.mark.parametrize("text", ["", "a b", "held 1", "held 1 2; rm -rf /", "held x y", "held 1 2 3", "9" * 4000])
def test_odd_words_of_the_holder_of_a_lease_never_become_words_of_a_shell(text: str) -> None:
    odd = typing.cast("HoldingRunner", Odd(text))
    with pytest.raises(HarnessError), lease(odd, "node1", ID, Events(), directory="/x"):
        pass


@pytest.mark.parametrize("text", ["", "a b", "-1", "9" * 400, "1.5", "nan"])
def test_an_odd_size_of_a_backup_is_an_error_of_ours(text: str) -> None:
    log = CreationLog(typing.cast("Runner", Odd(text)), ID, "/x")
    source = BlockSource("/dev/x", "block", 0, 1)
    with pytest.raises(HarnessError), backup_file(log, HostSpec("h", "local", None, ()), "m", source):
        pass


def test_a_removal_that_fails_in_an_unexpected_way_does_not_hide_what_is_left() -> None:
    removed = []

    def fails() -> None:
        raise ValueError("odd")

    cleanup = Cleanup("host node1", "look")
    cleanup.by("the disk", lambda: removed.append("the disk"))
    cleanup.by("the file", fails)
    with pytest.raises(HostError, match=r"host node1: left behind: the file \(ValueError: odd\)"), cleanup:
        pass
    assert removed == ["the disk"]


@pytest.mark.parametrize(
    "data", [None, {}, [None], [[]], ["x"], 7, [{"vmid": "x"}], [{"size": []}], [{"avail": "9 G"}]]
)
@pytest.mark.parametrize("path", ["nodes/pve/storage", "storage", "cluster/resources", "nodes/pve/qemu"])
def test_an_odd_list_of_proxmox_ve_is_an_error_of_ours(path: str, data: object) -> None:
    with pytest.raises(HostError, match="host node1: the answer cannot be read"):
        check_answer("host node1: the answer", path, data)


def test_what_a_table_of_proxmox_ve_lacks_is_an_error_of_ours() -> None:
    (table,) = check_answer(
        "host node1: the answer", "nodes/pve/storage", [{"storage": "local", "avail": "17", "size": None}]
    )
    assert table["avail"] == "17"
    assert table.get("type") is None
    with pytest.raises(HostError, match='host node1: the answer cannot be read: there is no "type"'):
        table["type"]
    with pytest.raises(HostError):
        check_answer("host node1: the answer", "nodes/pve/qemu/100/config", [])
