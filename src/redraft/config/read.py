"""Reading of YAML files into configuration models. Errors name the file, the key, the value and the allowed values."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from redraft.config.base import near
from redraft.errors import UserError

M = TypeVar("M", bound=BaseModel)
MAX_VALUES = 1_000_000
"""Values of a file with all aliases expanded. Aliases of aliases reach billions in a few lines."""
MAX_DEPTH = 100
"""Levels of nested lists and mappings. The C library recurses, and crashes at some thousands."""
LONGEST_SHOWN = 200
"""Characters of a value in a message."""


class _Loader(yaml.CSafeLoader):
    """YAML loader for texts, numbers, booleans, lists and mappings.

    It differs from PyYAML's in four ways. A repeated key is an error, and not silently the last one. Numbers are those
    of YAML 1.2: `5e-7` is one, while `1:30` and `010` are texts, and not 90 and 8. Dates are texts. Other tags are
    errors.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":int", ":float", ":timestamp"))]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Value of a node; the line is in the message of an invalid one."""
        try:
            return super().construct_object(node, deep=True)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            text = shown(node.value) if isinstance(node.value, str) else "this"
            message = f"{text!r} is not of the type {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark) from None


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9]\d*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^([-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    mapping = {}
    for key_node, value_node in node.value:
        if key_node.tag.endswith(":merge"):
            raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are unsupported", key_node.start_mark)
        key = loader.construct_object(key_node)
        # YAML reads `on:`, `yes:` and `null:` as keys that are no texts.
        if not isinstance(key, str | int | float) or isinstance(key, bool):
            message = "a key must be a text, in quotes if YAML reads it as another type"
            raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
        if key in mapping:
            message = f"key {shown(key)!r} occurs twice"
            raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
        mapping[key] = loader.construct_object(value_node)
    return mapping


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> list:
    return [loader.construct_object(value) for value in node.value]


def _other_tag(_: _Loader, node: yaml.Node) -> None:
    raise yaml.constructor.ConstructorError(None, None, f"the tag {shown(node.tag)} is unsupported", node.start_mark)


_Loader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.CSafeLoader.yaml_constructors.items()
    if tag and tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str")
}
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _sequence)
_Loader.add_constructor(None, _other_tag)  # type: ignore[arg-type]


def shown(value: Any) -> Any:
    """A value as messages show it: a long text is cut, and a mapping or a long list is not written out."""
    if isinstance(value, dict):
        return "(a mapping)"
    if isinstance(value, list):
        return "(a list)" if len(value) > LONGEST_SHOWN or len(str(value)) > LONGEST_SHOWN else value
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > LONGEST_SHOWN:
        return f"(an integer of {value.bit_length()} bits)"
    return f"{value[:LONGEST_SHOWN]}…" if isinstance(value, str) and len(value) > LONGEST_SHOWN else value


def parse(model: type[M], content: Any, file: Path | str, context: dict[str, Any] | None = None) -> M:
    """Validate parsed YAML as a model; messages name `file`, and the model's validators get `context`.

    Raises:
        UserError: with the first key that is wrong, as a path in the file, its value and what is allowed.
    """
    try:
        return model.model_validate(content, context=context)
    except ValidationError as error:
        errors = error.errors()
    except RecursionError:
        raise UserError("lists and mappings are nested too deeply", file=file) from None
    # A misspelled key is also a missing one; the misspelling says what to correct.
    first = _misspelled(errors) or errors[0]
    path = path_in_file(first, content)
    # A value that fits no type of a union has an error for each type.
    same = [each for each in errors if path_in_file(each, content) == path]
    messages = [_words(each) for each in same]
    others = [message.removeprefix("must be ") for message in messages[1:]]
    details = first.get("ctx", {})
    allowed = details.get("expected_tags") or details.get("expected")
    if first["type"] == "extra_forbidden":
        messages, others, allowed = messages[:1], [], _fields_at(model, first["loc"])
    raise UserError(
        " or ".join(dict.fromkeys([messages[0], *others])),
        file=file,
        key=".".join(map(str, map(shown, path))) or "(the whole file)",
        value=_value(first, path, content),
        allowed=allowed,
    ) from None


def _misspelled(errors: list[ErrorDetails]) -> ErrorDetails | None:
    """The unknown key of a mapping in which the first error misses one: the likely misspelling of the missing key."""
    if errors[0]["type"] != "missing":
        return None
    unknown = (
        each for each in errors if each["type"] == "extra_forbidden" and each["loc"][:-1] == errors[0]["loc"][:-1]
    )
    return next(unknown, None)


WORDS = {
    "missing": "this key is missing",
    "extra_forbidden": "there is no such key",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text",
    "string_unicode": "must be a text",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be one of the allowed values",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "invalid_key": "a key must be a text",
    "union_tag_invalid": "there is no such kind",
    "union_tag_not_found": "this key is missing",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
"""Pydantic's types of errors in words, with the fields of their context."""


def _words(error: ErrorDetails) -> str:
    """Message of an error in this project's words."""
    if (template := WORDS.get(error["type"])) is not None:
        bounds = error.get("ctx", {}).items()
        return template.format(**{name: f"{value:g}" if isinstance(value, float) else value for name, value in bounds})
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _value(error: ErrorDetails, path: Sequence[str | int], content: Any) -> Any:
    """Value of a wrong key; None if the key is missing."""
    details = error.get("ctx", {})
    # Of a missing key Pydantic reports the whole mapping as input.
    if "value" in details or error["type"] in ("missing", "union_tag_not_found"):
        return details.get("value")
    if error["type"].startswith("union_tag"):
        path = path[:-1]
        return shown(node.get("kind")) if isinstance(node := _at(content, path), dict) else shown(error["input"])
    return shown(_at(content, path) if details.get("at") else error["input"])


