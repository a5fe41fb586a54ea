"""What moving a version to the engines of a host takes of a training step, at the demo's size and at 1 GB.

A version lies in a real object store. The supervisor of each engine fetches it, every digest checked, and its
engine reloads by the protocol that proves it: measured until the last engine has done so, with one and with
eight.
"""

import asyncio
import os
import shutil
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final

import torch
from examples.incident.recipe import RECIPE
from examples.incident.tasks import practice
from tests.local_servers import S3Server
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.checkpoints import noisy_copy
from benchmarks.figures import Figure, Limit, number
from benchmarks.options import Options
from benchmarks.stacks import MODEL, POLICY_DIR, Bench, bench
from benchmarks.trainer import record
from benchmarks.watch import recipe_run
from blob_store import BlobRef, S3BlobStore
from embedded_engine.weights import load_weights
from event_bus import EventBus
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions
from policy_engine.adapters.engine_process import EngineProcess
from policy_engine.adapters.policy_store import PolicyDownloads
from policy_engine.domain import EngineTarget, Policy, ServedPolicy
from policy_engine.ports import EngineControl
from policy_engine.usecases.reload import ReloadProtocol
from policy_files import PolicyFacts, manifest_ref, prune, upload
from service_kit.groups import S3Settings
from upcycle.api.training.v1.events_pb2 import StepCompleted
from upcycle.api.training.v1.training_pb2 import PolicyManifest

ENGINES: Final = (1, 8)
LIMIT: Final = Limit(4.0, " %", at_most=True)
_HIDDEN, _LAYERS, _HEAD = (1024, 128), (20, 2), 64
"""Of the large model: 252 million parameters, in float32 1.0 GB."""
_REPEATS: Final = (5, 3)
"""At the demo's size and at the large one."""
_STEPS: Final = (5, 2)
_START_S, _FACTS_S = 300.0, 60.0
_CORES: Final = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Step:
    """A training step to hold the movement against. what: how its seconds were found."""

    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class Size:
    """A model. version_bytes: of all files of a version."""

    name: str
    version_bytes: int
    step: Step


@dataclass(slots=True)
class Moved:
    """Seconds of each movement until the last of the engines was done. how: the reload, in words.
    stood_still_s: what sampling lost by it, the longest of the engines; empty where no engine runs."""

    how: str
    fetch_s: list[float] = field(default_factory=list)
    reload_s: list[float] = field(default_factory=list)
    stood_still_s: list[float] = field(default_factory=list)


async def measure(options: Options) -> list[Figure]:
    """First the steps, while the machine does nothing else."""
    large = options.scratch / "large"
    await asyncio.to_thread(write_random, large, options.sized(*_HIDDEN), options.sized(*_LAYERS))
    steps = (await _demo_step(options.sized(*_STEPS)), await _large_step(large))
    figures = []
    with S3Server(options.scratch / "s3") as server:
        bases = (("demo", POLICY_DIR, steps[0], _REPEATS[0]), ("large", large, steps[1], _REPEATS[1]))
        for name, base, step, repeats in bases:
            folder = options.scratch / f"{name}-versions"
            manifests = await _published(server.settings, f"{MODEL}-{name}", base, folder)
            size = Size(name, bytes_of(manifests[0]), step)
            for engines in ENGINES:
                moving = _load_only if name == "large" and engines > 1 else _reload
                moved = await moving(server.settings, manifests, folder, engines, options.repeats(repeats))
                figures += figures_of(size, engines, moved)
    return figures


def bytes_of(manifest: PolicyManifest) -> int:
    """Of all files of a version."""
    return sum(file.blob.size_bytes for file in manifest.files)


def figures_of(size: Size, engines: int, moved: Moved) -> list[Figure]:
    """Fetch, reload, and both as a share of the step."""
    whose = f"{_bytes(size.version_bytes)} to {engines} engine{'' if engines == 1 else 's'} of one host"
    pairs = zip(moved.fetch_s, moved.reload_s, strict=True)
    stood = f"; sampling stands still for {_ms(moved.stood_still_s)}" if moved.stood_still_s else ""
    return [
        Figure(f"fetch of a version of {whose}", "s", tuple(moved.fetch_s)),
        Figure(f"reload of a version of {whose}", "s", tuple(moved.reload_s), note=f"{moved.how}{stood}"),
        Figure(
            f"movement of a version of {whose}, of a training step",
            "%",
            tuple(100 * (fetch_s + reload_s) / size.step.seconds for fetch_s, reload_s in pairs),
            limit=LIMIT,
            note=f"a step takes {number(size.step.seconds)} s: {size.step.what}",
        ),
    ]


