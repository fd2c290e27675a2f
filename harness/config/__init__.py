"""What all files that people write have in common: TOML, and messages that name key, value and what is allowed."""
