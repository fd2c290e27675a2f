"""Makes data/api.json of the API viewer's schema: what is needed to check parameters, formats written once.

python -m pve_double.compact_api API_JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent / "data" / "api.json"
LEFT_OUT = (
    "firewall", "remote_migrate", "mtunnel", "spice", "vnc", "termproxy", "file-restore", "dbus-vmstate",
    "oci-registry-pull", "prunebackups", "identity", "import-metadata",
)  # fmt: skip
"""Parts of paths that no backend of ours calls."""
KEPT = (
    "type", "optional", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "requires",
    "default_key", "alias", "keyAlias", "items",
)  # fmt: skip
"""The keys of a property that decide whether a value is accepted."""


def compact(api: dict[str, Any]) -> dict[str, Any]:
    """`{"formats": {NAME: properties}, "paths": {PATH: {METHOD: {...}}}}` of the viewer's schema."""
    formats: dict[str, Any] = {}
    paths = {
        path: {method: _method(info, formats) for method, info in node["info"].items()}
        for path, node in api.items()
        if "info" in node and not any(word in path for word in LEFT_OUT)
    }
    return {"formats": formats, "paths": paths}


def _method(info: dict[str, Any], formats: dict[str, Any]) -> dict[str, Any]:
    properties = info.get("parameters", {}).get("properties", {})
    return {
        "parameters": {name: _property(name, schema, formats) for name, schema in properties.items()},
        "permissions": info.get("permissions"),
        "protected": bool(info.get("protected")),
        "proxyto": info.get("proxyto"),
        "allowtoken": bool(info.get("allowtoken", 1)),
    }


def _property(name: str, schema: dict[str, Any], formats: dict[str, Any]) -> dict[str, Any]:
    kept = {key: schema[key] for key in KEPT if key in schema}
    if isinstance(kept.get("format"), dict):
        properties = {inner: _property(inner, each, formats) for inner, each in kept["format"].items()}
        kept["format"] = {"named": _known_as(name, properties, formats)}
    return kept


def _known_as(name: str, properties: dict[str, Any], formats: dict[str, Any]) -> str:
    for known, each in formats.items():
        if each == properties:
            return known
    unique = name if name not in formats else f"{name} {len(formats)}"
    formats[unique] = properties
    return unique


def main() -> None:
    api = json.loads(Path(sys.argv[1]).read_text())
    TARGET.write_text(json.dumps(compact(api), sort_keys=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
