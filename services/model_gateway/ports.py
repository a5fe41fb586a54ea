"""What the use cases need from the world; adapters provide it."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from model_gateway.domain.calls import Target
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.routing import Engine, View

Clock = Callable[[], datetime]


class Directory(Protocol):
    """Models and engines, kept fresh in the background."""

    @property
    def view(self) -> View:
        """What is known now; no I/O."""

    async def refresh(self, timeout_s: float) -> None:
        """Asks the registry at once; on its silence the old view stays."""

    async def changed(self, timeout_s: float) -> None:
        """Returns when the view has changed, or after the timeout."""

    async def digest(self, target: Target) -> str:
        """Digest of a version; empty when the registry does not say in time."""


class EngineReply(Protocol):
    """An answer of which the head has arrived."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    async def read(self) -> bytes:
        """All of it. Raises EngineLost."""

    def chunks(self) -> AsyncIterator[bytes]:
        """As it arrives. Raises EngineLost."""

    def close(self) -> None:
        """Gives up; the engine sees a disconnect and aborts."""


class Engines(Protocol):
    """HTTP to engines."""

    async def post(
        self, engine: Engine, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> EngineReply:
        """Raises EngineLost when no head arrives."""

    async def loaded_version(self, engine: Engine) -> int | None:
        """The version that the engine says it samples with; None when it does not say."""

    async def max_model_len(self, engine: Engine) -> int | None:
        """Context of the engine's model in tokens; None when it does not say."""


class KeyStore(Protocol):
    """API keys by id."""

    async def find(self, key_id: str) -> ApiKey | None:
        """From memory where possible."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One served or refused request, for accounting. No content."""

    request_id: str
    key_id: str
    path: str
    model: str
    version: int | None
    digest: str
    status: int
    error: str
    streamed: bool
    prompt_tokens: int
    completion_tokens: int
    started_at: datetime
    first_byte_s: float | None
    duration_s: float


class UsageSink(Protocol):
    """Takes rows without making a request wait."""

    def add(self, row: UsageRow) -> None:
        """Never blocks, never raises; a full buffer is counted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One exchange, word for word, for capture."""

    request_id: str
    model: str
    version: int
    digest: str
    request: bytes
    response: bytes
    sampled_at: datetime


class Capture(Protocol):
    """Keeps production traffic, where the deployment opted in."""

    def wants(self, request_id: str) -> bool:
        """Whether this request is one to keep."""

    def add(self, sample: Sample) -> None:
        """Never blocks, never raises; a full buffer is counted."""
