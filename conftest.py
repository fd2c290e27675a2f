"""Loads virt-overhead's pytest plugin."""

pytest_plugins = ["harness.plugin"]
