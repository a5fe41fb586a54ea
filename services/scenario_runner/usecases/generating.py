"""New tasks of runs are made: each order goes to the generator of its scenario, or is read from the answer
that proposes it, outside the planner's transactions, and what comes is checked, claimed as training data and
played.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from blob_store import BlobRef
from identities.entities import group_of_episode
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.environments import (
    BodyUnreadable,
    EnvironmentKilled,
    EpisodeFault,
    EpisodeTimeout,
    GeneratedTask,
    ScenarioTranscript,
    TaskOrder,
)
from scenario_runner.domain.new_tasks import NewTaskRow, NewTaskState
from scenario_runner.domain.runs import RunRecord
from scenario_runner.domain.self_play import twin
from scenario_runner.domain.spellings import other_spellings
from scenario_runner.ports import GeneratorHost
from scenario_runner.usecases.difficulty import chosen
from scenario_runner.usecases.ending import conclude
from scenario_runner.usecases.futile_runs import end_if_nothing_to_learn
from scenario_runner.usecases.mixing import digest_of_source
from scenario_runner.usecases.new_tasks import makes_new_tasks
from scenario_runner.usecases.registering import misfit
from scenario_runner.usecases.self_play import answered, is_late
from scenario_runner.usecases.task_claims import claim_generated
from service_kit.loops import one_piece
from upcycle.errors import TasksetInvalid, Unavailable
from upcycle.task_rows import canonical_args, canonical_json, task_digest

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Orders of one taskset of a run that are asked for at once: an environment that is down holds up its own."""
_MAX_DETAIL_CHARS: Final = 500
_NONE_CAME: Final = (EpisodeFault, EpisodeTimeout, EnvironmentKilled, TasksetInvalid, BodyUnreadable)

ReadTranscript = Callable[[BlobRef], Awaitable[ScenarioTranscript]]
"""Of a stored trajectory: its answer and turns. Raises BodyUnreadable, Unavailable."""


async def _nothing_stored(body: BlobRef) -> ScenarioTranscript:
    raise BodyUnreadable(f"trajectory body {body.key!r}: this planner reads none")


@dataclass(frozen=True, slots=True)
class _Order:
    """A row, and what its environment is asked. tasksets: keys of the revisions that the run plays."""

    row: NewTaskRow
    asked: TaskOrder
    tasksets: frozenset[str]
    proposal: BlobRef | None = None
    """The trajectory whose answer proposes the task."""
    is_late: bool = False


