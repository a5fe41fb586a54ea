"""Which runs the registry needs: lineages of checkpoints and evidence of gates, as long as it reads facts."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, delete, update
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, checkpoint
from tests.services.checkpoint_registry.planner_double import PROFILE, evaluation_run
from tests.services.checkpoint_registry.running_registry import TRAINING_RUN, Stack, policy, upload
from tests.support.waiting import until

from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.sql_references import SqlReferences
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.watches import WatchRun
from checkpoint_registry.usecases.references import FindReferences
from identities.entities import interactive_run_id
from retention import Reference
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted
from upcycle.api.retention.v1.service_pb2 import ListReferencesRequest
from upcycle.api.retention.v1.service_pb2_grpc import ReferenceServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import connect, peer_errors


@pytest.fixture
def nats_url(own_nats_url: str) -> str:
    """What the registry gave up in other tests would make it refuse."""
    return own_nats_url


def finder(harness: RegistryHarness) -> FindReferences:
    return FindReferences(SqlReferences(harness.database))


def of_model(run_ids: Sequence[str], model: str = MODEL) -> dict[str, str]:
    return dict.fromkeys(run_ids, model)


async def test_what_a_checkpoint_trained_on_is_needed(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.gate.record(
        replace(checkpoint(2, interactive_run_id(MODEL)), sources={"run-sft": 3, "run-other": 1}), ""
    )
    found = await finder(harness)(of_model(["run-train", "run-sft", "run-none", "run-evaluated"]), True)
    assert set(found) == {
        Reference("run-train", "lineage of a checkpoint", only_trained=True),
        Reference("run-sft", "lineage of a checkpoint"),
    }


async def test_what_a_gate_ordered_and_judged_by_is_needed_before_and_after(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    ordered = {harness.planner.order_of(1)}
    evidence = {Reference(run_id, "evidence of a gate") for run_id in ordered}
    assert set(await finder(harness)(of_model([*ordered, "run-none"]), False)) == evidence
    await harness.finish(1, 0.9, 0.3)
    assert await harness.head() == 1
    found = await finder(harness)(of_model([*ordered, "run-none"]), False)
    assert set(found) == {Reference(run_id, "evidence of a gate") for run_id in ordered}


async def test_a_watch_is_needed_as_long_as_its_head_is_head(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    await harness.finish(1, 0.9, 0.3)
    assert await harness.head() == 1
    revision = (await harness.models.model(MODEL)).head_revision
    watches = SqlWatchStore(harness.database)
    for number, of_head in enumerate((revision - 1, revision)):
        ids = f"watch-{number}", MODEL, of_head, number, f"run-watch-{number}"
        await watches.add(WatchRun(*ids, RequestState.SUBMITTED, "", datetime.now(UTC)))
    found = await finder(harness)(of_model(["run-watch-0", "run-watch-1"]), False)
    assert found == [Reference("run-watch-1", "evidence of a gate")]


async def test_a_registry_that_lost_its_database_needs_every_run_of_its_models(
    harness: RegistryHarness,
) -> None:
    """Runs of a caller of an older version have no model here: they are judged by rows alone."""
    runs = {"run-1": "lost-model", "run-2": MODEL, "run-3": ""}
    stranger = Reference("run-1", "of a model that the registry does not know")
    assert list(await finder(harness)(runs, True)) == [stranger]


async def test_while_a_gate_is_not_read_every_evaluation_of_its_model_is_evidence(
    harness: RegistryHarness,
) -> None:
    """Its taskset is known only once the planner said what the run asks for."""
    await harness.save(1)
    await harness.drive()
    ordered = ["run-by-ada-0", "run-by-ada-1"]
    for version, run_id in enumerate(ordered):
        harness.planner.runs[run_id] = evaluation_run(run_id, MODEL, version, PROFILE)
        harness.planner.finish(run_id, 0.5, harness.clock())
        await harness.report(run_id)
    await harness.finish(1, 0.9, 0.3)

    def forget(connection: Connection) -> None:
        connection.execute(update(tables.gate_job).values(taskset_digest=""))
        connection.execute(delete(tables.pair_run))

    await harness.database.run(forget)
    assert list(await finder(harness)(of_model(ordered), False)) == []
    await harness.save(2)
    found = await finder(harness)(of_model(ordered), False)
    assert set(found) == {Reference(run_id, "evidence of a gate") for run_id in ordered}


async def test_the_running_registry_answers(stack: Stack) -> None:
    async with stack.registry() as stub:
        await upload(stub, "referred", policy())
        await stack.save("referred", 1, {})
        await stack.fact(CheckpointPromoted, "referred")
        async with connect(f"127.0.0.1:{stack.settings.grpc_port}") as channel:
            asked = ListReferencesRequest(run_ids=[TRAINING_RUN, "run-none"])
            answer = await ReferenceServiceStub(channel).ListReferences(asked)
    assert [(one.run_id, one.only_trained) for one in answer.references][:1] == [(TRAINING_RUN, True)]


async def test_a_registry_that_gave_a_checkpoint_up_answers_nothing(stack: Stack) -> None:
    """It cannot know what the checkpoint trained on."""
    async with stack.registry(), connect(f"127.0.0.1:{stack.settings.grpc_port}") as channel:
        await stack.save("unheard-of", 1, {})
        asked = ListReferencesRequest(run_ids=[TRAINING_RUN])

        async def refusal() -> str:
            try:
                with peer_errors("refused", ()):
                    await ReferenceServiceStub(channel).ListReferences(asked)
            except Unavailable as error:
                return str(error)
            return ""

        why = await until(refusal)
    assert "checkpoint_registry has not read all events older than" in why
    assert "gave up 1 message, see upcycle bus dead show" in why
