"""How long a history of many runs and cells takes to query."""
