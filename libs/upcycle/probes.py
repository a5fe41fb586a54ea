"""The cheapest things that an agent can do instead of its task: what `upcycle check` plays."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from upcycle.scenario import Reference

MAX_DUMP_CHARS: Final = 20_000
NUM_IDLE_CALLS: Final = 3
"""Rounds over all tools of the probe that calls them for nothing."""
HOSTILE: Final = ("[" * 20_000, "NaN", "9" * 5_000, "null", "\x00", '{"a": 1e999}', "-1", "[]")
"""Answers on which careless graders raise."""
OF_ANOTHER: Final = "another task's answer"
"""It may share a part with the right one by chance, so what it earns on average counts."""
OF_MODEL: Final = "an answer of the model"
"""The same for every task; what it earns on average counts, without tasks whose gold answer it holds."""
LONG: Final = "The answer follows from the evidence. " * 500


@dataclass(frozen=True, slots=True)
class Probe:
    """One way to earn something for nothing: calls of tools, then an answer."""

    name: str
    answer: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def probes_of(
    prompt: str, own: str | None, golds: Sequence[str], texts: Sequence[str], idle: Reference
) -> list[Probe]:
    """The probes of one task. own: its gold answer; golds, texts: the gold answers and the argument texts of
    all tasks; idle: well-formed calls that do nothing."""
    made = [
        Probe("empty", ""),
        Probe("constant", "I do not know."),
        Probe("dump", "\n".join(dict.fromkeys((*golds, *texts)))[:MAX_DUMP_CHARS]),
        Probe("echo", prompt),
        Probe("idle calls", idle.answer, tuple(idle.calls)),
        Probe("length", LONG),
        *(Probe("hostile", answer) for answer in HOSTILE),
    ]
    common = Counter(one for one in golds if one != own).most_common(1)
    if common:
        made.insert(2, Probe(OF_ANOTHER, common[0][0]))
    return [probe for probe in made if probe.answer != own]


def idle_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a tool's JSON schema and mean nothing."""
    properties = schema.get("properties") or {}
    return {name: _nothing(properties.get(name) or {}) for name in schema.get("required") or ()}


def _nothing(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = schema.get("type", "string")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    match kind:
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "array":
            return []
        case "object":
            return {}
    return "x" * max(1, int(schema.get("minLength", 1)))
