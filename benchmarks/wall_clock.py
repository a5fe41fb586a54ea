"""Seconds to the same held-out success on the incident task whose tools take 50 ms each: platform and TRL.

The platform runs whole (bus, store, fleet, grading, ledger); TRL 1.16's synchronous GRPOTrainer drives the
same scenario through its own environment hook. Same start, loss, learning rate and episodes per step. Both
leave the weights of every step behind; success is measured on them afterwards, alike, outside both clocks.
"""

import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from examples.incident.env import TOOL_DELAY_MS, prompt
from examples.incident.recipe import RECIPE
from examples.incident.rollout import TOOLS, Limits, play
from examples.incident.tasks import FIRST_SEED, NUM_HELD_OUT, NUM_TRAIN, train
from examples.incident.world import draw_incident
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks import trl
from benchmarks.figures import Figure, Limit, Peer
from benchmarks.options import Options
from benchmarks.stacks import MODEL, POLICY_DIR, Bench, BenchmarkFailed, bench
from blob_store import S3BlobStore
from chat_format import ChatFormat
from event_bus import EventBus
from policy_files import fetch, load
from upcycle.api.taskset.v1.taskset_pb2 import RunSpec
from upcycle.api.training.v1.events_pb2 import PolicyPublished, StepCompleted
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest
from upcycle.run_config.wire import spec_to_wire

TOOL_DELAY_S: Final = 0.05
TARGET: Final = 0.80
TARGET_RATIO: Final = 0.5
SEEDS: Final = (0, 1, 2)
MAX_STEPS: Final = 14
"""More than either should need: what counts is the first step whose weights arrive."""
MAX_COMPLETION_TOKENS: Final = 256
"""Of a whole episode with its observations; a right one takes about 140."""
_LEDGER_S: Final = 180.0
_EVAL_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What both run. stop_at: success on training tasks, twice in a row, at which the peer may stop."""

    prompts: int
    group: int
    steps: int
    target: float
    stop_at: float = 0.9
    seed: int = 0

    @property
    def episodes_per_step(self) -> int:
        """Of both."""
        return self.prompts * self.group


@dataclass(slots=True)
class Trained:
    """Weights by step with the second at which they existed, and where the seconds went."""

    weights: dict[int, Path] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    profile: str = ""


async def measure(options: Options) -> list[Figure]:
    """One run of each for every seed, in turns; quick: few episodes, two steps, and any success will do."""
    recipe = Plan(RECIPE.training.prompts_per_step, RECIPE.run.group_size, MAX_STEPS, TARGET)
    plans = [Plan(4, 4, 2, 0.0)] if options.quick else [replace(recipe, seed=seed) for seed in SEEDS]
    ours, theirs, notes = list[Trained](), list[Trained](), list[str]()
    arrivals = list[tuple[float, float]]()
    for plan in plans:
        folder = options.scratch / f"seed-{plan.seed}"
        ours.append(await _platform(plan, folder / "platform"))
        theirs.append(await _trl(plan, folder / "trl"))
        (our_step, our_s), (their_step, their_s) = [
            await asyncio.to_thread(_arrival, trained[-1], plan.target) for trained in (ours, theirs)
        ]
        arrivals.append((our_s, their_s))
        print(f"seed {plan.seed}: {our_s:.1f} s, TRL {their_s:.1f} s", file=sys.stderr, flush=True)
        notes.append(
            f"seed {plan.seed}: {our_s:.0f} s, step {our_step} ({ours[-1].profile}), "
            f"the peer {their_s:.0f} s, step {their_step} ({theirs[-1].profile})"
        )
    name = (
        f"wall clock to held-out success {plans[0].target:.0%}, tools of {TOOL_DELAY_S * 1e3:.0f} ms, "
        f"{plans[0].episodes_per_step} episodes a step"
    )
    return [
        _arrived(name, arrivals, "; ".join(notes)),
        *(_step_seconds(label, every) for label, every in (("platform", ours), ("TRL", theirs))),
    ]


def _arrived(name: str, arrivals: Sequence[tuple[float, float]], note: str) -> Figure:
    """The ratio is the median of those of the seeds."""
    ratio = statistics.median(our_s / their_s for our_s, their_s in arrivals)
    peer = Peer(f"TRL {trl.VERSION} GRPOTrainer", statistics.median(one for _, one in arrivals), "s", ratio)
    limit = Limit(TARGET_RATIO, "×", at_most=True, of_ratio=True)
    return Figure(name, "s", tuple(our_s for our_s, _ in arrivals), peer, limit, note)


def _step_seconds(label: str, every: Sequence[Trained]) -> Figure:
    each = list[float]()
    for trained in every:
        marks = [0.0, *(trained.seconds[step] for step in sorted(trained.seconds))]
        each.extend(after - before for before, after in itertools.pairwise(marks))
    return Figure(f"seconds of a step beside those tools, {label}", "s", tuple(each))


async def _platform(plan: Plan, folder: Path) -> Trained:
    """Train through the public API; every published version is fetched as soon as its fact arrives."""
    environment = {
        TOOL_DELAY_MS: f"{TOOL_DELAY_S * 1e3:g}",
        "SCENARIO_RUNNER_ENVIRONMENT_VARIABLES": json.dumps([TOOL_DELAY_MS]),
    }
    trained, metrics = Trained(), list[Mapping[str, float]]()
    async with bench(model=MODEL, extra_env=environment) as running:
        await running.register(train)
        async with _following(running, folder, trained, metrics) as all_here:
            trained.seconds[0] = time.perf_counter()
            await running.complete(_run(plan))
            await asyncio.wait_for(all_here(plan.steps), _LEDGER_S)
        await _balanced(running)
    began = trained.seconds.pop(0)
    trained.seconds = {step: at - began for step, at in trained.seconds.items()}
    trained.profile = _where_time_went(metrics)
    return trained


def _run(plan: Plan) -> RunSpec:
    """The recipe's run, without a gate: nothing is promoted, everything is published."""
    training = replace(
        RECIPE.training,
        steps=plan.steps,
        checkpoint_every_steps=plan.steps,
        seed=plan.seed,
        prompts_per_step=plan.prompts,
    )
    sampling = replace(RECIPE.run.sampling, seed=plan.seed)
    run = replace(RECIPE.run.run, taskset=train.name, group_size=plan.group, training=training, gate=None)
    return spec_to_wire(replace(run, sampling=sampling))


