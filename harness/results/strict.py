"""How pydantic reads stored records back: unknown keys are refused, and nothing is coerced."""

from pydantic import ConfigDict

# The docstring below an attribute becomes its description in docs/results.schema.json.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
