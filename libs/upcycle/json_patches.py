"""JSON patches (RFC 6902): what changed between two values, and a value with a change applied.

Of the standard's operations those that a difference needs: add, remove and replace.
"""

from collections.abc import Sequence
from typing import Any

Patch = list[dict[str, Any]]


def difference(old: Any, new: Any) -> Patch:
    """The operations that make `new` of `old`; items of lists are compared by their place."""
    return list(_operations(old, new, ""))


def patched(document: Any, patch: Sequence[Any]) -> Any:
    """A new value, which shares with `document` what did not change. Raises ValueError for a patch that does
    not fit it."""
    for operation in patch:
        try:
            keys = [_key(part) for part in str(operation["path"]).split("/")[1:]]
            document = _changed(document, keys, str(operation["op"]), operation.get("value"))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{operation!r:.100} does not fit the value: {error!r:.100}") from error
    return document


def _operations(old: Any, new: Any, path: str) -> Patch:
    if isinstance(old, dict) and isinstance(new, dict):
        found: Patch = [{"op": "remove", "path": _below(path, key)} for key in old if key not in new]
        for key, value in new.items():
            below = _below(path, key)
            added = {"op": "add", "path": below, "value": value}
            found += _operations(old[key], value, below) if key in old else [added]
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = []
        for at in range(min(len(old), len(new))):
            found += _operations(old[at], new[at], f"{path}/{at}")
        found += [{"op": "remove", "path": f"{path}/{at}"} for at in range(len(old) - 1, len(new) - 1, -1)]
        return found + [{"op": "add", "path": f"{path}/-", "value": value} for value in new[len(old) :]]
    is_same = type(old) is type(new) and old == new  # 1 and True are equal, and two values
    return [] if is_same else [{"op": "replace", "path": path, "value": new}]


def _changed(document: Any, keys: Sequence[str], operation: str, value: Any) -> Any:
    if not keys:
        if operation == "remove":
            raise KeyError("the whole value cannot be removed")
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(document, list):
        return _changed_list(document, key, rest, operation, value)
    if not isinstance(document, dict):
        raise TypeError(f"there is nothing below {document!r:.40}")
    if rest or operation == "replace":
        return {**document, key: _changed(document[key], rest, operation, value)}
    if operation == "remove":
        document[key]  # one that is not there does not fit
        return {name: one for name, one in document.items() if name != key}
    return {**document, key: value}


def _changed_list(
    document: list[Any], key: str, rest: Sequence[str], operation: str, value: Any
) -> list[Any]:
    at = len(document) if key == "-" else int(key)
    if rest or operation == "replace":
        return [*document[:at], _changed(document[at], rest, operation, value), *document[at + 1 :]]
    if operation == "remove":
        document[at]  # one that is not there does not fit
        return [*document[:at], *document[at + 1 :]]
    return [*document[:at], value, *document[at:]]


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _key(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