@asynccontextmanager
async def _following(
    running: Bench, folder: Path, trained: Trained, metrics: list[Mapping[str, float]]
) -> AsyncIterator[Any]:
    """Collects the run's facts; gives a wait for the weights of so many steps."""
    store, bus = S3BlobStore(running.stack.s3), EventBus(running.stack.bus, client_name="wall-clock")
    grown = asyncio.Event()

    async def follow() -> None:
        async for delivery in bus.replay([PolicyPublished, StepCompleted], after_sequence=0):
            fact = delivery.message
            if isinstance(fact, StepCompleted):
                metrics.append(dict(fact.metrics.values))
            elif fact.run_id:
                trained.seconds[fact.step] = time.perf_counter()
                manifest = await load(store, MODEL, fact.version)
                trained.weights[fact.step] = await fetch(store, manifest, folder) / "model.safetensors"
                grown.set()

    async def all_here(steps: int) -> None:
        while len(trained.weights) < steps:
            grown.clear()
            await grown.wait()

    await store.start()
    await bus.start()
    task = asyncio.create_task(follow(), name="wall-clock-facts")
    try:
        yield all_here
    finally:
        task.cancel()
        await asyncio.wait({task})
        await bus.stop()
        await store.stop()


async def _balanced(running: Bench) -> None:
    """Every episode that was requested has its one end. Raises BenchmarkFailed where one has not."""
    until = time.monotonic() + _LEDGER_S
    while True:
        ledger = await running.platform.trajectories.GetLedger(GetLedgerRequest(), timeout=10)
        if ledger.requested and ledger.requested == ledger.settled:
            return
        if time.monotonic() > until:
            raise BenchmarkFailed(f"the ledger is not balanced after {_LEDGER_S:g} s: {ledger}")
        await asyncio.sleep(0.5)


