"""A stored trajectory as the monitors of reward hacks see it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from identities.entities import trajectory_id
from reward_monitors import Declared, Observed
from reward_monitors.reading import Node, Shown, changed_keys, components_of, declared_in, leaks_in, shadow_of
from trajectory_store.domain.facts import LedgerState
from trajectory_store.domain.ledger import Episode
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.states import StateEntry, read_states

_TRUNCATED: Final = (pb.STOP_REASON_MAX_TURNS, pb.STOP_REASON_MAX_TOKENS)


def observed(episode: Episode, body: pb.TrajectoryBody | None) -> Observed:
    """An episode that was graded, or that failed. body: None where none was stored, or it cannot be read."""
    record, grade = episode.record, episode.grade
    why = TrajectoryGraded() if grade is None else TrajectoryGraded.FromString(grade.subscores)
    nodes = [_node(one) for one in why.subscores]
    failure = why.failure.kind
    if grade is None and episode.state is LedgerState.FAILED:
        failure = episode.reason or "unknown"
    identity = episode.identity
    seen = {} if body is None else _of_body(body)
    if getattr(identity, "family", "") == IMPOSSIBLE_FAMILY:
        seen["declared"] = replace(seen.get("declared", Declared()), impossible=True)
    return Observed(
        trajectory_id(identity.episode_id),
        getattr(identity, "task_slug", ""),
        0 if record is None else record.newest_version,
        reward=0.0 if grade is None else grade.reward,
        success=grade is not None and grade.success,
        is_graded=grade is not None,
        components=components_of(nodes),
        shadow=shadow_of(nodes),
        num_tokens=0 if record is None else record.num_sampled_tokens,
        truncated=record is not None and record.stop_reason in _TRUNCATED,
        failure=failure,
        **seen,
    )


def _of_body(body: pb.TrajectoryBody) -> dict[str, Any]:
    states = [one for one in _states(body) if one is not None]
    values = [state.value for state in read_states(states) if not state.note]
    first, last = (values[0], values[-1]) if values else (None, None)
    declared = declared_in(first)
    return {
        "answer": body.answer,
        "tools": tuple(call.name for turn in body.turns for call in turn.tool_calls),
        "changed": changed_keys(first, last),
        "leaks": leaks_in(_shown(body), declared.secrets) if declared.secrets else (),
        "protected_changed": declared_in(last).protected != declared.protected,
        "declared": declared,
    }


def _states(body: pb.TrajectoryBody) -> Iterator[StateEntry | None]:
    """At the prompt, after each call, before the grade; as patches, so that all are needed."""
    yield _entry(body.first_state) if body.HasField("first_state") else None
    for turn in body.turns:
        for result in turn.tool_results:
            yield _entry(result.state) if result.HasField("state") else None
    yield _entry(body.last_state) if body.HasField("last_state") else None


def _entry(state: pb.StateSnapshot) -> StateEntry:
    return StateEntry(state.value_json, state.patch_json, state.note)


def _shown(body: pb.TrajectoryBody) -> Iterator[Shown]:
    yield Shown("the prompt", "\n".join(message.content for message in body.prompt))
    said = ""
    for turn in body.turns:
        said += " ".join((turn.text, turn.reasoning, *(call.arguments_json for call in turn.tool_calls), ""))
        names = {call.call_id: call.name for call in turn.tool_calls}
        for result in turn.tool_results:
            yield Shown(names.get(result.call_id, "a tool"), result.content, said)


def _node(one: pb.Subscore) -> Node:
    return Node(one.name, one.weight, one.value, _nodes(one.children))


def _nodes(subscores: Iterable[pb.Subscore]) -> Sequence[Node]:
    return [_node(one) for one in subscores]
