"""Which states of a run are deleted, and which stay: a run always keeps the state that it ended with."""

from __future__ import annotations

import dataclasses
import json

from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, refused
from tests.services.grpo_trainer.fakes import START
from tests.services.grpo_trainer.learners import spec as run_spec
from tests.services.grpo_trainer.runs.test_session import run_to_end
from tests.support.keeping import num_kept
from tests.support.waiting import until

from blob_store import BlobRef, MemoryBlobStore
from grpo_trainer.domain.states import BasePolicy, SessionState, state_from_json
from grpo_trainer.runs.stores import BlobStates
from upcycle.api.taskset.v1 import events_pb2 as taskset_events

LINE = f"default/training/{MODEL}/{RUN}"
ORPHAN = f"{LINE}/step-00000002/0123456789abcdef/tensors.safetensors"
"""What a kill during the upload of step 2 leaves."""


def at_step(step: int) -> SessionState:
    spec = dataclasses.replace(run_spec(), run_id=RUN, model=MODEL)
    base = BasePolicy(0, f"ckpt-{MODEL}-v00000000", BlobRef("base", "0" * 64, 1))
    return SessionState(spec, base, 0, step, step, START, base.checkpoint_id, cursor=10 * step)


def steps_in(store: MemoryBlobStore) -> list[str]:
    return sorted({key.split("/")[4] for key in store.objects if "/step-" in key})


async def with_steps(*steps: int) -> tuple[MemoryBlobStore, BlobStates]:
    store = MemoryBlobStore()
    states = BlobStates(store)
    for step in steps:
        await states.commit(at_step(step), None)
    return store, states


async def test_the_end_of_a_run_keeps_its_state_where_a_newer_upload_was_broken_off() -> None:
    store, states = await with_steps(0, 1)
    await store.put(ORPHAN, b"half a state")
    await states.record_end(at_step(1))
    assert steps_in(store) == ["step-00000001"]
    found = await states.find_run(MODEL, RUN)
    assert isinstance(found, SessionState)
    assert (found.step, found.finished) == (1, True)
    assert await states.open_runs() == []


async def test_what_is_remembered_of_a_state_ends_with_it() -> None:
    _, states = await with_steps(*range(40))
    await states.prune(RUN, MODEL, newest=1)
    assert num_kept(states) <= 4


async def test_an_upload_in_progress_counts_as_no_state_and_is_not_deleted() -> None:
    store, states = await with_steps(0, 1)
    await store.put(ORPHAN, b"half a state")
    await states.prune(RUN, MODEL, newest=2)
    assert steps_in(store) == ["step-00000000", "step-00000001", "step-00000002"]


async def test_a_run_that_a_restart_finds_closed_and_without_a_state_is_not_trained_again(
    world: World,
) -> None:
    await run_to_end(world, steps=1)
    world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
    async with Trainer(world):
        await until(lambda: any(key.endswith("closed.json") for key in world.store.objects), timeout_s=60)
    for key in [key for key in world.store.objects if key.startswith(f"{LINE}/step-")]:
        del world.store.objects[key]
    before = len(world.recorder.order)
    await Episodes(world).group(50, MIXED)
    async with Trainer(world) as trainer:
        await refused(world, "run-after")
        assert trainer.sessions.all == []
    assert world.recorder.order[before:] == ["session.failed/run-after"]


class DeletedMeanwhile(MemoryBlobStore):
    """Another trainer deletes each marker of step 0 between our listing and our reading."""

    async def read(self, key: str) -> bytes | None:
        return None if key.endswith("step-00000000/state.json") else await super().read(key)


async def test_old_states_that_cannot_be_read_do_not_fail_the_run() -> None:
    store = DeletedMeanwhile()
    states = BlobStates(store)
    for step in (0, 1, 2, 3):
        await states.commit(at_step(step), None)
    store.objects[f"{LINE}/step-00000001/state.json"] = b"of another schema"
    await states.prune(RUN, MODEL, newest=1)
    assert steps_in(store) == ["step-00000000", "step-00000001", "step-00000003"]


def test_a_state_names_no_option_that_0_3_0_does_not_know_unless_the_run_uses_it() -> None:
    """A trainer of 0.3.0 beside this one reads it, and refuses keys that it does not know."""
    plain = at_step(1).to_json()
    assert not {"stale_after", "turn_credit", "process_rewards", "task_sampler"} & set(plain["spec"])
    assert {"learning_rate", "lr_schedule", "score_failures"} <= set(plain["spec"])
    assert state_from_json(json.loads(json.dumps(plain))).to_json() == plain
    chosen = dataclasses.replace(at_step(1).spec, turn_credit="turn", stale_after=40)
    used = dataclasses.replace(at_step(1), spec=chosen).to_json()
    assert (used["spec"]["turn_credit"], used["spec"]["stale_after"]) == ("turn", 40)
    assert "drift_groups" not in used["spec"]
    assert state_from_json(json.loads(json.dumps(used))).spec == chosen
