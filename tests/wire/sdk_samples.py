"""Makes sample values of the types of the providers' own packages, from their definitions."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel

Json: TypeAlias = dict[str, Any]
DEEPEST = 6


def members(union: Any) -> Iterator[type[BaseModel]]:
    """Yields the models of a union, however it is annotated and nested."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        yield union
        return
    for part in get_args(union):
        if get_origin(part) in (Union, types.UnionType, Annotated) or (
            isinstance(part, type) and issubclass(part, BaseModel)
        ):
            yield from members(part)


def kind(model: type[BaseModel]) -> str:
    """Returns the `type` by which a model is told apart."""
    return str(get_args(model.model_fields["type"].annotation)[0])


def sample(model: type[BaseModel], depth: int = 0, *, by_alias: bool = True) -> Json:
    """Returns an object with all fields of a model; those that would be nested too deeply are left out."""
    return {
        (field.alias or name) if by_alias else name: value
        for name, field in model.model_fields.items()
        if (value := _value(field.annotation, name, depth)) is not None
    }


def _value(annotation: Any, name: str, depth: int) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(arguments[0], name, depth)
    if origin in (Union, types.UnionType):
        return next(
            (v for part in arguments if part is not type(None) and (v := _value(part, name, depth)) is not None), None
        )
    if origin is Literal:
        return arguments[0]
    if origin in (list, tuple):
        inner = _value(arguments[0], name, depth + 1) if arguments else None
        return [] if inner is None else [inner]
    if origin in (dict, Mapping):
        return {"k": "v"} if depth < DEEPEST else None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return sample(annotation, depth + 1) if depth < DEEPEST else None
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return next(iter(annotation)).value
    plain: dict[Any, Any] = {str: f"{name}-1", int: 1, float: 0.5, bool: True, object: {"k": "v"}, Any: {"k": "v"}}
    plain[bytes] = "aGk="
    return plain.get(annotation)


def shape_sample(shape: Any, depth: int = 0) -> Any:
    """Returns a sample of a shape of botocore; of a union its first member."""
    match shape.type_name:
        case "structure":
            if depth >= DEEPEST:
                return None
            names = list(shape.members)[:1] if getattr(shape, "is_tagged_union", False) else list(shape.members)
            return {n: v for n in names if (v := shape_sample(shape.members[n], depth + 1)) is not None}
        case "list":
            inner = shape_sample(shape.member, depth + 1)
            return [] if inner is None else [inner]
        case "map":
            return {"k": "v"}
        case "string":
            return shape.enum[0] if shape.enum else "text-1"
        case "blob":
            return "aGk="
        case "boolean":
            return True
        case "integer" | "long":
            return 1
        case _:
            return 0.5
