"""Recorded sessions: how a request names one, what is kept of a call, and what a session is by now."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import orjson

from model_gateway.domain.errors import BadRequest, GatewayError
from upcycle.session_labels import Labels, read_assignments

SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
SESSION_ID_RULE: Final = "1 to 64 of letters, digits, '.', '_', ':' and '-', with a letter or a digit first"
"""SESSION_ID for people."""
_HEADERS: Final = ("X-Session-ID", "Trace-Id")
_METADATA: Final = "upcycle_session"
_LABELS_HEADER: Final = "X-Session-Labels"
_LABELS_METADATA: Final = "upcycle_labels"
_TOKEN_BYTES: Final = 8


class SessionNotFound(GatewayError):
    """No session of this id, or one of another key. One error for both: which it is, is the other's
    business."""

    status, kind, code = 404, "invalid_request_error", "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"this key has no session {session_id!r:.80}; ids of other keys are not usable: choose another"
        )


class SessionClosed(GatewayError):
    """The session takes no more calls."""

    status, kind, code = 409, "invalid_request_error", "session_closed"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} is closed, by its reward or because it was idle; begin another "
            "one with a new id"
        )


class OtherModel(GatewayError):
    """A session samples one model."""

    status, kind, code = 409, "invalid_request_error", "session_of_another_model"

    def __init__(self, session_id: str, model: str, asked: str) -> None:
        super().__init__(
            f"session {session_id!r} samples model {model!r}, and this call asks for {asked!r}: "
            "give each model a session of its own",
            param="model",
        )


class OtherLabels(GatewayError):
    """The first call of a session fixes its labels."""

    status, kind, code = 409, "invalid_request_error", "session_of_other_labels"

    def __init__(self, session_id: str, labels: Labels, asked: Labels) -> None:
        has = ", ".join(labels) or "none"
        super().__init__(
            f"session {session_id!r} was opened with labels {has}, and this call gives "
            f"{', '.join(asked)}: give the same or leave them out, or begin a session with a new id"
        )


class RecordingUnavailable(GatewayError):
    """The call was answered and cannot be recorded now, so its answer is withheld."""

    status, kind, code = 503, "server_error", "recording_unavailable"


class UnrecordableCall(GatewayError):
    """The call was answered, and what it says can be in no record: its answer is withheld."""

    status, kind, code = 422, "invalid_request_error", "call_not_recordable"

    def __init__(self, session_id: str, why: str) -> None:
        super().__init__(
            f"the call cannot be recorded in session {session_id!r}, so its answer is withheld: {why:.200}; "
            "change the request, or name no session"
        )


class SessionState(StrEnum):
    """OPEN takes calls; CLOSING is being written to the object store; RECORDED is there and waits for its
    reward; GRADED has it; EXPIRED got none within its retention."""

    OPEN = "open"
    CLOSING = "closing"
    RECORDED = "recorded"
    GRADED = "graded"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Which session, and the API key that it belongs to. captured: of production traffic, which names
    none. labels: that this call gives; empty: it says nothing of them."""

    session_id: str
    key_id: str
    captured: bool = False
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A session as its row has it. unrecorded_calls: answered beyond its bounds, and in no record."""

    session_id: str
    key_id: str
    model: str
    state: SessionState
    task_digest: str
    opened_at: datetime
    last_call_at: datetime
    num_calls: int = 0
    num_bytes: int = 0
    unrecorded_calls: int = 0
    labels: Labels = ()

    def check(self, key: SessionKey, model: str) -> None:
        """Whether a call of this key may go on in it. Raises SessionNotFound, SessionClosed, OtherModel,
        OtherLabels."""
        if self.key_id != key.key_id:
            raise SessionNotFound(self.session_id)
        if self.state is not SessionState.OPEN:
            raise SessionClosed(self.session_id)
        if self.model != model:
            raise OtherModel(self.session_id, self.model, model)
        if key.labels and key.labels != self.labels:
            raise OtherLabels(self.session_id, self.labels, key.labels)


@dataclass(frozen=True, slots=True)
class VersionedSpan:
    """Sampled tokens [start, end) of one policy version."""

    version: int
    start: int
    end: int


@dataclass(slots=True)
class SampledChoice:
    """One answer of an engine, filled in as it arrives. token_ids and logprobs are empty where the engine
    said none: then the answer is kept as text, and nothing of it can be trained."""

    index: int
    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionedSpan] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish_reason: str = ""

    @property
    def has_tokens(self) -> bool:
        """Whether the engine said which tokens it read and sampled, each with its log-probability."""
        return bool(self.prompt_ids) and 0 < len(self.token_ids) == len(self.logprobs)

    @property
    def about_bytes(self) -> int:
        """Texts, and of each token its id and what was said of it."""
        tokens = len(self.prompt_ids) + len(self.token_ids)
        return len(self.text) + len(self.reasoning) + _TOKEN_BYTES * tokens

    def forget_tokens(self) -> None:
        """What is left is text: evaluated, never trained."""
        self.prompt_ids, self.token_ids, self.token_texts = [], [], []
        self.logprobs, self.spans = [], []


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that was answered. body: the request, as the engine got it. digests: of each version in the
    spans. request_bytes: as the client sent it, which is about what it holds in memory."""

    key: SessionKey
    model: str
    body: Mapping[str, Any]
    temperature: float
    choices: Sequence[SampledChoice]
    digests: Mapping[int, str]
    started_at: datetime
    ended_at: datetime
    request_bytes: int = 0

    @property
    def about_bytes(self) -> int:
        """Of the rows that it becomes: what making them takes is in proportion."""
        return self.request_bytes + sum(one.about_bytes for one in self.choices)


