"""Ids of groups, episodes, trajectories, checkpoints and sessions. Equal inputs give equal ids."""

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from identities.errors import InvalidIdentity

_SLUG_PART: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
SLUG: Final = re.compile(rf"(?=.{{1,64}}\Z){_SLUG_PART}(?:/{_SLUG_PART})?")
"""What a model may be called: `incident`, `Qwen/Qwen3.5-4B`."""
SLUG_RULE: Final = (
    "1 to 64 of letters a-z and A-Z, digits, '.', '_', '-' and at most one '/', with a letter or a digit at "
    "both ends of each part"
)
"""SLUG for people."""
_TRAJECTORY: Final = "traj-"
_INTERACTIVE: Final = "interactive-"
_PAIR, _WATCH, _TRACK = "pair", "watch", "track"
RECORDED_GROUP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,39}")
"""What the owner of recorded sessions may call a group of them."""
RECORDED_GROUP_RULE: Final = (
    "1 to 40 of letters, digits, '.', '_', ':' and '-', with a letter or a digit first"
)
"""RECORDED_GROUP for people."""
RECORDED_RUN: Final = "sessions-"
"""What the run ids of recorded sessions begin with."""
RECORDED_DIGEST_CHARS: Final = 16
"""Of the digest of the first prompt, in the id of a group of recorded sessions."""
_RECORDED: Final = "session-"
_OFFERED: Final = "session-group-"
_CLIENT_RUN: Final = re.compile(r"here-[0-9a-f]{12,32}")
_CHECKPOINT: Final = re.compile(r"ckpt-(?P<model>.+)-v(?P<version>\d{8,18})")
_GROUP: Final = re.compile(r"(?P<run>.+)-g(?P<index>\d{5,})")


class CheckpointName(NamedTuple):
    """What a checkpoint id says."""

    model: str
    version: int


class GroupName(NamedTuple):
    """What a group id says: its run and its position among the run's groups, from 0."""

    run_id: str
    position: int


def slug_file_name(model: str) -> str:
    """The name of a file or a folder for a model: a '/' is %2F in it, other slugs stay as they are."""
    return quote(model, safe="")


def trajectory_id(episode_id: str) -> str:
    """Id of the record of an episode: there is at most one."""
    return f"{_TRAJECTORY}{episode_id}"


def episode_of(trajectory_or_episode_id: str) -> str:
    """The episode that either of the two ids names."""
    return trajectory_or_episode_id.removeprefix(_TRAJECTORY)


def group_id(run_id: str, index: int) -> str:
    """Id of the group at position `index` >= 0 of a run."""
    return f"{run_id}-g{index:05d}"


def episode_id(group: str, member: int, attempt: int) -> str:
    """Id of one attempt at one member of a group; both count from 0."""
    return f"{group}-e{member:03d}-a{attempt}"


def group_of_episode(episode: str) -> str:
    """The group that an episode id names."""
    return episode.rsplit("-e", 1)[0]


def parse_group_id(text: str) -> GroupName | None:
    """What `group_id` made; None for any other text, also for another spelling of the same number."""
    found = _GROUP.fullmatch(text)
    if found is None or found["index"] != f"{int(found['index']):05d}":
        return None
    return GroupName(found["run"], int(found["index"]))


def checkpoint_id(model: str, version: int) -> str:
    """Id of the checkpoint of a policy version; the model is the owner's own slug. Raises InvalidIdentity."""
    if version < 0:
        raise InvalidIdentity(f"version is {version}; versions count from 0, the base model")
    return f"ckpt-{model}-v{version:08d}"


def parse_checkpoint_id(text: str) -> CheckpointName | None:
    """What `checkpoint_id` made; None for any other text."""
    found = _CHECKPOINT.fullmatch(text)
    if found is None or found["version"] != f"{int(found['version']):08d}":
        return None
    return CheckpointName(found["model"], int(found["version"]))


def pair_request_id(checkpoint: str, head_revision: int, number: int) -> str:
    """Of the run that a gate asks for, the number-th that plays a candidate beside the head of a revision:
    the same run, also after a crash before the registry's commit."""
    return f"{_PAIR}/{checkpoint}/r{head_revision}/{number}"


def watch_request_id(model: str, head_revision: int, number: int) -> str:
    """Of the number-th run that plays a head beside its predecessor after head moved: the same run, also
    after a crash before the registry's commit."""
    return f"{_WATCH}/{model}/r{head_revision}/{number}"


def track_request_id(run: str, taskset: str, step: int) -> str:
    """Of the evaluation that measures the version of a step on a set that the run is followed on: the same
    run, also after a crash before the planner's commit."""
    return f"{_TRACK}/{run}/{taskset}/{step}"


def is_of_the_platform(request_id: str) -> bool:
    """Whether it is a request id of the platform's own runs, which the three functions above make."""
    return request_id.partition("/")[0] in (_PAIR, _WATCH, _TRACK)


def interactive_run_id(model: str) -> str:
    """The run id under which a model's interactive session publishes: each model has one such session."""
    return f"{_INTERACTIVE}{model}"


def is_interactive_run(run_id: str) -> bool:
    """Whether it is the run id of an interactive session, which no planner has planned."""
    return run_id.startswith(_INTERACTIVE)


def is_client_run(run_id: str) -> bool:
    """Whether it is the id of an evaluation that a client played in its own process: no planner knows it."""
    return _CLIENT_RUN.fullmatch(run_id) is not None


def recorded_run_id(key_id: str) -> str:
    """The run id of all sessions that the gateway records for an API key: no planner has planned it."""
    return f"{RECORDED_RUN}{key_id}"


def is_recorded_run(run_id: str) -> bool:
    """Whether it is the run id of recorded sessions."""
    return run_id.startswith(RECORDED_RUN)


def recorded_episode_id(session_id: str) -> str:
    """Episode id of a session that the gateway records; `trajectory_id` of it names its record."""
    return f"{_RECORDED}{session_id}"


def is_recorded_episode(episode_id: str) -> bool:
    """Whether it is the episode id of a recorded session, which does not say which group it is of."""
    return episode_id.startswith(_RECORDED)


def recorded_group_id(key_id: str, group: str, task_digest: str) -> str:
    """Id of the group of a key's recorded sessions that its owner calls `group`, and that begin alike."""
    return f"{RECORDED_RUN}{key_id}-{group}-{task_digest[:RECORDED_DIGEST_CHARS]}"


def offered_sessions_id(group: str, episode_ids: Iterable[str]) -> str:
    """Id of the recorded sessions of a group that a training run is offered together: the group may have
    more of them later, which are offered to another run."""
    members = "\n".join([group, *sorted(episode_ids)])
    return f"{_OFFERED}{hashlib.sha256(members.encode()).hexdigest()[:32]}"
