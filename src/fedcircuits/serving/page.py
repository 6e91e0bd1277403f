"""The service's start page: its OpenAPI document as HTML on which one can ask."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment


def page(api: dict[str, Any], url: str, nonce: str) -> str:
    """HTML of an OpenAPI document, with a script of its own that asks this service alone.

    Args:
        api: the document.
        url: where the service is, for the examples.
        nonce: that marks the page's own script and style.
    """
    operations = [
        {
            "method": method.upper(),
            "path": path,
            "name": path.strip("/"),
            "description": entry.get("description", ""),
            **_body(api, entry),
        }
        for path, methods in api["paths"].items()
        for method, entry in methods.items()
    ]
    operations.sort(key=lambda operation: operation["method"] == "GET")  # questions first
    source = files("fedcircuits.serving").joinpath("start.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True).from_string(source)
    return template.render(api=api, operations=operations, url=url.rstrip("/"), nonce=nonce)


def _body(api: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Return the fields and an example of a request's body."""
    if "requestBody" not in operation:
        return {"fields": [], "example": ""}
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = api["components"]["schemas"][reference.rpartition("/")[2]]
    needed = schema.get("required", [])
    fields = [
        {
            "name": name,
            "type": _type(entry),
            "default": "needed" if name in needed else json.dumps(entry.get("default")),
            "description": entry.get("description", ""),
        }
        for name, entry in schema["properties"].items()
    ]
    examples = schema.get("examples", [])
    return {"fields": fields, "example": json.dumps(examples[0]) if examples else ""}


def _type(entry: dict[str, Any]) -> str:
    """Return a JSON type as text."""
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(_type(choice) for choice in entry["anyOf"]))
    if "enum" in entry:
        return " or ".join(map(json.dumps, entry["enum"]))
    if entry.get("type") == "array":
        return f"list of {_type(entry['items'])}s"
    return str(entry.get("type", "value"))
