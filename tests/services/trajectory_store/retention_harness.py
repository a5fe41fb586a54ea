"""An index with old episodes, a store of objects, and the services that may refer to their runs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from google.protobuf.message import Message
from sqlalchemy import func, select
from tests.services.deliveries import delivered
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import EVAL, START

from blob_store import BlobRef, BlobStore, MemoryBlobStore
from identities import objects
from retention import Reference, SweepOrder, SweepReport
from sql_store import Database
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.sql_retention import SqlRetention
from trajectory_store.adapters.tables import EPISODES
from trajectory_store.domain.facts import EpisodeFact
from trajectory_store.domain.retention import Removable, StorePolicy
from trajectory_store.handlers import FACTS
from trajectory_store.usecases.retaining import RemoveOld
from upcycle.errors import Unavailable

MONTH = timedelta(days=30)
POLICY = StorePolicy(bodies=MONTH, episodes=2 * MONTH)


def facts(*messages: Message) -> list[EpisodeFact]:
    return [fact for message in messages for fact in FACTS.handle(delivered(message, START, ""))]


async def _nothing() -> None: ...


@dataclass
class ReferencesDouble:
    """Answers what a test sets, or that it cannot."""

    needed: list[Reference] = field(default_factory=list)
    away: str = ""
    released: set[str] = field(default_factory=set)
    meanwhile: Callable[[], Awaitable[None]] = _nothing
    """What happens while they are asked."""

    async def to_runs(self, runs: Mapping[str, str], *, release: bool) -> Sequence[Reference]:
        if self.away:
            raise Unavailable(self.away)
        await self.meanwhile()
        found = [one for one in self.needed if one.run_id in runs]
        if release:
            self.released |= set(runs) - {one.run_id for one in found}
        return found


class RetentionHarness:
    """now: of the sweeps; episodes are of START."""

    def __init__(self, db: Database, bodies: BlobStore | None = None) -> None:
        self.db = db
        self.index = SqlIndex(db)
        self.rows = SqlRetention(db)
        self.memory = MemoryBlobStore()
        self.bodies: BlobStore = bodies or self.memory
        self.references = ReferencesDouble()
        self.policy = POLICY
        self.now: datetime = START + 3 * MONTH
        self.batch = 500

    async def settle(self, *numbers: int, run: str = "run-e", trained_by: str = "") -> None:
        """Evaluated episodes with bodies of 10 bytes each; trained_by: by step 3 of that run."""
        lives: list[Message] = []
        for number in numbers:
            key = objects.trajectory_body(run, events.episode_id(number, run))
            ref = await self.bodies.put(key, b"%010d" % number)
            lives += self.life_of(number, run=run, trained_by=trained_by, body=ref)
        await self.index.project(facts(*lives))

    def life_of(
        self, number: int, *, run: str = "run-e", trained_by: str = "", body: BlobRef | None = None
    ) -> list[Message]:
        """Every fact about an episode."""
        life: list[Message] = [
            events.requested(number, run=run, purpose=EVAL),
            events.recorded(number, run=run, purpose=EVAL, body=body),
            events.graded(number, run=run, purpose=EVAL, body=body),
        ]
        if trained_by:
            life.append(events.settled([number], "trained", step=3, run=run, by=trained_by))
        return life

    def sweep_of(self, what: Removable) -> RemoveOld:
        """As a fresh process has it."""
        return RemoveOld(
            what, self.rows, self.bodies, self.references, self.policy, now=lambda: self.now, batch=self.batch
        )

    async def sweep(self, what: Removable, *, apply: bool, **order: object) -> SweepReport:
        return await self.sweep_of(what)(SweepOrder(apply, **order))  # type: ignore[arg-type]

    async def sweep_all(self, what: Removable) -> int:
        """Batch after batch; how many were removed."""
        number, after = 0, ""
        while True:
            report = await self.sweep(what, apply=True, after=after)
            number, after = number + report.number, report.next
            if not after:
                return number

    async def num_rows(self) -> int:
        query = select(func.count()).select_from(EPISODES)
        return await self.db.run(lambda connection: int(connection.execute(query).scalar_one()))
