"""The page of the service: one HTML document without scripts and without anything from elsewhere.

Owns its texts and its order. Everything about requests comes from the OpenAPI document.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem 1.5rem 4rem;
       color: #1b1f24; background: #fff }
h1 { font-size: 1.7rem } h2 { border-bottom: 1px solid #d0d7de; margin-top: 2.5rem } h2::first-letter
{ text-transform: uppercase }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem } pre { background: #f3f5f7; padding: .7rem;
overflow-x: auto; border-radius: 6px } .doc { white-space: pre-line }
details { border: 1px solid #d0d7de; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem }
summary { cursor: pointer } .method { display: inline-block; width: 4.2rem; font-weight: 600 }
table { border-collapse: collapse; margin: .5rem 0 } td, th { border-bottom: 1px solid #d8dee4; padding: .2rem .8rem
.2rem 0; text-align: left; vertical-align: top } .dim { color: #59636e }
@media (prefers-color-scheme: dark) { body { color: #e6e8ea; background: #15181c } pre { background: #22272d }
h2, details, td, th { border-color: #3b434c } .dim { color: #9aa4ae } a { color: #7db4ff } }
"""
_FIRST_MINUTE: Final = """\
LAB={address}
ID=$(curl -s -X POST $LAB/v1/clusters | sed 's/.*"id":"\\(c-[^"]*\\)".*/\\1/')
curl -s $LAB/v1/clusters/$ID                       # bootstrap_servers, and settings of clients
curl -sN $LAB/v1/clusters/$ID/lease >/dev/null &   # the cluster ends with this process
curl -s $LAB/v1/clusters/$ID/topics --json '{{"name": "orders"}}'
curl -s $LAB/v1/clusters/$ID/topics/orders/records --json '{{"values": 100}}'
curl -s $LAB/v1/clusters/$ID/situations/unclean_election --json '{{"topic": "orders", "lose": 20}}'
curl -s "$LAB/v1/clusters/$ID/losses?topic=orders" # loss receipts
curl -s $LAB/v1/clusters/$ID/faults --json '{{"kind": "lose_answers", "api": "Produce", "times": 1}}'
curl -s $LAB/v1/clusters/$ID/timeline/text         # what happened
curl -s -X DELETE $LAB/v1/clusters/$ID"""


def first_minute(address: str) -> str:
    """The first commands, for a service at this address."""
    return _FIRST_MINUTE.format(address=address)


def html_page(document: Mapping[str, Any], address: str) -> str:
    """The page for an OpenAPI document, of the service at an address."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["other"])[0]
            by_tag.setdefault(tag, []).append(_operation(document, path, method.upper(), operation))
    sections = "\n".join(
        f'<h2 id="{_anchor(tag)}">{_text(tag)}</h2>\n' + "\n".join(parts) for tag, parts in by_tag.items()
    )
    links = " · ".join(f'<a href="#{_anchor(tag)}">{_text(tag)}</a>' for tag in by_tag)
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(info["title"])}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>
<h1>{_text(info["title"])} <span class="dim">{_text(info["version"])}</span></h1>
<p>{_text(info["description"])}</p>
<p>{links} · <a href="openapi.json">openapi.json</a></p>
<h2>The first minute</h2>
<pre>{_text(first_minute(address))}</pre>
<p><code>--json</code> needs curl 7.82. Bytes are text, or <code>{{"base64": "..."}}</code>; answers have both.
Errors are <code>{{"error", "message", "advice"}}</code>. A cluster ends when no request was about it for
<code>lease_s</code> seconds, and at once when a request to <code>/lease</code> ends.</p>
{sections}
</body></html>
"""


def _operation(document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]) -> str:
    example, model = _example(document, operation)
    rows = list(_parameters(operation)) + list(_fields(document, model))
    table = f"<table><tr><th>Argument</th><th>Type</th><th>Default</th></tr>{''.join(rows)}</table>" if rows else ""
    return (
        f'<details id="{_anchor(operation["operationId"])}"><summary><span class="method">{method}</span>'
        f'<code>{_text(path)}</code> <span class="dim">{_text(operation.get("summary", ""))}</span></summary>'
        f'<p class="doc">{_text(operation.get("description", ""))}</p>{table}'
        f"<pre>{_text(_curl(path, method, example))}</pre>{_kinds(document, model)}</details>"
    )


def _curl(path: str, method: str, example: Any) -> str:
    known = {"cluster_id": "$ID", "topic": "orders", "partition": "0", "node": "1", "fault_id": "1"}
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)
    address = f"$LAB{path.replace('{receipt_id}', '$RECEIPT')}"
    if method == "GET":
        return f"curl -s {address}"
    if example is None:
        return f"curl -s -X {method} {address}"
    return f"curl -s {address} --json '{json.dumps(example)}'"


def _example(document: Mapping[str, Any], operation: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """A body of the request, and its schema; None and an empty one without a body."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None, {}
    schema = _resolved(document, content["schema"])
    shown = [each["value"] for each in content.get("examples", {}).values()]
    shown += schema.get("examples", [])
    return (shown[0] if shown else {}), schema


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the reference, and without null where null or nothing is accepted."""
    options = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if len(options) == 1 and "anyOf" in schema:
        return _resolved(document, options[0])
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def _kinds(document: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The alternatives of a body, such as the kinds of faults."""
    parts = []
    for each in model.get("oneOf", []):
        kind = _resolved(document, each)
        example = kind.get("examples", [{}])[0]
        parts.append(
            f"<details><summary><code>{_text(str(example.get('kind', '')))}</code></summary>"
            f'<p class="doc">{_text(kind.get("description", ""))}</p><table>{"".join(_fields(document, kind))}</table>'
            f"<pre>{_text(json.dumps(example))}</pre></details>"
        )
    return "".join(parts)


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    for each in operation.get("parameters", []):
        if each["in"] == "query":
            yield _row(each["name"], each["schema"], is_required=each.get("required", False))


def _fields(document: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in model.get("properties", {}).items():
        yield _row(name, schema, is_required=name in model.get("required", []))


def _row(name: str, schema: Mapping[str, Any], *, is_required: bool) -> str:
    default = "required" if is_required else json.dumps(schema["default"]) if "default" in schema else ""
    return f"<tr><td><code>{_text(name)}</code></td><td>{_text(_type(schema))}</td><td>{_text(default)}</td></tr>"


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", schema.get("$ref", "any").rpartition("/")[2]))


def _anchor(text: str) -> str:
    return _text(text.replace(" ", "-"))


def _text(text: str) -> str:
    return html.escape(text)