def session_named(headers: Mapping[str, str], body: Any, in_path: str | None) -> str | None:
    """The session that a request names; None: none. Raises BadRequest for no valid id, and for two."""
    named = {name: headers[name] for name in _HEADERS if headers.get(name)}
    metadata = _metadata_of(body)
    if _METADATA in metadata:
        named[f"metadata.{_METADATA}"] = metadata[_METADATA]
    if in_path is not None:
        named["the path"] = in_path
    if not named:
        return None
    for where, session_id in named.items():
        if not isinstance(session_id, str) or not SESSION_ID.fullmatch(session_id):
            raise BadRequest(f"{where} names session {session_id!r:.80}: a session id is {SESSION_ID_RULE}")
    if len(set(named.values())) > 1:
        listed = " and ".join(f"{session_id!r} in {where}" for where, session_id in named.items())
        raise BadRequest(f"the request names two sessions: {listed}; name one")
    return next(iter(named.values()))


def labels_given(headers: Mapping[str, str], body: Any, session_id: str | None) -> Labels:
    """What a request says about the session that it names; empty: nothing. Raises BadRequest for what is no
    set of labels, for two, and for labels of no session."""
    given: dict[str, Any] = {}
    if headers.get(_LABELS_HEADER):
        given[_LABELS_HEADER] = headers[_LABELS_HEADER]
    metadata = _metadata_of(body)
    if _LABELS_METADATA in metadata:
        given[f"metadata.{_LABELS_METADATA}"] = metadata[_LABELS_METADATA]
    read = {where: _labels(where, text) for where, text in given.items()}
    if len(set(read.values())) > 1:
        listed = " and ".join(f"{', '.join(labels)} in {where}" for where, labels in read.items())
        raise BadRequest(f"the request gives two sets of labels: {listed}; give one")
    for where, labels in read.items():
        if session_id is None:
            raise BadRequest(
                f"{where} gives labels, {', '.join(labels)}, and the request names no session: name one"
            )
    return next(iter(read.values()), ())


def _labels(where: str, text: Any) -> Labels:
    if not isinstance(text, str):
        raise BadRequest(f"{where} is {text!r:.80}: labels are a text, such as env=prod,flow=refund")
    try:
        return read_assignments(text)
    except ValueError as error:
        raise BadRequest(f"{where}: {error}") from error


def _metadata_of(body: Any) -> Mapping[str, Any]:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return metadata if isinstance(metadata, dict) else {}


@dataclass(frozen=True, slots=True)
class StoredCall:
    """One answer of an open session, as its row has it. turn: a serialised trajectory.v1.Turn."""

    messages: Sequence[Mapping[str, Any]]
    tools_json: str
    turn: bytes
    temperature: float
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class StorableCall:
    """A call as rows of the database, one for each turn: its answers, serialised trajectory.v1.Turn."""

    key: SessionKey
    model: str
    messages: str
    tools: str
    turns: Sequence[bytes]
    temperature: float
    started_at: datetime
    ended_at: datetime

    @property
    def task_digest(self) -> str:
        """Of its messages; only that of a session's first call is of interest."""
        return task_digest_of(orjson.loads(self.messages))

    @property
    def size_bytes(self) -> int:
        """Each row has the messages again."""
        rest = len(self.messages.encode()) + len(self.tools.encode())
        return sum(len(turn) + rest for turn in self.turns)

    def without_content(self) -> "StorableCall":
        """What is left of a call that alone is beyond the bounds: that it was made."""
        return replace(self, messages="[]", tools="[]", turns=(b"",))


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """What a session records. Calls beyond are answered and counted, and nothing of the session trains."""

    max_calls: int = 1000
    max_bytes: int = 128 << 20

    def have_room(self, num_calls: int, num_bytes: int, unrecorded_calls: int, size_bytes: int) -> bool:
        """Whether a session that has so much records a call of this size, too. One that was refused has no
        successors: what is recorded is the beginning of the session, without gaps."""
        return (
            not unrecorded_calls and num_calls < self.max_calls and num_bytes + size_bytes <= self.max_bytes
        )


class CallKept(StrEnum):
    """What became of a call that its session did not refuse."""

    RECORDED = "recorded"
    BEYOND_BOUNDS = "beyond_bounds"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Of calls that were stored together: what became of each, and their sessions as they are now."""

    outcomes: Sequence[GatewayError | CallKept]
    sessions: Sequence[Session]


def messages_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of a request; a text to complete is the message of a user."""
    messages = body.get("messages")
    if isinstance(messages, list):
        return [one for one in messages if isinstance(one, Mapping)]
    prompt = body.get("prompt")
    return [{"role": "user", "content": prompt if isinstance(prompt, str) else ""}]


def task_digest_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Names what a session is about: sessions that begin with equal messages attempt the same task."""
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