def batch_seconds(one: float, two: float, groups: int) -> float:
    """Of a step on so many groups, from the seconds of steps on one and on two: each further one takes their
    difference, and what the optimizer does once is counted once."""
    return one + (groups - 1) * max(0.0, two - one)


def write_random(directory: Path, hidden: int, layers: int) -> None:
    """A policy directory with random weights, and the incident policy's tokenizer."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(
        POLICY_DIR,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        layer_types=["full_attention"] * layers,
        num_attention_heads=hidden // _HEAD,
        num_key_value_heads=hidden // (2 * _HEAD),
        head_dim=_HEAD,
        initializer_range=0.02,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    for path in POLICY_DIR.iterdir():
        if path.suffix != ".safetensors" and not (directory / path.name).exists():
            shutil.copyfile(path, directory / path.name)


async def _demo_step(steps: int) -> Step:
    """From step to step of the recipe's run on the whole platform, the first one left out."""
    async with bench(model=MODEL) as running:
        await running.register(practice)
        run = await running.complete(recipe_run(steps, seed=0))
        facts = await _steps_of(running, run.run_id, steps)
    ends = [fact.completed_at.ToMicroseconds() / 1e6 for fact in facts]
    seconds = statistics.median(after - before for before, after in pairwise(ends))
    own = statistics.median(fact.metrics.values["learner_s"] for fact in facts[1:])
    what = f"the demo's run, {steps - 1} after the first; the trainer computes for {number(own)} s of it"
    return Step(seconds, what)


async def _steps_of(running: Bench, run_id: str, count: int) -> list[StepCompleted]:
    """The facts of a run that is over. Raises TimeoutError."""
    bus, found = EventBus(running.stack.bus, client_name="weight-movement"), list[StepCompleted]()
    await bus.start()
    try:
        async with asyncio.timeout(_FACTS_S):
            async for delivery in bus.replay([StepCompleted], after_sequence=0):
                if delivery.message.run_id == run_id:
                    found.append(delivery.message)
                if len(found) == count:
                    break
    finally:
        await bus.stop()
    return found


async def _large_step(directory: Path) -> Step:
    """Of the learner on the recipe's batch, from two groups of it: all of them take minutes. What else
    belongs to a step, such as its episodes, is not counted."""
    groups, batch = await asyncio.to_thread(record, 2), RECIPE.training.prompts_per_step
    spec = TrainingSpec("run-benchmark", MODEL, RECIPE.run.group_size, prompts_per_step=batch)
    thread = LearnerThread(LearnerOptions(num_threads=_CORES))
    learner = TorchLearner(thread)
    try:
        await learner.begin(spec, directory)
        await learner.step(groups[:1])  # makes the optimizer's state
        seconds = []
        for count in (1, 2):
            began = perf_counter()
            await learner.step(groups[:count])
            seconds.append(perf_counter() - began)
    finally:
        await learner.close()
        thread.close()
    size = f"{batch} groups of {RECIPE.run.group_size}"
    what = f"the optimizer step alone on {size}, from such steps on one group and on two"
    return Step(batch_seconds(seconds[0], seconds[1], batch), what)


async def _published(
    settings: S3Settings, model: str, base: Path, folder: Path
) -> tuple[PolicyManifest, PolicyManifest]:
    """Two versions of equal size in the object store, each with its proof."""
    async with _stores(settings, 1) as (store,):
        made = []
        for version in (1, 2):
            written = folder / f"v{version}"
            proofs = await asyncio.to_thread(noisy_copy, base, written, seed=version)
            facts = PolicyFacts(model, version, datetime.now(UTC), canary=tuple(proofs))
            made.append(await upload(store, written, facts))
            shutil.rmtree(written)
    return made[0], made[1]


@asynccontextmanager
async def _stores(settings: S3Settings, count: int) -> AsyncIterator[list[S3BlobStore]]:
    """A client of the object store for each supervisor."""
    async with AsyncExitStack() as ending:
        stores = [S3BlobStore(settings) for _ in range(count)]
        for store in stores:
            await store.start()
            ending.push_async_callback(store.stop)
        yield stores


