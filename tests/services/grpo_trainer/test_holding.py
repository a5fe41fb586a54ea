"""Several trainers share the models: each model has one holder, and who is gone loses its models, by the
clock of those who watch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.waiting import until

from blob_store import MemoryBlobStore
from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.errors import ModelBusy
from grpo_trainer.domain.trainers import Lease
from grpo_trainer.holding import ModelHolding, process_name
from identities import objects
from upcycle.errors import Unavailable

LEASE_S = 8.0
BEAT_S = 1.6
"""Five records per lease."""


@dataclass
class Machine:
    """Trainers on one object store, each with its own clock."""

    store: MemoryBlobStore = field(default_factory=MemoryBlobStore)
    clocks: dict[str, float] = field(default_factory=dict)

    def trainer(self, name: str, *, max_models: int = 64) -> ModelHolding:
        self.clocks[name] = 100.0 * (1 + len(self.clocks))

        def monotonic() -> float:
            return self.clocks[name]

        store = TrainersStore(self.store, monotonic=monotonic)
        made = ModelHolding(store, name, lease_s=LEASE_S, max_models=max_models, monotonic=monotonic)
        made.address = lambda: f"{name}:1"
        return made

    async def rounds(self, trainers: Sequence[ModelHolding], count: int = 1) -> None:
        """All clocks go on by a beat, and these trainers have one round each, so often."""
        for _ in range(count):
            for name in self.clocks:
                self.clocks[name] += BEAT_S
            for one in trainers:
                await one.tick()


def holds(one: ModelHolding, model: str = "m") -> bool:
    return one.held(model) is not None


async def pair(machine: Machine) -> tuple[ModelHolding, ModelHolding]:
    """Both want the model; the first holds it."""
    first, second = machine.trainer("a"), machine.trainer("b")
    first.want("m")
    second.want("m")
    await machine.rounds([first, second], 2)
    assert (holds(first), holds(second)) == (True, False)
    return first, second


async def test_one_trainer_holds_a_model_and_the_other_takes_it_when_the_first_is_silent() -> None:
    machine = Machine()
    first, second = await pair(machine)
    token = first.surely("m").token
    await machine.rounds([second], 5)  # 5 x 1.6 s: the last sign of life was seen 8 s ago at the earliest now
    taken_after = 5
    while not holds(second):
        await machine.rounds([second])
        taken_after += 1
    assert taken_after * BEAT_S <= 12.8
    assert second.surely("m").token == token + 1
    with pytest.raises(Unavailable, match="has to renew first"):
        first.surely("m")  # it wakes up: before it has looked, it already is not sure
    await first.tick()
    assert (holds(first), holds(second)) == (False, True)


async def test_the_one_that_lost_its_model_learns_it_and_says_who_has_it() -> None:
    machine = Machine()
    first, second = await pair(machine)
    held = first.surely("m")
    await machine.rounds([second], 8)
    assert not held.lost.is_set()
    await first.tick()
    assert held.lost.is_set()
    assert first.holder_text("m") == "b at b:1"
    with pytest.raises(ModelBusy, match=r"trainer b holds 'm': send the call to b:1"):
        first.refuse_if_held_elsewhere("m")


@pytest.mark.parametrize("jump_s", [3600.0, -50.0])
async def test_a_jump_of_the_watchers_clock_takes_no_model_from_a_trainer_that_lives(jump_s: float) -> None:
    machine = Machine()
    first, second = await pair(machine)
    await second.tick()  # looks twice within one beat of the other: the beat is the same
    machine.clocks["b"] += jump_s
    await second.tick()
    await second.tick()
    await machine.rounds([first, second], 20)
    assert (holds(first), holds(second)) == (True, False)


async def test_a_watcher_that_was_frozen_itself_gives_everyone_its_time_again() -> None:
    machine = Machine()
    first, second = await pair(machine)
    machine.clocks["b"] += 60.0
    for _ in range(4):
        await second.tick()
    assert not holds(second)
    await machine.rounds([first, second], 10)
    assert holds(first)


async def test_an_outage_of_the_store_changes_no_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    first, second = await pair(machine)
    monkeypatch.setattr(machine.store, "put", _away)
    monkeypatch.setattr(machine.store, "list", _away)
    for one in (first, second):
        with pytest.raises(Unavailable):
            await one.tick()
    for name in machine.clocks:
        machine.clocks[name] += 60.0
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="has to renew first"):
        first.surely("m")
    await second.tick()  # the one that does not hold is back first
    await second.tick()
    await machine.rounds([first, second], 10)
    assert (holds(first), holds(second)) == (True, False)
    first.surely("m")


async def test_a_trainer_that_cannot_renew_its_leases_is_not_ready_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    first, _ = await pair(machine)
    monkeypatch.setattr(machine.store, "put", _away)
    monkeypatch.setattr(machine.store, "list", _away)
    await first.look_again()
    assert first.waiting_for([]) == (
        "the leases, which cannot be renewed: the object store (the record of this trainer): the object store"
    )
    monkeypatch.undo()
    running = asyncio.create_task(first.run())
    await until(lambda: first.waiting_for([]) is None, "leases that are renewed")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _away(*_: object) -> None:
    raise Unavailable("the object store")


async def test_a_trainer_that_leaves_gives_its_models_back_at_once() -> None:
    machine = Machine()
    first, second = await pair(machine)
    await first.leave()
    await second.tick()
    assert holds(second)


async def test_a_trainer_that_cannot_reach_the_bus_gives_its_models_away_to_one_that_can() -> None:
    machine = Machine()
    first, second = await pair(machine)
    first.able = lambda: "not connected to NATS"
    await machine.rounds([first, second])
    assert (holds(first), holds(second)) == (True, True)
    assert first.waiting_for(["m"]) == (
        "what this trainer needs to work (not connected to NATS); other trainers may take over its models"
    )
    await first.tick()
    assert not holds(first)
    second.able = first.able
    await machine.rounds([first, second], 10)
    assert holds(second)  # none is able: none takes it


async def test_a_trainer_started_again_under_its_name_has_its_models_at_once() -> None:
    machine = Machine()
    first, _ = await pair(machine)
    token = first.surely("m").token
    again = machine.trainer("a")
    again.want("m")
    await again.begin()
    assert again.surely("m").token == token + 1


async def test_two_models_are_shared_by_two_trainers_and_a_third_waits_for_room_and_is_named() -> None:
    machine = Machine()
    both = machine.trainer("a", max_models=1), machine.trainer("b", max_models=1)
    for model in ("m", "n"):
        for one in both:
            one.want(model)
    await machine.rounds(both, 4)
    assert sorted((holds(one, "m"), holds(one, "n")) for one in both) == [(False, True), (True, False)]
    for one in both:
        assert one.waiting_for(["m", "n"]) is None
        one.want("o")
    await machine.rounds(both, 2)
    assert all("a trainer with room for o" in (one.waiting_for(["m", "n", "o"]) or "") for one in both)
    third = machine.trainer("c")
    third.want("o")
    await machine.rounds([*both, third], 2)
    assert holds(third, "o")
    assert both[0].waiting_for(["m", "n", "o"]) is None


async def test_a_free_model_goes_to_the_trainer_that_holds_fewer() -> None:
    machine = Machine()
    busy, idle = machine.trainer("a"), machine.trainer("b")
    busy.want("m")
    await machine.rounds([busy, idle], 2)
    for one in (busy, idle):
        one.want("n")
    await machine.rounds([busy])  # it sees the free model first
    assert not holds(busy, "n")
    await machine.rounds([idle])
    assert holds(idle, "n")


async def test_a_model_that_no_other_trainer_takes_goes_to_the_busy_one() -> None:
    machine = Machine()
    busy, idle = machine.trainer("a"), machine.trainer("b")
    busy.want("m")
    await machine.rounds([busy, idle], 2)
    busy.want("n")
    await machine.rounds([busy, idle], 3)
    assert holds(busy, "n")


async def test_a_model_without_work_is_given_back() -> None:
    machine = Machine()
    first, second = await pair(machine)
    first.release("m")
    await machine.rounds([first, second], 4)
    assert (holds(first), holds(second)) == (False, True)


async def test_an_old_number_that_was_deleted_makes_no_holder() -> None:
    """A trainer that was about to take number 2 wakes up when 3 is held, and 2 was removed."""
    machine = Machine()
    first, second = await pair(machine)
    third = machine.trainer("c")
    third.want("m")
    take = third._store.take

    async def late(model: str, token: int, holder: str) -> bool:
        for _ in range(2):
            await second.leave()
            second.want("m")
            await machine.rounds([second])
        assert second.surely("m").token == token + 1
        return await take(model, token, holder)

    await first.leave()
    await machine.rounds([second])
    await second.leave()
    third._store.take = late  # type: ignore[method-assign]
    await machine.rounds([third])
    assert not holds(third)
    assert holds(second)


async def test_a_record_of_another_version_of_the_program_is_no_trainer() -> None:
    machine = Machine()
    first, second = await pair(machine)
    await machine.store.put("default/trainers/processes/a.json", b'{"name": "a", "colour": 1}')
    await second.tick()
    assert holds(second)
    await first.tick()
    assert not holds(first)


async def test_an_empty_lease_has_no_holder_and_its_token_is_not_used_again() -> None:
    """A store may keep one of a trainer that was killed while it took the lease."""
    machine = Machine()
    await machine.store.put(objects.trainer_lease("m", 7), b"")
    assert (await TrainersStore(machine.store).look()).leases["m"] == Lease(7, "")
    first = machine.trainer("a")
    first.want("m")
    await machine.rounds([first])
    assert first.surely("m").token == 8


def test_a_process_on_the_folder_of_one_that_lives_gets_another_name(tmp_path: Path) -> None:
    name, file = process_name(tmp_path)
    other, other_file = process_name(tmp_path)
    assert name != other
    os.close(file)
    os.close(other_file)
    again, file = process_name(tmp_path)
    assert again == name
    os.close(file)
