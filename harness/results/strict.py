"""How pydantic reads stored records: it refuses unknown keys and converts nothing."""

from pydantic import ConfigDict

# The docstring below an attribute becomes its description in docs/results.schema.json.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
