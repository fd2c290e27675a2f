"""A substitute that some module would not use is an error."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tests import substitutes
from tests.substitutes import require_no_bypass, substitute


@pytest.fixture
def defining(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the harness with a function, which another module has imported."""

    def measure() -> int:
        return 1

    monkeypatch.setattr(substitutes, "_SUBSTITUTED", [])
    modules = [ModuleType("harness.defining"), ModuleType("harness.using")]
    measure.__module__ = "harness.defining"
    for module in modules:
        module.measure = measure  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return modules[0]


def test_a_module_with_the_original_is_named(defining: ModuleType) -> None:
    substitute(defining, measure=lambda: 2)
    with pytest.raises(AssertionError, match=r"not substituted: harness\.using\.measure"):
        require_no_bypass()


@pytest.mark.usefixtures("defining")
def test_the_module_that_uses_it_can_be_the_only_one() -> None:
    substitute(sys.modules["harness.using"], measure=lambda: 2)
    require_no_bypass()


def test_a_name_that_the_module_lacks_is_refused(defining: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'gone'"):
        substitute(defining, gone=SimpleNamespace())
