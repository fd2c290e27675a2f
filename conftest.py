"""Loads the plugin that is this project, and does nothing else."""

pytest_plugins = ["harness.plugin"]
