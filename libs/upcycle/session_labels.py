"""Labels of recorded sessions: what a client says about one when it opens it, such as `flow:refund`.

Pure; gateway, trajectory store, planner and command line read them here. A set of labels is a tuple of
`name:value`, sorted by name.
"""

import re
from collections.abc import Iterable
from typing import Final

MAX_LABELS: Final = 8
"""Of one session."""
MAX_CHARS: Final = 64
"""Of a name, and of a value."""
_WORD: Final = re.compile(rf"[a-z0-9._-]{{1,{MAX_CHARS}}}")
_RULE: Final = f"1 to {MAX_CHARS} of a-z, digits, '.', '_' and '-'"
Labels = tuple[str, ...]


def read_assignments(text: str) -> Labels:
    """`env=prod,flow=refund`, as clients send it. Raises ValueError, naming the part, its value and the
    limit."""
    return checked(_label(part, "=") for part in text.split(","))


def read_label(text: str) -> str:
    """`flow:refund`, as queries ask for it. Raises ValueError, naming it and what is expected."""
    return _label(text, ":")


def checked(labels: Iterable[str]) -> Labels:
    """A set of `name:value`, in order. Raises ValueError for what is no set of labels."""
    found = sorted(read_label(one) for one in labels)
    if len(found) > MAX_LABELS:
        raise ValueError(f"{len(found)} labels, and a session has at most {MAX_LABELS}: leave some out")
    names = [one.partition(":")[0] for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"label {name!r} is given twice: a session has one value of it")
    return tuple(found)


def _label(text: str, between: str) -> str:
    name, found, value = (one.strip() for one in text.partition(between))
    if not found:
        raise ValueError(f"{text.strip()!r:.80} is no label: write name{between}value")
    if not _WORD.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no name of a label: it is {_RULE}")
    if not _WORD.fullmatch(value):
        raise ValueError(f"label {name} is {value!r:.80}: a value is {_RULE}")
    return f"{name}:{value}"
