"""The model and its message say the same: every run comes back from the wire as it was, defaults agree."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.run_config import (
    ADVANTAGES,
    Channel,
    Gate,
    PolicyChoice,
    Purpose,
    RunConfigInvalid,
    RunSpec,
    Sampling,
    Training,
)
from upcycle.run_config.names import HIERARCHICAL
from upcycle.run_config.reference import page
from upcycle.run_config.refusing import leaves
from upcycle.run_config.wire import spec_from_wire, spec_to_wire

REPOSITORY = Path(__file__).parents[4]
PROTO = (REPOSITORY / "proto/upcycle/api/taskset/v1/taskset.proto").read_text()
NAMES = st.text("abcxyz-@0", min_size=1, max_size=8)
SEEDS = st.integers(-(2**62), 2**62)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    max_turns=st.integers(1, 1000),
    seed=SEEDS,
    thinking=st.sampled_from(["", "on", "off", "1"]),
)
LENGTHS = st.one_of(
    st.builds(lambda steps: {"steps": steps}, st.integers(0, 10**9)),
    st.builds(lambda epochs: {"epochs": epochs}, st.integers(1, 10**6)),
)
TRAININGS = st.builds(
    lambda length, **more: Training(**length, **more),
    length=LENGTHS,
    prompts_per_step=st.integers(1, 200),
    learning_rate=st.floats(0, 10, exclude_min=True),
    advantage=st.sampled_from([one for one in ADVANTAGES if one != HIERARCHICAL]),
    seed=SEEDS,
    loss_config=st.dictionaries(st.sampled_from(["clip_low", "entropy_bonus"]), st.floats(0.01, 0.99)),
    lora_rank=st.integers(0, 65536),
    no_step_groups=st.integers(0, 10**6),
    score_failures=st.booleans(),
    max_infra_failures=st.floats(0, 1),
)
GATES = st.builds(Gate, taskset=NAMES, attempts=st.integers(1, 1024), min_gain=st.floats(-1, 1))
TRAIN_RUNS = st.builds(
    RunSpec,
    taskset=NAMES,
    purpose=st.just(Purpose.TRAIN),
    policy=st.builds(PolicyChoice, NAMES),
    group_size=st.integers(2, 10),
    sampling=SAMPLINGS,
    training=TRAININGS,
    gate=st.none() | GATES,
    source_runs=st.lists(NAMES, max_size=4, unique=True).map(tuple),
    no_sampling=st.booleans(),
)
EVAL_RUNS = st.builds(
    RunSpec,
    taskset=NAMES,
    purpose=st.just(Purpose.EVAL),
    policy=st.builds(PolicyChoice, NAMES, st.sampled_from([Channel.HEAD, Channel.LATEST]))
    | st.builds(PolicyChoice, NAMES, pinned_version=st.integers(0, 2**62)),
    group_size=st.integers(2, 512),
    sampling=SAMPLINGS,
    label=st.text(max_size=20),
    episode_deadline_s=st.integers(1, 86400),
    trainable=st.booleans(),
    max_concurrent=st.none() | st.integers(512, 10_000),
)


@settings(max_examples=300, deadline=None)
@given(TRAIN_RUNS | EVAL_RUNS)
def test_a_run_comes_back_from_the_wire_as_it_was(run: RunSpec) -> None:
    message = spec_to_wire(run)
    assert spec_from_wire(ts.RunSpec.FromString(message.SerializeToString())) == run


@pytest.mark.parametrize(
    ("cls", "message"), [(Sampling, "SamplingConfig"), (Training, "TrainingConfig"), (Gate, "GateConfig")]
)
def test_a_default_is_the_same_in_the_model_and_in_the_comment_of_the_contract(
    cls: Any, message: str
) -> None:
    body = re.search(rf"message {message} \{{(.*?)\n\}}", PROTO, re.S)
    assert body is not None
    declared = re.findall(
        r"((?:^\s*//[^\n]*\n)*)^\s*(?:optional |map<|repeated )[^=]*?(\w+) = \d+;([^\n]*)", body[1], re.M
    )
    comments = {name: f"{above} {beside}" for above, name, beside in declared}
    fields = {one.name: one for one in dataclasses.fields(cls)}
    assert set(comments) | {"taskset"} == set(fields) | {"taskset"}
    for name in set(comments) - {"loss_config", "epochs", "learning_rate", "process_rewards", "critical"}:
        found = re.search(r'[Dd]efault ("[^"]*"|[\d.e+-]*\d|true|false)', comments[name])
        assert found is not None, name
        assert json.loads(found[1]) == fields[name].default, name


@pytest.mark.parametrize(
    ("key", "limits"),
    [
        ("policy.channel", "latest, head"),
        ("policy.pinned_version", ">= 0 and <= 4.611686e+18"),
        ("sampling.thinking", "on, off, 1 to 1048576"),
        ("training.kl_estimator", "k1, k2, k3, k3_plus"),
        ("training.kl_placement", "loss, reward"),
        ("training.loss", "cispo, decoupled, dppo, dro, gspo, importance_sampling, ipo, ppo, sapo, vespo"),
    ],
)
def test_the_reference_page_says_which_values_a_field_takes(key: str, limits: str) -> None:
    (row,) = [line for line in page().splitlines() if line.startswith(f"| `{key}` |")]
    assert row.split(" | ")[2] == limits


def test_every_field_has_a_meaning_and_stands_in_the_reference_page() -> None:
    stored = (REPOSITORY / "docs/reference/run-configuration.md").read_text()
    assert page() in stored, "run `make reference`"
    for path, info in leaves().items():
        assert info.description, path
        assert f"| `{path}` |" in stored


def test_the_number_of_steps_of_epochs_is_rounded_up() -> None:
    # 3 passes over 10 tasks are 30 groups; 30 / 8 = 3.75.
    assert Training(epochs=3, prompts_per_step=8).in_steps(10) == Training(steps=4, prompts_per_step=8)
    assert Training(steps=7).in_steps(10) == Training(steps=7)


def test_a_run_without_group_size_on_the_wire_is_refused() -> None:
    policy = common_pb2.PolicySelector(model="m")
    message = ts.RunSpec(taskset="t", purpose=common_pb2.PURPOSE_EVAL, policy=policy)
    with pytest.raises(RunConfigInvalid, match=r"spec\.group_size must be >= 1 and <= 1024, got 0"):
        spec_from_wire(message)