def _at(content: Any, path: Iterable[str | int]) -> Any:
    """The node at a path of parsed YAML; None if there is none."""
    for part in path:
        if isinstance(content, dict):
            content = content.get(part)
        else:
            content = content[part] if isinstance(content, list) and isinstance(part, int) else None
    return content


def path_in_file(error: ErrorDetails, content: Any) -> list[str | int]:
    """Path of an error's key in the parsed YAML; empty for the whole file.

    Pydantic's location also has the tag of each discriminated union (`reuse.speculative.lenience`), the type of each
    other union (`epochs.int`) and `[key]` for a wrong key of a mapping. None of these is in the file. The path that a
    validator adds (`redraft.config.base.invalid`) is.
    """
    path: list[str | int] = []
    node: Any = content
    tagged = False
    for part in error["loc"]:
        is_mapping = isinstance(node, dict)
        is_item = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if is_mapping and node.get("kind") == part and not tagged:
            tagged = True  # once for each mapping, since a key may have the tag's name
        elif is_item or (is_mapping and part in node):
            path.append(part)
            node, tagged = node[part], False
        elif (is_mapping or isinstance(node, list)) and error["type"] == "missing" and part == error["loc"][-1]:
            path.append(part)
    if error["type"].startswith("union_tag"):
        path.append("kind")
    return [*path, *error.get("ctx", {}).get("at", ())]


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> str | None:
    """Fields of the model that got an unknown key, the most similar ones if some are, by a walk of its JSON schema
    along the error's location."""
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
    # `additionalProperties` is `true` or `false` where values have no schema.
    values: Any = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), {})
    return values if isinstance(values, dict) else {}


def resolved(schema: dict, node: dict) -> dict:
    """A node of a JSON schema, or the definition that it refers to."""
    return schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node


def check_known(
    names: Iterable[str], known: Collection[str], message: str, file: Path | str | None = None, key: str | None = None
) -> None:
    """Raise a UserError with similar names, or all known ones, for the first name that is not known."""
    for name in names:
        if name not in known:
            raise UserError(message, file=file, key=key, value=shown(name), allowed=near(name, known))


def read_yaml(file: Path) -> Any:
    """Parse a YAML file; a UserError if it is missing, not readable, not UTF-8 or not YAML."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        # Paths of files come from names, so the other files are the names that exist.
        siblings = (path.stem for path in file.parent.glob("*.yaml"))
        raise UserError("no such file", file=file, allowed=siblings) from None
    except OSError as error:
        raise UserError(f"this file cannot be read: {error.strerror}", file=file) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError("not UTF-8", file=file, key=f"line {line}", value=error.object[error.start]) from None
    return parse_yaml(text, file)


def parse_yaml(text: str, file: Path | str) -> Any:
    """Parse a YAML text.

    Raises:
        UserError: if it is not YAML, has a repeated key, an unsupported tag, or too many or too deeply nested values.
    """
    try:
        # Before the text is loaded, which would crash the process instead of raising.
        if _nested_too_deeply(text):
            raise UserError(f"lists and mappings are nested more than {MAX_DEPTH} times", file=file)
        content = yaml.load(text, Loader=_Loader)
        # Aliases are shared objects, so loading them costs little; validation would expand them.
        if _size(content, {}) > MAX_VALUES:
            raise UserError(f"aliases (*) expand to more than {MAX_VALUES:,} values", file=file)
    except yaml.YAMLError as error:
        message = " ".join(str(error).split()).replace(' in "<unicode string>"', "")
        raise UserError(f"not valid YAML: {message}", file=file) from None
    return content


def _nested_too_deeply(text: str) -> bool:
    """Test for more than `MAX_DEPTH` levels. Most texts have too few brackets and too little indentation for that."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[{}\]]", text):
        # Brackets in texts count too: this is an upper bound, and the exact count follows.
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    deepest += max((len(start) for start in re.findall(r"^[ ?:-]+", text, flags=re.MULTILINE)), default=0)
    if deepest <= MAX_DEPTH:
        return False
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


def _size(content: Any, known: dict[int, int]) -> int:
    """Number of values with all aliases expanded; `known` has the sizes of the nodes that were counted."""
    if not isinstance(content, dict | list):
        return 1
    if id(content) not in known:
        parts = content.values() if isinstance(content, dict) else content
        known[id(content)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(content)]


def _of_other_kinds(one: dict, other: dict) -> bool:
    return "kind" in one and "kind" in other and one["kind"] != other["kind"]


def merge(base: dict, change: dict) -> dict:
    """Merge `change` into a copy of `base`, mapping by mapping. Neither argument is changed.

    A mapping of another kind replaces one, since fields of one kind mean nothing in another.
    """
    merged = dict(base)
    for key, value in change.items():
        before = merged.get(key)
        # A list replaces a list: its items have no keys by which to merge.
        nested = isinstance(value, dict) and isinstance(before, dict) and not _of_other_kinds(before, value)
        merged[key] = merge(merged[key], value) if nested else value
    return merged
