"""The states of a stored trajectory."""

from typing import TYPE_CHECKING

from upcycle.states import ReadState, StateEntry, read_states

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


def states_of(body: "TrajectoryBody") -> list[ReadState]:
    """Those of a stored trajectory; none where its environment declares none."""
    after = [result.state for turn in body.turns for result in turn.tool_results if result.HasField("state")]
    first = [body.first_state] if body.HasField("first_state") else []
    last = [body.last_state] if body.HasField("last_state") else []
    kept = [*first, *after, *last]
    return read_states(StateEntry(one.value_json, one.patch_json, one.note) for one in kept)