class _Caches:
    """The local caches of the supervisors of one host, which share a folder of files."""

    def __init__(self, stores: Sequence[S3BlobStore], folder: Path) -> None:
        self._folders = [folder / f"engine-{number}" for number in range(len(stores))]
        self._objects = folder / "objects"
        self._downloads = [
            PolicyDownloads(store, place, self._objects)
            for store, place in zip(stores, self._folders, strict=True)
        ]

    async def fetch(self, manifest: PolicyManifest) -> tuple[float, list[Policy]]:
        """Seconds until each has the version."""
        ref = manifest_ref(manifest)
        blob = BlobRef(ref.key, ref.sha256, ref.size_bytes)
        target = EngineTarget(manifest.version, manifest.digest, blob)
        began = perf_counter()
        policies = await asyncio.gather(*(one.fetch(target) for one in self._downloads))
        return perf_counter() - began, list(policies)

    async def forget_all_but(self, *kept: PolicyManifest) -> None:
        """As before the version came."""
        for folder in self._folders:
            digests = {manifest.digest for manifest in kept}
            await prune(folder, keep=digests, newest=0, objects=self._objects)


@dataclass(slots=True)
class _Engine:
    """One that runs, with its supervisor's protocol."""

    control: EngineControl
    protocol: ReloadProtocol
    serving: ServedPolicy

    async def reload(self, policy: Policy) -> float:
        """Seconds for which sampling stood still."""
        self.serving, stood_still_s = await self.protocol.reload(self.control, self.serving, policy)
        return stood_still_s


async def _reload(
    settings: S3Settings, manifests: Sequence[PolicyManifest], folder: Path, engines: int, repeats: int
) -> Moved:
    """Engine processes go back and forth between two versions; the one that they do not serve is never there
    already."""
    moved = Moved("engine processes, by the protocol, with its proof")
    async with _stores(settings, engines) as stores, AsyncExitStack() as ending:
        caches = _Caches(stores, folder)
        _, policies = await caches.fetch(manifests[0])
        hosts = [await _started(ending, folder, policy, number) for number, policy in enumerate(policies)]
        for number in range(repeats):
            served, wanted = manifests[number % 2], manifests[(number + 1) % 2]
            await caches.forget_all_but(served)
            fetch_s, policies = await caches.fetch(wanted)
            began = perf_counter()
            stood = await asyncio.gather(
                *(host.reload(policy) for host, policy in zip(hosts, policies, strict=True))
            )
            moved.reload_s.append(perf_counter() - began)
            moved.fetch_s.append(fetch_s)
            moved.stood_still_s.append(max(stood))
        await caches.forget_all_but()
    return moved


async def _started(ending: AsyncExitStack, folder: Path, policy: Policy, number: int) -> _Engine:
    """As its supervisor starts it; without requests, so that few places for them are enough."""
    kind = EmbeddedKind(EngineOptions(MODEL, max_num_seqs=8, max_model_len=256))
    log_path = folder / f"engine-{number}.log"
    host = EngineProcess(kind, "127.0.0.1", 0, start_s=_START_S, log_path=log_path)
    ending.push_async_callback(host.stop)
    control = await host.start(policy)
    protocol = ReloadProtocol(host, MODEL, recompute_running=False, clock=monotonic)
    return _Engine(control, protocol, await protocol.adopt(control, policy))


async def _load_only(
    settings: S3Settings, manifests: Sequence[PolicyManifest], folder: Path, engines: int, repeats: int
) -> Moved:
    """Without engine processes, whose memory this host may not have: what takes the time of a reload, but for
    its proof."""
    moved = Moved(f"no engine processes: `load_weights` of each, {_CORES} at once, a core each, and no proof")
    torch.set_num_threads(1)
    at_once = asyncio.Semaphore(_CORES)

    async def load(policy: Policy) -> None:
        async with at_once:
            await asyncio.to_thread(load_weights, policy.directory)

    async with _stores(settings, engines) as stores:
        caches = _Caches(stores, folder)
        for number in range(repeats):
            fetch_s, policies = await caches.fetch(manifests[number % 2])
            began = perf_counter()
            await asyncio.gather(*map(load, policies))
            moved.reload_s.append(perf_counter() - began)
            moved.fetch_s.append(fetch_s)
            await caches.forget_all_but()
    return moved


def _bytes(count: int) -> str:
    return f"{number(count / 1e6)} MB" if count < 1e9 else f"{number(count / 1e9)} GB"


def _ms(seconds: Sequence[float]) -> str:
    return f"{number(1e3 * statistics.median(seconds))} ms"
