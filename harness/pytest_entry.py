"""The entry point for pytest, which loads it in every project of the environment. It imports nothing of the harness.

The plugin itself is loaded only where it is wanted: its options (`--profile`, `--seed`) would clash with those of other
plugins.
"""

from __future__ import annotations

import tomllib

import pytest

PLUGIN = "harness.plugin"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Load the plugin if pyproject.toml in pytest's rootdir has a table `[tool.virt-overhead]`."""
    try:
        text = (early_config.rootpath / "pyproject.toml").read_text(encoding="utf-8-sig")
        wanted = "virt-overhead" in text and "virt-overhead" in tomllib.loads(text).get("tool", {})
    except (OSError, ValueError):
        return  # pytest and other programs report a file that cannot be read.
    if wanted:
        # The plugin's name is its module's, so that a conftest.py with `pytest_plugins` does not load it again.
        early_config.pluginmanager.import_plugin(PLUGIN)
