"""Reading of YAML files into configuration models. Errors name file, key, value and what is allowed."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from redraft.errors import UserError

M = TypeVar("M", bound=BaseModel)


class _UniqueKeys(yaml.CSafeLoader):
    """YAML loader that refuses a repeated key, of which YAML would silently take the last."""


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", node.start_mark)
    return {key: loader.construct_object(value, deep=True) for key, (_, value) in zip(keys, node.value, strict=True)}


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse(model: type[M], content: Any, file: Path | str, context: dict[str, Any] | None = None) -> M:
    """Validate parsed YAML as a model; `file` is named in messages, `context` goes to the model's validators.

    Raises:
        UserError: with the first offending key, its value and what is allowed.
    """
    try:
        return model.model_validate(content, context=context)
    except ValidationError as error:
        first = error.errors()[0]
        tag = ("kind",) if first["type"].startswith("union_tag") else ()
        key = ".".join(str(part) for part in (*first["loc"], *tag)) or "(the whole file)"
        allowed = first.get("ctx", {}).get("expected_tags") or first.get("ctx", {}).get("expected")
        if first["type"] == "extra_forbidden":
            allowed = _fields_at(model, first["loc"])
        value = first["input"] if not isinstance(first["input"], dict) else first["input"].get("kind", "(a mapping)")
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(message, file=file, key=key, value=value, allowed=allowed) from None


def _fields_at(model: type[BaseModel], location: tuple) -> str | None:
    """Fields of the model that holds the unknown key, found by a walk of the schema along the error's location."""
    schema = model.model_json_schema()
    node: dict = schema
    for part in location[:-1]:
        node = resolved(schema, node)
        if isinstance(part, int):
            node = node.get("items", {})
        elif part in node.get("properties", {}):
            node = node["properties"][part]
        elif part in node.get("discriminator", {}).get("mapping", {}):
            node = {"$ref": node["discriminator"]["mapping"][part]}
        else:
            node = mapping_values(node)
    fields = resolved(schema, node).get("properties", {}) if isinstance(node, dict) else {}
    return ", ".join(sorted(fields)) or None


def mapping_values(schema: dict) -> dict:
    """JSON schema of a mapping's values; keys may have a pattern."""
    values: Any = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), {})
    return values if isinstance(values, dict) else {}


def resolved(schema: dict, node: dict) -> dict:
    """A node of a JSON schema, or what it refers to."""
    return schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node


def check_known(
    names: Iterable[str], known: Collection[str], message: str, file: Path | None = None, key: str | None = None
) -> None:
    """Raise a UserError for the first name that is not known."""
    for name in names:
        if name not in known:
            raise UserError(message, file=file, key=key, value=name, allowed=known)


def read_yaml(file: Path) -> Any:
    """Parse a YAML file; a UserError if it is missing, not UTF-8 or not YAML."""
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except FileNotFoundError:
        siblings = (path.stem for path in file.parent.glob("*.yaml"))
        raise UserError("no such file", file=file, allowed=siblings) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError("not UTF-8", file=file, key=f"line {line}", value=error.object[error.start]) from None
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {' '.join(str(error).split())}", file=file) from None


def merge(base: dict, change: dict) -> dict:
    """Merge `change` into a copy of `base`, mapping by mapping. Neither argument is changed."""
    merged = dict(base)
    for key, value in change.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested else value
    return merged
