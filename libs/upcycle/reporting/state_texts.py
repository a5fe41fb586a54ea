"""States of an environment in words, for a terminal and a page."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from upcycle.states import StateEntry

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.trajectory_pb2 import StateSnapshot, TrajectoryBody


def state_text(state: "StateEntry | StateSnapshot") -> str:
    """`state: {"stock": 3}`, `state changed: [...]` with the JSON patch, or why there is none."""
    if isinstance(state, StateEntry):
        value, patch, note = state.value, state.patch, state.note
    else:
        value, patch, note = state.value_json, state.patch_json, state.note
    if patch and not note:
        return "state unchanged" if patch == "[]" else f"state changed: {patch}"
    return f"state: {note or value}"


def states_in_order(body: "TrajectoryBody") -> list[str]:
    """Those of a stored trajectory, each with where it was read; none where its environment declares none."""
    places = [("at the prompt", body.first_state)] if body.HasField("first_state") else []
    for number, turn in enumerate(body.turns, start=1):
        names = {call.call_id: call.name for call in turn.tool_calls}
        places += [
            (f"turn {number}, after {names.get(result.call_id, 'a call')}", result.state)
            for result in turn.tool_results
            if result.HasField("state")
        ]
    places += [("before the grade", body.last_state)] if body.HasField("last_state") else []
    return [f"{place}: {state_text(state)}" for place, state in places]


def entries_of_record(body: Mapping[str, Any]) -> Iterable[StateEntry]:
    """The same of a body in JSON, as the platform exports it."""
    after = [result.get("state") for turn in body.get("turns", []) for result in turn.get("tool_results", [])]
    for state in (body.get("first_state"), *after, body.get("last_state")):
        if state is not None:
            yield StateEntry(state.get("value_json", ""), state.get("patch_json", ""), state.get("note", ""))
