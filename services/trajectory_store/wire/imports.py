"""ImportTrajectories: what a client says it played -> episodes that can be stored. Raises InvalidRequest."""

import json
import math
import re
from collections.abc import Iterator
from typing import Final

from episodes import EpisodeIdentity, Purpose
from episodes.identity import SPLITS, identity_to_wire
from identities import entities
from identities.errors import InvalidIdentity
from identities.subjects import token
from service_kit.errors import InvalidRequest
from trajectory_store.domain.imports import NO_VERSION, ClientEpisode
from upcycle.api.common.v1.common_pb2 import VersionSpan
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.api.trajectory.v1.trajectory_pb2 import StopReason, Subscore, TrajectoryBody

MAX_TRAJECTORIES: Final = 64
MAX_BYTES: Final = 8 * 1024 * 1024
MAX_GRADE_BYTES: Final = 128 * 1024
"""Of subscores and failure, which every list shows: a page of them must fit into a message."""
_MAX_POSITION: Final = 1_000_000
_MAX_NAME_CHARS: Final = 512
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_OF_TOKENS: Final = ("new_prompt_ids", "sampled_ids", "sampled_logprobs", "sampled_texts", "versions")
_KEPT: Final = ("stop_reason", "answer", "tools_json", "source_digest")
_KEPT_WHOLE: Final = ("started_at", "ended_at", "failure", "first_state", "last_state")


def imports_from_wire(request: pb.ImportTrajectoriesRequest) -> list[ClientEpisode]:
    """In the order of the request, each with its ids."""
    if not entities.is_client_run(request.run_id):
        raise InvalidRequest(
            f"run_id is {request.run_id!r:.80}; of an evaluation that a client played it is `here-` and 12 "
            "to 32 hex digits"
        )
    try:
        token(request.agent)
    except InvalidIdentity as error:
        raise InvalidRequest(f"agent cannot be used: {error}") from error
    if not 1 <= len(request.trajectories) <= MAX_TRAJECTORIES:
        raise InvalidRequest(
            f"the import holds {len(request.trajectories)} trajectories; give 1 to {MAX_TRAJECTORIES}"
        )
    return [
        _episode(request, one, f"trajectories[{at}] ({one.task_slug!r:.80}, attempt {one.attempt})")
        for at, one in enumerate(request.trajectories)
    ]


def _episode(request: pb.ImportTrajectoriesRequest, given: pb.ClientTrajectory, which: str) -> ClientEpisode:
    for problem in (*_sizes(given), *_names(given), *_grade(given), *_content(given.body)):
        raise InvalidRequest(f"{which}: {problem}")
    group = entities.group_id(request.run_id, given.task_position)
    identity = EpisodeIdentity(
        episode_id=entities.episode_id(group, given.attempt, 0),
        run_id=request.run_id,
        group_id=group,
        member=given.attempt,
        group_size=given.attempts,
        model=request.agent,
        purpose=Purpose.EVAL,
        split=SPLITS[given.split],
        task_slug=given.task_slug,
        task_digest=given.task_digest,
        family=given.family or "default",
    )
    why = TrajectoryGraded(subscores=given.subscores, turn_rewards=given.turn_rewards)
    if given.HasField("failure"):
        why.failure.CopyFrom(given.failure)
    body = _body(given.body, identity)
    return ClientEpisode(identity, body, given.reward, given.success, why.SerializeToString())


def _body(given: TrajectoryBody, identity: EpisodeIdentity) -> TrajectoryBody:
    """What a client may say of an episode, and nothing of what the platform says of its own."""
    body = TrajectoryBody(
        episode=identity_to_wire(identity),
        prompt=given.prompt,
        turns=given.turns,
        sampled_by=VersionSpan(oldest=NO_VERSION, newest=NO_VERSION),
        **{name: getattr(given, name) for name in _KEPT},
    )
    for name in _KEPT_WHOLE:
        if given.HasField(name):
            getattr(body, name).CopyFrom(getattr(given, name))
    return body


def _sizes(given: pb.ClientTrajectory) -> Iterator[str]:
    if (size := given.ByteSize()) > MAX_BYTES:
        yield f"it has {size} bytes, limit {MAX_BYTES}"
    grade = given.failure.ByteSize() + sum(one.ByteSize() for one in given.subscores)
    if grade > MAX_GRADE_BYTES:
        yield f"its subscores and failure have {grade} bytes, limit {MAX_GRADE_BYTES}; shorten their texts"


def _names(given: pb.ClientTrajectory) -> Iterator[str]:
    if not 0 <= given.task_position < _MAX_POSITION:
        yield f"task_position is {given.task_position}, expected 0 to {_MAX_POSITION - 1}"
    if not 0 <= given.attempt < given.attempts <= _MAX_POSITION:
        yield f"attempt is {given.attempt} of {given.attempts}; attempts count from 0"
    for name in ("task_slug", "family"):
        value = getattr(given, name)
        if len(value) > _MAX_NAME_CHARS or (not value and name == "task_slug"):
            yield f"{name} has {len(value)} characters, expected 1 to {_MAX_NAME_CHARS}"
    if not _DIGEST.fullmatch(given.task_digest):
        yield f"task_digest {given.task_digest!r:.80} is not a sha256 in 64 hex digits"
    if given.split not in SPLITS:
        yield f"split is {given.split}, expected one of {sorted(SPLITS)}"


def _grade(given: pb.ClientTrajectory) -> Iterator[str]:
    if not 0 <= given.reward <= 1:  # nan neither
        yield f"reward is {given.reward:g}, outside [0, 1]; rescale it, for example score / max_score"
    num, num_turns = len(given.turn_rewards), len(given.body.turns)
    if num and num != num_turns:
        yield f"turn_rewards has {num} numbers, the episode {num_turns} turns; give one for each"
    for at, value in enumerate(given.turn_rewards):
        if not 0 <= value <= 1:
            yield f"turn_rewards[{at}] is {value:g}, outside [0, 1]"
    left = list[Subscore](given.subscores)
    while left:
        one = left.pop()
        left += one.children
        if not 0 <= one.value <= 1:
            yield f"subscore {one.name!r:.80} is {one.value:g}, outside [0, 1]"
        if not math.isfinite(one.weight):
            yield f"the weight of subscore {one.name!r:.80} is {one.weight:g}, expected a finite number"


def _content(body: TrajectoryBody) -> Iterator[str]:
    if body.HasField("episode"):
        yield "its body names an episode; the ids are made here"
    if not body.prompt:
        yield "its body has no prompt"
    if body.stop_reason not in StopReason.values():
        yield f"stop_reason is {body.stop_reason}, expected one of {StopReason.values()}"
    turns = enumerate(body.turns)
    for at, name in ((at, name) for at, turn in turns for name in _OF_TOKENS if getattr(turn, name)):
        yield (
            f"turn {at} has {name}: what a client graded is kept as messages, without tokens; own tokens "
            "train by an interactive call that brings them"
        )
    yield from _tools(body.tools_json)


def _tools(text: str) -> Iterator[str]:
    try:
        tools = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        yield f"tools_json is not JSON: {error}"
        return
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        yield "tools_json is not a list of objects"
