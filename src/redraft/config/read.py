"""Reading of YAML files into configuration models. Errors name the file, the key, the value and the allowed values."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from redraft.errors import UserError

M = TypeVar("M", bound=BaseModel)


class _UniqueKeys(yaml.CSafeLoader):
    """YAML loader that rejects a repeated key. PyYAML would silently use the last one."""


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} occurs twice", node.start_mark)
    return {key: loader.construct_object(value, deep=True) for key, (_, value) in zip(keys, node.value, strict=True)}


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse(model: type[M], content: Any, file: Path | str, context: dict[str, Any] | None = None) -> M:
    """Validate parsed YAML as a model; messages name `file`, and the model's validators get `context`.

    Raises:
        UserError: with the first key that is wrong, as a path in the file, its value and what is allowed.
    """
    try:
        return model.model_validate(content, context=context)
    except ValidationError as error:
        errors = error.errors()
        first = _misspelled(errors) or errors[0]
        key = _path_in_file(first, content)
        # A value that fits no type of a union has an error for each type.
        messages = [each["msg"].removeprefix("Value error, ") for each in errors if _path_in_file(each, content) == key]
        others = [message.removeprefix("Input should be ") for message in messages[1:]]
        allowed = first.get("ctx", {}).get("expected_tags") or first.get("ctx", {}).get("expected")
        if first["type"] == "extra_forbidden":
            messages, others, allowed = messages[:1], [], _fields_at(model, first["loc"])
        value = None if first["type"] == "missing" else _shown(first)
        message = " or ".join(dict.fromkeys([messages[0], *others]))
        raise UserError(message, file=file, key=key or "(the whole file)", value=value, allowed=allowed) from None


def _misspelled(errors: list[ErrorDetails]) -> ErrorDetails | None:
    """The unknown key of a mapping in which the first error misses one: the likely misspelling of the missing key."""
    if errors[0]["type"] != "missing":
        return None
    unknown = (
        each for each in errors if each["type"] == "extra_forbidden" and each["loc"][:-1] == errors[0]["loc"][:-1]
    )
    return next(unknown, None)


def _shown(error: ErrorDetails) -> Any:
    """Value of a wrong key; a mapping or list is not written out, since it may be the whole file."""
    value = error["input"]
    if isinstance(value, dict):
        return value.get("kind", "(a mapping)") if error["type"].startswith("union_tag") else "(a mapping)"
    return "(a list)" if isinstance(value, list) and len(str(value)) > 200 else value


def _path_in_file(error: ErrorDetails, content: Any) -> str:
    """Dotted path of an error's key in the parsed YAML; empty for the whole file.

    Pydantic's location also has the tag of each discriminated union (`reuse.speculative.lenience`), the type of each
    other union (`epochs.int`) and `[key]` for a wrong key of a mapping. None of these is in the file.
    """
    path: list[str] = []
    node: Any = content
    tagged = False
    for part in error["loc"]:
        is_mapping = isinstance(node, dict)
        is_item = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if is_mapping and node.get("kind") == part and not tagged:
            tagged = True  # once for each mapping, since a key may have the tag's name
        elif is_item or (is_mapping and part in node):
            path.append(str(part))
            node, tagged = node[part], False
        elif (is_mapping or isinstance(node, list)) and error["type"] == "missing" and part == error["loc"][-1]:
            path.append(str(part))
    if error["type"].startswith("union_tag"):
        path.append("kind")
    return ".".join(path)


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> str | None:
    """Fields of the model that got an unknown key, by a walk of its JSON schema along the error's location."""
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in location[:-1]:
        node = _without_null(schema, node)
        if isinstance(part, int):
            node = node.get("items", {})
        elif part in node.get("properties", {}):
            node = node["properties"][part]
        elif part in node.get("discriminator", {}).get("mapping", {}):
            node = {"$ref": node["discriminator"]["mapping"][part]}
        else:
            node = mapping_values(node)
    return ", ".join(sorted(_without_null(schema, node).get("properties", {}))) or None


def _without_null(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A node of a JSON schema, resolved; of an optional value the node of the value."""
    options = [option for option in node.get("anyOf", []) if option.get("type") != "null"]
    return resolved(schema, options[0] if len(options) == 1 else node)


def mapping_values(schema: dict) -> dict:
    """JSON schema of a mapping's values; keys may have a pattern."""
    values: Any = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), {})
    return values if isinstance(values, dict) else {}


def resolved(schema: dict, node: dict) -> dict:
    """A node of a JSON schema, or the definition that it refers to."""
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
