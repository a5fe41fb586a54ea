"""What monitors need of a conversation and of states: declarations, leaks, changes. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reward_monitors.observed import Component, Declared

WATCH: Final = "watch"
"""Key of an environment's state under which its author tells the monitors about the episode."""
SHADOW: Final = "shadow"
"""Beginning of the name of a shadow grader in the reward tree; its weight is 0."""
_MIN_SECRET_CHARS: Final = 4
_MAX_SECRETS: Final = 32
_NOT_WORD: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a reward tree."""

    name: str
    weight: float
    value: float
    children: Sequence["Node"] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """A text that the agent was shown. where: prompt, or which tool. said: what the agent had written until
    then, so that an echo is no leak."""

    where: str
    text: str
    said: str = ""


def declared_in(state: Any) -> Declared:
    """What the key `watch` of a state says; nothing where there is none. A value of another type than it
    should have says nothing either: a state is what an author's code returned."""
    watch = state.get(WATCH) if isinstance(state, Mapping) else None
    if not isinstance(watch, Mapping):
        return Declared()
    default = Declared()
    return Declared(
        secrets=_texts(watch.get("secrets"))[:_MAX_SECRETS],
        protected=canonical(watch["protected"]) if "protected" in watch else None,
        evidence=_texts(watch.get("evidence")),
        impossible=watch.get("impossible") is True,
        chance=_rate(watch.get("chance"), default.chance),
        answer_prior=_rate(watch.get("answer_prior"), default.answer_prior),
    )


def changed_keys(first: Any, last: Any) -> tuple[str, ...]:
    """Top-level keys of two states whose values differ, but for `watch`."""
    if not isinstance(first, Mapping) or not isinstance(last, Mapping):
        return () if first == last else ("",)
    keys = sorted({*first, *last} - {WATCH})
    return tuple(key for key in keys if first.get(key) != last.get(key))


def leaks_in(shown: Iterable[Shown], secrets: Sequence[str]) -> tuple[str, ...]:
    """Where a secret was shown that the agent had not written itself, each place once. Case and punctuation
    do not matter."""
    wanted = [plain for secret in secrets if len(plain := _plain(secret)) >= _MIN_SECRET_CHARS]
    if not wanted:
        return ()
    found: dict[str, None] = {}
    said = _Said()
    for one in shown:
        text = f" {_plain(one.text)} "
        held = [secret for secret in wanted if f" {secret} " in text]
        if held and any(f" {secret} " not in said.plain(one.said) for secret in held):
            found[one.where] = None
    return tuple(found)


def components_of(nodes: Sequence[Node]) -> dict[str, Component]:
    """Leaves of a reward tree by path, with what each brought. A node without weight brought nothing and is
    left out."""
    return dict(_leaves(nodes, "", 1.0))


def shadow_of(nodes: Sequence[Node]) -> bool | None:
    """Whether all shadow graders confirm success: nodes of weight 0 whose name begins with `shadow`, at any
    depth. None: there is none."""
    values = [node.value for node in _all(nodes) if node.weight == 0 and node.name.startswith(SHADOW)]
    return all(value >= 0.5 for value in values) if values else None


def canonical(value: Any) -> str:
    """JSON with sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _leaves(nodes: Sequence[Node], path: str, share: float) -> Iterator[tuple[str, Component]]:
    total = sum(abs(node.weight) for node in nodes)
    for node in nodes:
        if not total or not node.weight:
            continue
        part, name = share * node.weight / total, f"{path}{node.name}"
        if any(child.weight for child in node.children):
            yield from _leaves(node.children, f"{name}/", part)
        else:
            yield name, Component(part * node.value, node.value)


def _all(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _all(node.children)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()


def _rate(value: Any, default: float) -> float:
    is_rate = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1
    return float(value) if is_rate else default


def _plain(text: str) -> str:
    return _NOT_WORD.sub(" ", text.lower()).strip()


class _Said:
    """What the agent wrote, plain. It grows from place to place; what was read is not read again."""

    def __init__(self) -> None:
        self._read = ""
        self._plain = " "

    def plain(self, said: str) -> str:
        if not said.startswith(self._read) or self._read[-1:].isalnum():
            self._plain, self._read = " ", ""
        if more := _plain(said[len(self._read) :]):
            self._plain += f"{more} "
        self._read = said
        return self._plain
