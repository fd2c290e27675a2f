"""How often a run in which no guest differs from its host, or from another guest, says that one does."""
