"""JSON schemas of typed functions, and the check of a model's arguments before the function runs.

Does not use pydantic: hundreds of environment processes import this module, and pydantic takes long to
import.
"""

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from upcycle.environment.docstrings import parse_docstring
from upcycle.errors import ArgumentsInvalid, DefinitionError

Json = dict[str, Any]

_SCALARS: dict[Any, Json] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    inspect.Parameter.empty: {},
    list: {"type": "array"},
    dict: {"type": "object"},
}


@dataclass(frozen=True, slots=True)
class CallSchema:
    """The JSON schema of one function's arguments, and the check against it."""

    name: str
    description: str
    parameters: Json
    annotations: Mapping[str, Any]
    required: frozenset[str]

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments converted to the annotated types. Raises ArgumentsInvalid naming the argument."""
        unknown = sorted(set(arguments) - set(self.annotations))
        missing = [name for name in self.annotations if name in self.required and name not in arguments]
        if unknown or missing:
            problem = f"unknown argument {unknown[0]!r}" if unknown else f"missing argument {missing[0]!r}"
            raise ArgumentsInvalid(
                f"{self.name}: {problem}", f"it takes {', '.join(self.annotations) or 'none'}"
            )
        return {
            key: _convert(self.annotations[key], value, f"{self.name}.{key}")
            for key, value in arguments.items()
        }


def call_schema(function: Callable[..., Any], *, name: str | None = None) -> CallSchema:
    """Derive the schema from annotations, defaults and docstring. Raises DefinitionError."""
    label = name or function.__name__
    summary, argument_docs = parse_docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"{label}: cannot resolve annotation: {error}",
            "import that type at module level of the environment",
        ) from error
    properties: Json = {}
    annotations: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise DefinitionError(
                f"{label}: parameter {parameter.name!r} is {parameter.kind.description}",
                "use named parameters: callers send a JSON object",
            )
        annotation = hints.get(parameter.name, inspect.Parameter.empty)
        schema = dict(schema_of(annotation, f"{label}.{parameter.name}"))
        if description := argument_docs.get(parameter.name):
            schema.setdefault("description", description)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json_scalar(parameter.default):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
        annotations[parameter.name] = annotation
    parameters: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        parameters["required"] = required
    return CallSchema(label, summary, parameters, annotations, frozenset(required))


def schema_of(annotation: Any, where: str) -> Json:
    """JSON schema of one annotation. Raises DefinitionError for a type that has no JSON form."""
    if _hashable(annotation) and annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        schema = schema_of(arguments[0], where)
        notes = [note for note in arguments[1:] if isinstance(note, str)]
        return {**schema, "description": notes[0]} if notes else schema
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(option, where) for option in arguments]}
    if origin in (list, tuple, set, frozenset, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], where) if arguments else {}}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1], where)}
    if inspect.isclass(annotation):
        return _schema_of_class(annotation, where)
    raise DefinitionError(
        f"{where}: {annotation!r} has no JSON form", "use str, int, float, bool, list, dict, Literal"
    )


def _schema_of_class(annotation: type[Any], where: str) -> Json:
    if issubclass(annotation, enum.Enum):
        return {"enum": [member.value for member in annotation]}
    if hasattr(annotation, "model_json_schema"):
        return dict(annotation.model_json_schema())
    if typing.is_typeddict(annotation) or dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        schema: Json = {
            "type": "object",
            "properties": {key: schema_of(hint, f"{where}.{key}") for key, hint in hints.items()},
            "additionalProperties": False,
        }
        required = _required_fields(annotation)
        return {**schema, "required": required} if required else schema
    raise DefinitionError(
        f"{where}: {annotation.__name__} has no JSON form", "use a dataclass, a TypedDict or plain JSON types"
    )


def _required_fields(annotation: type[Any]) -> list[str]:
    if typing.is_typeddict(annotation):
        return sorted(annotation.__required_keys__)
    fields = dataclasses.fields(annotation)
    missing = dataclasses.MISSING
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


def _convert(annotation: Any, value: Any, where: str) -> Any:
    """The value converted to the annotated type. An int is accepted as a float; a string is never parsed."""
    if annotation is Any or annotation is inspect.Parameter.empty:
        return value
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _convert(arguments[0], value, where)
    if origin is Literal:
        return _expect(value in arguments, value, where, f"one of {list(arguments)}")
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if origin in (list, tuple, set, frozenset, Sequence):
        _expect(isinstance(value, list | tuple), value, where, "an array")
        items = [_convert(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if origin in (list, Sequence) else origin(items)
    if origin in (dict, Mapping):
        _expect(isinstance(value, dict), value, where, "an object")
        return {key: _convert(arguments[1], item, f"{where}[{key!r}]") for key, item in value.items()}
    return _convert_plain(annotation, value, where)


def _convert_plain(annotation: Any, value: Any, where: str) -> Any:
    if annotation is float:
        _expect(isinstance(value, int | float) and not isinstance(value, bool), value, where, "a number")
        return float(value)
    if annotation is int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        _expect(whole and not isinstance(value, bool), value, where, "an integer")
        return int(value)
    if annotation in (str, bool, list, dict, type(None)):
        name = _SCALARS[annotation]["type"]
        article = "an" if name in ("array", "object") else "a"
        return _expect(isinstance(value, annotation), value, where, f"{article} {name}")
    return _convert_class(annotation, value, where)


def _convert_class(annotation: type[Any], value: Any, where: str) -> Any:
    if isinstance(value, annotation) if not typing.is_typeddict(annotation) else False:
        return value
    if issubclass(annotation, enum.Enum):
        values = [member.value for member in annotation]
        _expect(value in values, value, where, f"one of {values}")
        return annotation(value)
    _expect(isinstance(value, dict), value, where, "an object")
    if hasattr(annotation, "model_validate"):
        try:
            return annotation.model_validate(value)
        except ValueError as error:
            raise ArgumentsInvalid(f"{where}: {error}") from error
    hints = typing.get_type_hints(annotation, include_extras=True)
    unknown = sorted(set(value) - set(hints))
    _expect(not unknown, value, where, f"an object with the fields {sorted(hints)}")
    missing = sorted(set(_required_fields(annotation)) - set(value))
    _expect(not missing, value, where, f"an object with {missing}")
    converted = {key: _convert(hints[key], item, f"{where}.{key}") for key, item in value.items()}
    return converted if typing.is_typeddict(annotation) else annotation(**converted)


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    for option in options:
        try:
            return _convert(option, value, where)
        except ArgumentsInvalid:
            continue
    expected = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    return _expect(False, value, where, expected)


def _expect(holds: bool, value: Any, where: str, expected: str) -> Any:
    if holds:
        return value
    shown = repr(value)
    raise ArgumentsInvalid(
        f"{where}: expected {expected}, got {shown if len(shown) < 80 else shown[:77] + '...'}"
    )


def _is_json_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _hashable(annotation: Any) -> bool:
    try:
        hash(annotation)
    except TypeError:
        return False
    return True
