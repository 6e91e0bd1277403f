"""The service's documentation page: its OpenAPI document as HTML that loads nothing else."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment

# Styles stand in the page and nothing else is allowed, so a browser asks nobody for anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ api.info.title }}</title>
<link rel="icon" href="data:,">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1rem .2rem 0;
       vertical-align: top; }
h2 { border-top: 1px solid #ddd; padding-top: 1rem; }
</style></head><body>
<h1>{{ api.info.title }}</h1>
<p>{{ api.info.description }}</p>
<p>Every request but <code>/health</code>, this page and <a href="openapi.json">openapi.json</a>
carries the header <code>Authorization: Bearer TOKEN</code>.</p>
{% for o in operations %}
<h2><code>{{ o.method }} {{ o.path }}</code></h2>
<p>{{ o.description }}</p>
{% if o.fields %}<table><tr><th>field</th><th>type</th><th>default</th><th></th></tr>
{% for f in o.fields %}<tr><td><code>{{ f.name }}</code></td><td>{{ f.type }}</td>
<td>{{ f.default }}</td><td>{{ f.description }}</td></tr>
{% endfor %}</table>{% endif %}
{% if o.example %}<pre>curl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\
  -d '{{ o.example }}' {{ url }}{{ o.path }}</pre>{% endif %}
{% endfor %}
</body></html>
"""


def page(api: dict[str, Any], url: str) -> str:
    """HTML of an OpenAPI document.

    Args:
        api: the document.
        url: where the service is, for the examples.
    """
    operations = [
        {
            "method": method.upper(),
            "path": path,
            "description": entry.get("description", ""),
            **_body(api, entry),
        }
        for path, methods in api["paths"].items()
        for method, entry in methods.items()
    ]
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(api=api, operations=operations, url=url.rstrip("/"))


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
