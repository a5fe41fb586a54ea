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
from grpo_trainer.learner.tensor_files import host_copy, load_tensors, read_state, weights_of
from training_states.files import write_tensors

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
    found = read_state(tmp_path / "state")
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
    found = read_state(tmp_path / "state")
    load_tensors(found, dict(other.named_parameters()), fresh, place, RandomState(0))
    assert not fresh.state


def test_another_architecture_and_rotten_files_are_refused(tmp_path: Path) -> None:
    module, optimizer, rates = trained(0, 1)
    copy = host_copy(dict(module.named_parameters()), optimizer, rates, RandomState(0))
    names = {f"other.{name}": p for name, p in module.named_parameters()}
    with pytest.raises(BrokenArtifact, match="disagree about parameters"):
        load_tensors(copy, names, optimizer, rates, RandomState(0))
    for rotten in ("index.json", "tensors.safetensors"):
        write_tensors(tmp_path / rotten, copy)
        (tmp_path / rotten / rotten).write_bytes(b"rotten")
        with pytest.raises(BrokenArtifact, match="no training state"):
            read_state(tmp_path / rotten)
    with pytest.raises(BrokenArtifact, match="no training state"):
        read_state(tmp_path)


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


def test_a_tensor_of_another_shape_is_refused_and_not_spread(tmp_path: Path) -> None:
    """One value would fill a whole layer, and the run would go on with it."""
    module, optimizer, rates = trained(0, 1)
    parameters = dict(module.named_parameters())
    copy = host_copy(parameters, optimizer, rates, RandomState(0))
    before = {name: one.detach().clone() for name, one in parameters.items()}
    lying = {**copy, "model/2.weight": torch.ones(1)}
    with pytest.raises(BrokenArtifact, match=r"2\.weight.*\[1\].*\[2, 5\]"):
        load_tensors(lying, parameters, optimizer, rates, RandomState(0))
    assert all(torch.equal(one, before[name]) for name, one in parameters.items())


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("model/1.bias", torch.zeros(5, dtype=torch.float16), r"parameter 1\.bias is float16 of shape \[5\]"),
        ("optimizer/0.bias/exp_avg", torch.zeros(5, dtype=torch.float64), r"exp_avg of parameter 0\.bias is"),
        ("optimizer/0.bias/exp_avg_sq", torch.zeros(4), r"exp_avg_sq of parameter 0\.bias is .*\[4\]"),
        ("optimizer/0.weight/exp_avg", torch.zeros(1), r"exp_avg of parameter 0\.weight is .*\[1\]"),
        (
            "options/0",
            torch.zeros(3, dtype=torch.uint8),
            "the options of the optimizer in the training state",
        ),
        ("options/7", torch.tensor(list(b"{}"), dtype=torch.uint8), "the options of the optimizer .*index"),
        ("scheduler/state", torch.tensor(list(b"[]"), dtype=torch.uint8), "the place in the schedule in the"),
        ("random/torch", torch.zeros(3, dtype=torch.uint8), "the random state in the training state"),
        ("random/numpy", torch.tensor(list(b"[1]"), dtype=torch.uint8), "the random state in the training"),
    ],
)
def test_a_state_that_says_what_its_run_cannot_have_written_is_refused_by_name(
    name: str, other: torch.Tensor, message: str
) -> None:
    """It would be rounded, or be an error of some library in the first step."""
    module, optimizer, rates = trained(0, 1)
    parameters = dict(module.named_parameters())
    copy = host_copy(parameters, optimizer, rates, RandomState(0))
    outside = torch.get_rng_state()
    with pytest.raises(BrokenArtifact, match=f"{message}.*put back what a backup has"):
        load_tensors({**copy, name: other}, parameters, optimizer, rates, RandomState(0))
    assert torch.equal(torch.get_rng_state(), outside)


@pytest.mark.parametrize("hostile", ["file", "shape"])
def test_an_index_or_a_header_that_no_library_expects_is_a_broken_state(tmp_path: Path, hostile: str) -> None:
    write_tensors(tmp_path / "state", {"model/a": torch.rand(3)})
    index, tensors = tmp_path / "state" / "index.json", tmp_path / "state" / "tensors.safetensors"
    if hostile == "file":
        index.write_text(index.read_text().replace("tensors.safetensors", "\\ud800.safetensors"))
    else:
        header = b'{"model/a":{"dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0]}}'
        tensors.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BrokenArtifact, match="no training state"):
        read_state(tmp_path / "state")
