"""TasksetService: tasksets and runs over gRPC."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
from opentelemetry import propagate, trace

from episodes.identity import SPLIT_NUMBERS
from grpc_edge.access import UNAUTHENTICATED, current_caller, may_decide
from identities.entities import is_of_the_platform
from scenario_runner.domain.run_facts import WaitReason
from scenario_runner.domain.runs import FINAL_RUN_STATES, Prices, Refused, RunView
from scenario_runner.usecases.attacks import RecordAttack
from scenario_runner.usecases.catalog import Tasksets
from scenario_runner.usecases.deploying import DeployEnvironment, SentEnvironment
from scenario_runner.usecases.explaining import ExplainRun
from scenario_runner.usecases.kept_sources import ReadSource
from scenario_runner.usecases.registering import RegisterTaskset
from scenario_runner.usecases.submitting import Runs, SubmitRun, TraceContext
from scenario_runner.usecases.task_claims import ClaimTasks
from scenario_runner.usecases.views import INTERVAL_S
from scenario_runner.wire import runs as wire
from scenario_runner.wire.taskset_checks import check_from_wire, check_to_wire
from service_kit.errors import InvalidRequest
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_RUNS: Final = 50
MAX_RUNS: Final = 1000
SOURCE_PART_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TasksetUseCases:
    """The use cases of environments and tasksets."""

    register: RegisterTaskset
    record_attack: RecordAttack
    tasksets: Tasksets
    claim: ClaimTasks
    deploy: DeployEnvironment
    read_source: ReadSource


class TasksetServicer(TasksetServiceServicer):
    """Decode, call the use case, encode."""

    def __init__(
        self, catalog: TasksetUseCases, submit: SubmitRun, runs: Runs, explain: ExplainRun, *, prices: Prices
    ) -> None:
        self._register = catalog.register
        self._record_attack = catalog.record_attack
        self._tasksets = catalog.tasksets
        self._claim = catalog.claim
        self._deploy = catalog.deploy
        self._read_source = catalog.read_source
        self._submit = submit
        self._runs = runs
        self._explain = explain
        self._to_wire = partial(wire.run_to_wire, prices=prices)

    async def RegisterTaskset(
        self, request: pb.RegisterTasksetRequest, context: Context
    ) -> pb.RegisterTasksetResponse:
        """Store a taskset once its every task is known to be runnable."""
        taskset, created = await self._register(
            wire.taskset_from_wire(request.taskset), by_operator=may_decide(current_caller())
        )
        return pb.RegisterTasksetResponse(
            name=taskset.name,
            digest=taskset.digest,
            num_tasks=taskset.num_tasks,
            created=created,
            revision=taskset.revision,
        )

    async def ClaimTasks(self, request: pb.ClaimTasksRequest, context: Context) -> pb.ClaimTasksResponse:
        """Mark tasks as training data before a gradient is taken on them."""
        claimed = await self._claim(request.task_digests, request.claimed_by, request.source_run_ids)
        return pb.ClaimTasksResponse(claimed=claimed)

    async def GetTaskset(self, request: pb.GetTasksetRequest, context: Context) -> pb.GetTasksetResponse:
        """With its tasks, and on request with the side of each."""
        if request.with_summaries:
            taskset, sides, revisions = await self._tasksets.describe(request.name)
            return pb.GetTasksetResponse(
                taskset=wire.taskset_to_wire(taskset),
                revisions=map(wire.facts_to_wire, revisions),
                task_splits=[SPLIT_NUMBERS[side] for side in sides],
            )
        return pb.GetTasksetResponse(taskset=wire.taskset_to_wire(await self._tasksets.get(request.name)))

    async def ListTasksets(
        self, request: pb.ListTasksetsRequest, context: Context
    ) -> pb.ListTasksetsResponse:
        """Without their tasks."""
        if request.with_summaries:
            return pb.ListTasksetsResponse(
                summaries=map(wire.facts_to_wire, await self._tasksets.described())
            )
        tasksets = await self._tasksets.all()
        return pb.ListTasksetsResponse(tasksets=[wire.taskset_to_wire(one) for one in tasksets])

    async def DeleteTaskset(
        self, request: pb.DeleteTasksetRequest, context: Context
    ) -> pb.DeleteTasksetResponse:
        """Every revision of one that nothing refers to."""
        return pb.DeleteTasksetResponse(
            revisions=map(wire.facts_to_wire, await self._tasksets.delete(request.name))
        )

    async def RecordTasksetCheck(
        self, request: pb.RecordTasksetCheckRequest, context: Context
    ) -> pb.RecordTasksetCheckResponse:
        """Keep what an attack on the graders found."""
        check = check_from_wire(request.check, checked_by=current_caller().name)
        revision, kept = await self._record_attack(request.taskset, request.taskset_digest, check)
        return pb.RecordTasksetCheckResponse(revision=revision, check=check_to_wire(kept))

    async def DeployEnvironment(
        self, request: pb.DeployEnvironmentRequest, context: Context
    ) -> pb.DeployEnvironmentResponse:
        """Keep the source of an environment."""
        if current_caller() is UNAUTHENTICATED:
            raise Refused(
                "environments cannot be deployed here: the platform serves callers without a key "
                "(UPCYCLE_ACCESS_OPEN), and would run the code of any of them; give it keys"
            )
        sent = SentEnvironment(request.name, request.source_digest, request.packed)
        deployed = await self._deploy(sent)
        return pb.DeployEnvironmentResponse(
            environment=wire.source_to_wire(deployed.source), scenarios=deployed.scenarios
        )

    async def GetSource(
        self, request: pb.GetSourceRequest, context: Context
    ) -> AsyncIterator[pb.GetSourceResponse]:
        """The packed source of an environment, in parts."""
        packed = await self._read_source(request.source_digest)
        for begin in range(0, len(packed), SOURCE_PART_BYTES):
            yield pb.GetSourceResponse(packed=packed[begin : begin + SOURCE_PART_BYTES])

    async def SubmitRun(self, request: pb.SubmitRunRequest, context: Context) -> pb.SubmitRunResponse:
        """Accept a run, once per request id."""
        _check_request_id(request.request_id)
        spec = wire.spec_from_wire(request.spec)
        view = await self._submit(request.request_id, spec, current_trace())
        return pb.SubmitRunResponse(run=self._to_wire(view))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        """A run, and on request what each of its episodes came to."""
        view = await self._runs.get(request.run_id)
        rows = await self._runs.results(request.run_id) if request.include_results else []
        results = [wire.result_to_wire(row, task) for row, task in rows]
        return pb.GetRunResponse(run=self._to_wire(view), results=results)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """Newest first."""
        limit = request.limit or DEFAULT_RUNS
        if not 0 < limit <= MAX_RUNS:
            raise InvalidRequest(f"limit is {limit}; use 1 to {MAX_RUNS}")
        if request.unfinished:
            views = await self._runs.unfinished(request.model)
        else:
            views = await self._runs.list(limit, request.model, asked_for=request.asked_for)
        return pb.ListRunsResponse(runs=[self._to_wire(view) for view in views])

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """The run now, then at each change, until it is over."""
        async with aclosing(self._changes(request.run_id)) as runs:
            async for run in runs:
                yield pb.WatchRunResponse(run=run)

    async def CancelRun(self, request: pb.CancelRunRequest, context: Context) -> pb.CancelRunResponse:
        """Plan nothing more and cancel what is not settled."""
        view = await self._runs.cancel(request.run_id, request.reason)
        return pb.CancelRunResponse(run=self._to_wire(view))

    async def PauseRun(self, request: pb.PauseRunRequest, context: Context) -> pb.PauseRunResponse:
        """Dispatch nothing new; what is in flight settles."""
        return pb.PauseRunResponse(run=self._to_wire(await self._runs.pause(request.run_id)))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Context) -> pb.ResumeRunResponse:
        """Go on with a paused run."""
        return pb.ResumeRunResponse(run=self._to_wire(await self._runs.resume(request.run_id)))

    async def StopRun(self, request: pb.StopRunRequest, context: Context) -> pb.StopRunResponse:
        """End a training run early, with a final checkpoint."""
        view = await self._runs.stop(request.run_id, request.reason)
        return pb.StopRunResponse(run=self._to_wire(view))

    async def ExplainRun(self, request: pb.ExplainRunRequest, context: Context) -> pb.ExplainRunResponse:
        """What a run waits for."""
        view, reasons, summary = await self._explain(request.run_id)
        waiting_for = [_reason(reason) for reason in reasons]
        return pb.ExplainRunResponse(run=self._to_wire(view), waiting_for=waiting_for, summary=summary)

    async def _changes(self, run_id: str) -> AsyncGenerator[taskset_pb2.Run, None]:
        seen: RunView | None = None
        sent: taskset_pb2.Run | None = None
        while True:
            view = await self._runs.watched(run_id)
            run = self._to_wire(view) if view is not seen else sent
            if run is not None and run != sent:
                yield run
            seen, sent = view, run
            if view.run.state in FINAL_RUN_STATES:
                return
            await asyncio.sleep(INTERVAL_S)


def current_trace() -> TraceContext:
    """The trace of the call being served."""
    span = trace.get_current_span().get_span_context()
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return TraceContext(trace.format_trace_id(span.trace_id) if span.is_valid else "", headers)


def _check_request_id(request_id: str) -> None:
    """A request id that was used is never another run's, so one that a gate will use is kept for the
    registry. Raises InvalidRequest."""
    if is_of_the_platform(request_id) and current_caller().role in (Role.ROLE_USER, Role.ROLE_OPERATOR):
        raise InvalidRequest(
            f"request_id {request_id!r:.80} begins as those of the platform's own runs do: choose another one"
        )


def _reason(reason: WaitReason) -> taskset_pb2.WaitReason:
    return taskset_pb2.WaitReason(
        owner=reason.owner,
        what=reason.what,
        episodes=reason.episodes,
        waiting_s=reason.waiting_s,
        remedy=reason.remedy,
    )
