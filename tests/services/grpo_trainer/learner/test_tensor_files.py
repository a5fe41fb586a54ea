"""Tensors of a state: bit for bit there and back, whatever drew from which generator meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.domain.schedules import CONSTANT, LINEAR, Schedule
from grpo_trainer.learner.random_state import RandomState
from grpo_trainer.learner.rate_schedule import RateSchedule
from grpo_trainer.learner.tensor_files import host_copy, load_tensors, read_tensors, weights_of, write_tensors

FLAT = Schedule(CONSTANT, 4, 0, 0.0)
FALLING = Schedule(LINEAR, 4, 1, 0.0)
"""1/2, 1, 2/3, 1/3 of the full rate."""


def trained(
    seed: int, steps: int, schedule: Schedule = FLAT
) -> tuple[nn.Module, torch.optim.Optimizer, RateSchedule]:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2, bias=False))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    rates = RateSchedule(optimizer, schedule)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        rates.step()
    return module, optimizer, rates


def drawn() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    module, optimizer, rates = trained(0, 3, FALLING)
    state = RandomState(7)
    with state.active():
        drawn()
    copy = host_copy(dict(module.named_parameters()), optimizer, rates, state)
    with torch.no_grad():
        next(module.parameters()).zero_()  # what was copied does not change any more
    write_tensors(tmp_path / "state", copy)
    found = read_tensors(tmp_path / "state")
    assert found.keys() == copy.keys()
    assert all(
        torch.equal(found[name], copy[name]) and found[name].dtype == copy[name].dtype for name in copy
    )

    other, fresh, place = trained(1, 0, FALLING)
    again = RandomState(0)
    load_tensors(found, dict(other.named_parameters()), fresh, place, again)
    assert all(torch.equal(p, weights_of(copy)[name]) for name, p in other.named_parameters())
    assert place.rate == rates.rate == pytest.approx(0.1 / 3)
    assert torch.equal(place.tensors()["state"], rates.tensors()["state"])
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        left, right = optimizer.state[mine], fresh.state[theirs]
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    with state.active():
        expected = drawn()
    with again.active():
        assert drawn() == expected


def test_sessions_draw_from_their_own_generators_and_leave_the_process_alone() -> None:
    torch.manual_seed(5)
    outside = torch.get_rng_state()
    one, other = RandomState(1), RandomState(1)
    with one.active():
        first = drawn()
    with other.active():
        assert drawn() == first
        more = drawn()
    with one.active():
        assert drawn() == more
    assert torch.equal(torch.get_rng_state(), outside)


def test_an_optimizer_that_never_stepped_comes_back_fresh(tmp_path: Path) -> None:
    module, optimizer, rates = trained(0, 0)
    copy = host_copy(dict(module.named_parameters()), optimizer, rates, RandomState(0))
    write_tensors(tmp_path / "state", copy)
    other, fresh, place = trained(1, 2)
    fresh.state.clear()
    found = read_tensors(tmp_path / "state")
    load_tensors(found, dict(other.named_parameters()), fresh, place, RandomState(0))
    assert not fresh.state


def test_another_architecture_and_rotten_files_are_refused(tmp_path: Path) -> None:
    module, optimizer, rates = trained(0, 1)
    copy = host_copy(dict(module.named_parameters()), optimizer, rates, RandomState(0))
    names = {f"other.{name}": p for name, p in module.named_parameters()}
    with pytest.raises(BrokenArtifact, match="disagree about parameters"):
        load_tensors(copy, names, optimizer, rates, RandomState(0))
    for rotten in (".metadata", "__0_0.distcp"):
        write_tensors(tmp_path / rotten, copy)
        (tmp_path / rotten / rotten).write_bytes(b"rotten")
        with pytest.raises(BrokenArtifact, match="no training state"):
            read_tensors(tmp_path / rotten)
    with pytest.raises(BrokenArtifact, match="no training state"):
        read_tensors(tmp_path)


def test_a_state_of_an_older_trainer_goes_on_at_a_constant_rate_and_no_other() -> None:
    module, optimizer, rates = trained(0, 2)
    copy = host_copy(dict(module.named_parameters()), optimizer, rates, RandomState(0))
    del copy["scheduler/state"]
    other, fresh, place = trained(1, 0)
    load_tensors(copy, dict(other.named_parameters()), fresh, place, RandomState(0))
    assert place.rate == 0.1
    other, fresh, place = trained(1, 0, FALLING)
    with pytest.raises(BrokenArtifact, match="no scheduler, and lr_schedule=linear with warmup_steps=1"):
        load_tensors(copy, dict(other.named_parameters()), fresh, place, RandomState(0))