def _where_time_went(metrics: Sequence[Mapping[str, float]]) -> str:
    idle, learner = (sum(values[name] for values in metrics) for name in ("idle_s", "learner_s"))
    return f"trainer {learner:.0f} s computing, {idle:.0f} s waiting for groups"


async def _trl(plan: Plan, folder: Path) -> Trained:
    """The peer in its own environment and process."""
    python = await trl.prepare()
    job = await asyncio.to_thread(_write_job, plan, folder)
    program = str(Path(__file__).parent / "peers" / "trl_incident.py")
    said = await trl.output((str(python), program, str(job)), folder)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"step"')]
    if not lines:
        raise BenchmarkFailed("TRL finished no step")
    clock, total = lines[-1]["clock"], lines[-1]["seconds"]
    generating = clock["rollouts"] - clock["tools"]
    return Trained(
        weights={line["step"]: folder / f"step-{line['step']:03d}.safetensors" for line in lines},
        seconds={line["step"]: line["seconds"] for line in lines},
        profile=f"tools {clock['tools']:.0f} s, generation {generating:.0f} s, "
        f"rest {total - clock['rollouts']:.0f} s, {lines[-1]['threads']} threads",
    )


def _write_job(plan: Plan, folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "job.json"
    path.write_text(json.dumps(_job(plan, folder)))
    return path


def _job(plan: Plan, folder: Path) -> dict[str, Any]:
    seeds = range(FIRST_SEED["train"], FIRST_SEED["train"] + NUM_TRAIN)
    tasks = [{"seed": seed, "prompt": prompt(draw_incident("train", seed).alerting)} for seed in seeds]
    first = [{"role": "user", "content": tasks[0]["prompt"]}]
    return {
        "policy": str(POLICY_DIR),
        "folder": str(folder),
        "tasks": tasks,
        "tools": [tool["function"]["name"] for tool in TOOLS],
        "first_prompt_ids": ChatFormat.load(POLICY_DIR).render(first, TOOLS),
        "prompts": plan.prompts,
        "group": plan.group,
        "steps": plan.steps,
        "stop_at": plan.stop_at,
        "seed": plan.seed,
        "learning_rate": RECIPE.training.learning_rate,
        "max_turns": RECIPE.run.sampling.max_turns,
        "max_completion_tokens": MAX_COMPLETION_TOKENS,
        "tool_delay_s": TOOL_DELAY_S,
        "threads": [count for count in (1, 2, 4, 8) if count <= (os.cpu_count() or 1)],
    }


def _arrival(trained: Trained, target: float) -> tuple[int, float]:
    """The first step whose weights reach the target, and when. Raises BenchmarkFailed where none does."""
    torch.set_num_threads(os.cpu_count() or 1)
    model, seen = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32), []
    for step in sorted(trained.weights):
        model.load_state_dict(load_file(trained.weights[step]), strict=False)
        seen.append(_success(model))
        if seen[-1] >= target:
            return step, trained.seconds[step]
    raise BenchmarkFailed(f"success stayed below {target:.0%}: {', '.join(f'{one:.0%}' for one in seen)}")


def _success(model: Any) -> float:
    """Share of right diagnoses on held-out incidents, sampled as in training, seeded."""
    first = FIRST_SEED["held_out"]
    incidents = [draw_incident("held_out", first + index) for index in range(NUM_HELD_OUT)] * _EVAL_ATTEMPTS
    limits = Limits(RECIPE.run.sampling.max_turns, RECIPE.run.sampling.max_tokens_per_turn)
    episodes = play(model, ChatFormat.load(POLICY_DIR), incidents, limits, torch.Generator().manual_seed(5))
    return sum(bool(episode.grade and episode.grade.success) for episode in episodes) / len(episodes)
