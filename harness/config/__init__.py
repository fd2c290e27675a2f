"""Shared code for the files that users write: TOML, and messages that name key, value and what is allowed."""
