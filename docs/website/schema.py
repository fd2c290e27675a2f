"""The JSON Schema of results.json, made from the records: `python -m docs.website.schema > FILE`."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from docs.website.tables import read_field_docs
from harness.feature import feature_records
from harness.model.attach import ATTACH_OPTIONS, Attach
from harness.results.records import SCHEMA_VERSION, Run
from harness.results.store import list_kernel_keys, make_stored_adapter


class DescribedSchema(GenerateJsonSchema):
    """Describes each key by the text below its field, and says that no other key is allowed."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _describe(super().dataclass_schema(schema), schema["cls"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _describe(super().model_schema(schema), schema["cls"])


def _describe(json_schema: JsonSchemaValue, record: type) -> JsonSchemaValue:
    for key, text in read_field_docs(record).items():
        if key in json_schema.get("properties", {}):
            json_schema["properties"][key].setdefault("description", text)
    # Versions of pydantic differ in whether they say so of a record without a configuration of its own.
    json_schema.setdefault("additionalProperties", False)
    return json_schema


def json_schema() -> dict[str, Any]:
    """Draft 2020-12. Every key is required and no other key is allowed, as in the files that a run writes."""
    schema = make_stored_adapter().json_schema(mode="serialization", schema_generator=DescribedSchema)
    described = TypeAdapter(Run).json_schema(mode="serialization", schema_generator=DescribedSchema)["properties"]
    words = {key: described[key].get("description") for key in list_kernel_keys()}
    words |= {feature_record.key: feature_record.description for feature_record in feature_records()}
    schema["properties"] = {
        key: dict(sorted({**value, "description": words[key]}.items())) for key, value in schema["properties"].items()
    }
    schema = dict(sorted({**schema, "description": Run.__doc__}.items()))
    schema["properties"]["schema"]["const"] = SCHEMA_VERSION
    _describe_the_rest(schema["$defs"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"results.json of virt-overhead, schema {SCHEMA_VERSION}",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _describe_the_rest(records: dict[str, Any]) -> None:
    """Add the words on options whose row in the table explains them."""
    for key, value in records[Attach.__name__]["properties"].items():
        if "description" not in value and ATTACH_OPTIONS[key].values:
            value["description"] = f"{ATTACH_OPTIONS[key].values}; null: {ATTACH_OPTIONS[key].by_default}."


def text() -> str:
    """The content of docs/results.schema.json."""
    return json.dumps(_without_titles(json_schema()), indent=2) + "\n"


def _without_titles(node: Any) -> Any:
    """pydantic's titles repeat the keys and are removed. The title of the document stays."""
    if isinstance(node, dict):
        return {
            key: {name: _without_titles(sub) for name, sub in value.items()}
            if key in ("properties", "$defs")
            else _without_titles(value)
            for key, value in node.items()
            if key != "title" or "$schema" in node
        }
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    return node


if __name__ == "__main__":
    sys.stdout.write(text())