class MakeTasks:
    """One look at the orders of all runs. wake: called when there is something new to play. note: called
    with how each order ended. read: the trajectories that propose."""

    def __init__(
        self,
        plan: SqlPlan,
        host: GeneratorHost,
        *,
        wake: Callable[[], None],
        read: ReadTranscript = _nothing_stored,
        note: Callable[[NewTaskState], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._host = host
        self._wake = wake
        self._read = read
        self._note = note

    async def __call__(self) -> None:
        """Raises Unavailable at the end, if an environment is to be asked again."""
        failed: Unavailable | None = None
        for run in await self._plan.read(_ordering):
            try:
                with one_piece(f"new tasks of {run.run_id}", of=run.run_id):
                    await self._look_at(run)
            except Unavailable as error:  # the other runs go on
                failed = error
        if failed is not None:
            raise failed

    async def _look_at(self, run: RunRecord) -> None:
        orders = await self._plan.read(lambda unit: _orders(unit, run))
        done = await asyncio.gather(*map(self._fill, orders), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error

    async def _fill(self, order: _Order) -> None:
        """Raises what may pass, as EnvironmentBroken and EnvironmentLost: the environment is asked again."""
        try:
            made = await self._host.generate(await self._asked(order))
            args_json, digests = _checked(order, made)
        except _NONE_CAME as error:
            found = await self._drop(order, error)
        except Exception as error:  # a bug too: each look at it would meet the same
            if not order.is_late:
                raise
            log.warning("proposal_given_up", extra={"run_id": order.row.run_id, "error": repr(error)})
            found = await self._drop(order, error)
        else:
            known = await self._plan.read(lambda unit: unit.slug_of(order.tasksets, digests))
            row = order.row.made(args_json, digests[0])
            found = await self._plan.transact(lambda unit: _take(unit, row, digests, known, made.schema))
        self._note(found.state)
        said = {"run_id": found.run_id, "number": found.number, "task": found.slug, "why": found.detail}
        log.info("task_generated", extra={**said, "state": found.state.value})
        if found.state is NewTaskState.PLAYING or found.proposed_by:
            self._wake()

    async def _asked(self, order: _Order) -> TaskOrder:
        if order.proposal is None:
            return order.asked
        read = await self._read(order.proposal)
        return replace(order.asked, proposal={"answer": read.answer, "trajectory": read.trajectory})

    async def _drop(self, order: _Order, error: Exception) -> NewTaskRow:
        found = order.row.dropped(NewTaskState.FAILED, str(error)[:_MAX_DETAIL_CHARS])
        return await self._plan.transact(lambda unit: _answer(unit, found))


def _ordering(unit: PlanUnit) -> list[RunRecord]:
    return [run for run in unit.active_runs() if makes_new_tasks(run) and run.ending is None]


def _orders(unit: PlanUnit, run: RunRecord) -> list[_Order]:
    mixed = {row.taskset for row in unit.mixes.of(run.run_id)}
    found = []
    for row in unit.new_tasks.wanted(run.run_id, AT_ONCE):
        source = unit.source_of(row.taskset)
        digest = digest_of_source(unit, run, row.taskset)
        asked = TaskOrder(source, row.scenario, row.seed, row.parent_args, row.solved, digest)
        tasksets = frozenset({run.taskset, row.taskset} | mixed)
        found.append(_Order(row, asked, tasksets, _proposal(unit, row), is_late(unit, run, row)))
    return found


def _proposal(unit: PlanUnit, row: NewTaskRow) -> BlobRef | None:
    episode = unit.episode(row.proposed_by) if row.proposed_by else None
    return None if episode is None else BlobRef(episode.body_key, episode.body_sha256, episode.body_size)


def _checked(order: _Order, made: GeneratedTask) -> tuple[str, list[str]]:
    """(the arguments in canonical JSON, every digest of the task, its own first). Raises TasksetInvalid, also
    for what an environment that is served elsewhere did not check."""
    scenario, source = order.row.scenario, order.asked.source
    args_json = canonical_args(canonical_json(dict(made.arguments)), f"new {scenario}")
    try:
        problem = misfit(made.arguments, made.schema)
        spellings = other_spellings(source.name, scenario, args_json, made.schema)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TasksetInvalid(
            f"environment {source.name!r} gives a schema of scenario {scenario!r} that is none: {error!r}"
        ) from error
    if problem:
        raise TasksetInvalid(f"the generator of scenario {scenario!r} made no task: it {problem}")
    return args_json, [task_digest(source.name, scenario, args_json), *sorted(spellings)]


def _take(
    unit: PlanUnit, row: NewTaskRow, digests: Collection[str], known: str, schema: Mapping[str, Any]
) -> NewTaskRow:
    """The row as it is then: played, once it is training data, or dropped. A replica may have answered the
    order meanwhile, with another task of a generator that is not deterministic: then nothing is claimed."""
    newest = unit.new_tasks.of(row.run_id, row.number)
    if newest.state is not NewTaskState.WANTED:
        return newest
    if row.parent_digest in digests:  # a failed attempt that changed nothing
        return _answer(unit, _without_task(row, NewTaskState.DUPLICATE, f"it is {row.parent_slug} again"))
    if row.proposed_by:  # played again where another group proposed it: the policy has changed since
        if (same := _equal_proposal(unit, row)) is not None:
            why = f"{same.proposed_by} of its group proposed it too"
            return _answer(unit, replace(row, slug=same.slug).dropped(NewTaskState.DUPLICATE, why))
    elif known := known or unit.new_tasks.with_digest(row.run_id, digests):
        return _answer(unit, _without_task(row, NewTaskState.DUPLICATE, f"the run has it already: {known}"))
    is_fit, said = chosen(unit, row, schema)
    if not is_fit:
        return _answer(unit, _without_task(row, NewTaskState.FILTERED, said))
    claim = claim_generated(unit, digests, row.run_id)
    if claim is not None:
        why = f"task {claim.digest[:12]} is of split {claim.split.value}: {claim.claimed_by} claimed it"
        return _answer(unit, _without_task(row, NewTaskState.HELD_OUT, why))
    return _answer(unit, replace(row, detail=said))


def _equal_proposal(unit: PlanUnit, row: NewTaskRow) -> NewTaskRow | None:
    group_id = group_of_episode(row.proposed_by)
    members = [member.episode_id for member in unit.members(group_id)]
    return twin(row.digest, unit.new_tasks.proposed_by(row.run_id, members))


def _without_task(row: NewTaskRow, state: NewTaskState, why: str) -> NewTaskRow:
    return replace(row, slug="", args_json="", digest="").dropped(state, why)


def _answer(unit: PlanUnit, row: NewTaskRow) -> NewTaskRow:
    """Write how an order ended, once: a replica may have answered it meanwhile."""
    newest = unit.new_tasks.of(row.run_id, row.number)
    if newest.state is not NewTaskState.WANTED:
        return newest
    unit.new_tasks.update(row)
    run = unit.run(row.run_id)
    if run is not None and row.state is not NewTaskState.PLAYING:
        answered(unit, run, row)
        if row.proposed_by:
            end_if_nothing_to_learn(unit, run.run_id)
            conclude(unit, run.run_id)
    return row
