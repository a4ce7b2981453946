"""The smallest values that satisfy a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctxfold.testing.values import as_list, as_mapping

Schema = Mapping[str, Any]
_DEPTH = 32


def minimal(schema: Schema, root: Schema | None = None, depth: int = 0) -> Any:
    """A minimal value that fits the schema: required members only, the first of any choice."""
    root = schema if root is None else root
    if depth > _DEPTH:  # a schema that requires itself has no finite value
        return None
    if "$ref" in schema:
        return minimal(_resolve(str(schema["$ref"]), root), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return minimal(as_mapping(schema[key][0]), root, depth + 1)
    if schema.get("allOf"):
        return minimal(_merged(as_list(schema["allOf"]), root), root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: Schema, root: Schema, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match (as_list(kind) or [kind])[0]:
        case "object":
            properties = as_mapping(schema.get("properties"))
            required = as_list(schema.get("required"))
            return {name: minimal(as_mapping(properties.get(name)), root, depth + 1) for name in required}
        case "array":
            item = as_mapping(schema.get("items"))
            return [minimal(item, root, depth + 1) for _ in range(int(schema.get("minItems") or 0))]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return _FORMATS.get(str(schema.get("format")), "x" * int(schema.get("minLength") or 0))


_FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "a@example.com",
    "uri": "http://example.com",
    "uuid": "00000000-0000-0000-0000-000000000000",
}


def _number(schema: Schema) -> float | int:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    value = max(0, low) if low is not None else 0
    if low is not None and "minimum" not in schema and value == low:
        value += 1
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if high is not None and value > high:
        value = high
    if high is not None and "maximum" not in schema and value == high:
        value -= 1
    step = schema.get("multipleOf")
    return value if not step or value % step == 0 else (value // step + 1) * step


def _resolve(reference: str, root: Schema) -> Schema:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            found = as_mapping(found).get(part.replace("~1", "/").replace("~0", "~"))
    return as_mapping(found)


def _merged(schemas: list[Schema], root: Schema) -> Schema:
    merged: dict[str, Any] = {}
    for part in schemas:
        one = _resolve(str(part["$ref"]), root) if "$ref" in part else part
        properties = {**merged.get("properties", {}), **one.get("properties", {})}
        required = [*merged.get("required", ()), *one.get("required", ())]
        merged.update(one)
        merged.update({"properties": properties, "required": required} if properties else {})
    return merged
