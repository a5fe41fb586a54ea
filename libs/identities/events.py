"""Event ids (`Nats-Msg-Id`), `<verb>/<what it is about>`: facts with equal ids are the same fact, and the
stream keeps the first.

Several services may publish an outcome of one episode, or settle one group. The first wins, because both
build the id here, and the decision is about what follows the first slash. Ids that rest on names which owners
choose (models, request ids) carry the tenant.
"""

import re
from typing import Final

from identities.tenants import OWN_TENANT

_REQUESTED: Final = re.compile(r"episode\.requested/[^/]+(?:/(\d+))?")


def run_submitted(run_id: str) -> str:
    """Id of run.submitted."""
    return f"run.submitted/{run_id}"


def run_stopping(run_id: str, *, is_final: bool) -> str:
    """Id of run.stopping: a run has at most one request to stop and one final one."""
    return f"run.stopping/{run_id}/final" if is_final else f"run.stopping/{run_id}"


def run_finished(run_id: str) -> str:
    """Id of run.finished."""
    return f"run.finished/{run_id}"


def episode_requested(episode_id: str, dispatch: int = 0) -> str:
    """Id of episode.requested; the command that is sent again for the n-th time has its own."""
    return f"episode.requested/{episode_id}/{dispatch}" if dispatch else f"episode.requested/{episode_id}"


def parse_dispatch(event_id: str) -> int | None:
    """The `dispatch` of an id that `episode_requested` made; None for any other."""
    found = _REQUESTED.fullmatch(event_id)
    return None if found is None else int(found[1] or 0)


def episode_outcome(episode_id: str) -> str:
    """Id that trajectory.graded and episode.failed share: an episode has one outcome."""
    return f"episode.outcome/{episode_id}"


def episode_cancelled(episode_id: str) -> str:
    """Id of episode.cancelled."""
    return f"episode.cancelled/{episode_id}"


def group_shortened(group_id: str, expected_members: int) -> str:
    """Id of group.shortened; a group may shrink more than once."""
    return f"group.shortened/{group_id}/{expected_members}"


def group_offered(run_id: str, group_id: str) -> str:
    """Id of group.offered: a training run is offered a group of an evaluation once."""
    return f"group.offered/{run_id}/{group_id}"


def group_settled(group_id: str, *, offered_to: str | None = None) -> str:
    """Id of group.settled, shared by the trainer and the planner: the first of the two wins.

    offered_to: the training run that a group of an evaluation was offered to; None: the group's own run.
    """
    return f"group.settled/{group_id}" if offered_to is None else f"group.settled/{offered_to}/{group_id}"


def trajectory_recorded(trajectory_id: str) -> str:
    """Id of trajectory.recorded."""
    return f"trajectory.recorded/{trajectory_id}"


def session_opened(episode_id: str) -> str:
    """Id of recorded_session.opened: a session is opened once. recorded_session.expired has
    `episode_outcome`."""
    return f"recorded_session.opened/{episode_id}"


def trajectory_quarantined(trajectory_id: str) -> str:
    """Id of trajectory.quarantined."""
    return f"trajectory.quarantined/{trajectory_id}"


def step_completed(run_id: str, step: int) -> str:
    """Id of step.completed."""
    return f"step.completed/{run_id}/{step}"


def session_failed(run_id: str) -> str:
    """Id of session.failed."""
    return f"session.failed/{run_id}"


def policy_published(model: str, version: int, tenant: str = OWN_TENANT) -> str:
    """Id of policy.published: a version is published once, whichever session does it."""
    return f"policy.published/{tenant}/{model}/{version}"


def of_checkpoint(verb: str, checkpoint_id: str, tenant: str = OWN_TENANT) -> str:
    """Id of checkpoint.saved, checkpoint.evaluated or checkpoint.held, by its verb."""
    return f"checkpoint.{verb}/{tenant}/{checkpoint_id}"


def head_moved(verb: str, model: str, head_revision: int, tenant: str = OWN_TENANT) -> str:
    """Id of checkpoint.promoted or checkpoint.rolled_back: each revision of a head is one move."""
    return f"checkpoint.{verb}/{tenant}/{model}/{head_revision}"


def canary_release_changed(model: str, revision: int, tenant: str = OWN_TENANT) -> str:
    """Id of canary_release.changed: each revision of a model's canary releases is one change."""
    return f"canary_release.changed/{tenant}/{model}/{revision}"


def engine_changed(verb: str, engine_id: str, what: str) -> str:
    """Id of engine.ready, engine.reloaded or engine.reload_failed: what names the change of this engine."""
    return f"engine.{verb}/{engine_id}/{what}"
