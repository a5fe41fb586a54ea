"""A trainer for interactive calls: real learner, states and policies; registry and store are what the test
says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.fakes import recorded_state
from tests.services.grpo_trainer.tiny import VOCAB

from blob_store import BlobRef
from episodes.identity import Split
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import BranchPolicies, PolicyCache
from grpo_trainer.domain.errors import HeldOutInput, UnknownModel, UnknownTrajectory
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.domain.token_rows import episode_tokens
from grpo_trainer.interactive.conversations import ChatConversations
from grpo_trainer.interactive.deps import InteractiveDeps, StoredTrajectory
from grpo_trainer.interactive.heads import RegistryHeads
from grpo_trainer.interactive.inputs import BatchOptions, InlineInput, Pass, RowInput, Sample, TrainingInput
from grpo_trainer.interactive.sessions import InteractiveSessions
from grpo_trainer.interactive.state import Head, Persist, StepDone, Update
from grpo_trainer.interactive.states_store import InteractiveStates
from grpo_trainer.learner.interactive import TorchInteractiveLearner
from grpo_trainer.learner.prepared import Adam, LossSpec, MeasuredPass, Normalize
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread
from identities import entities
from policy_files import KeptFacts, load, manifest_ref
from upcycle.api.trajectory.v1.trajectory_pb2 import TokenVersions, Turn
from upcycle.errors import Unavailable

SGD_LIKE = Adam(1e-2, beta1=0.0, beta2=0.0, eps=1.0, max_grad_norm=0.0)
"""With eps far above the gradients an update is nearly proportional to them: Adam hides no factor."""


class Policies(BranchPolicies):
    """The real publishing and fetching, without a registry."""

    def __init__(self, world: World) -> None:
        self._check = lambda _: None
        self._store = world.store
        self._published = world.recorder.events
        self.cache = PolicyCache(world.store, world.folder / "cache", in_use=lambda: ())

    async def recorded_state(self, model: str, version: int) -> BlobRef | None:
        return recorded_state(self._published, model, version)


@dataclass
class Registry(RegistryHeads):
    """Heads of models; checkpoints are recorded when their fact was published."""

    world: World
    revisions: dict[str, int] = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)
    has_gate: bool = False
    set_revisions: dict[str, int] = field(default_factory=dict)

    async def head(self, model: str) -> Head:
        if model not in self.world.heads:
            raise UnknownModel(f"model {model!r} is not registered")
        return Head(self.world.heads[model], self.revisions.get(model, 1), self.set_revisions.get(model, 1))

    async def holds(self, model: str, checkpoint_id: str) -> bool:
        return f"checkpoint.saved/default/{checkpoint_id}" in self.world.recorder.events

    async def promote(
        self, model: str, checkpoint_id: str, *, expected_revision: int, reason: str
    ) -> int | None:
        head = await self.head(model)
        if head.checkpoint_id == checkpoint_id:
            return head.revision
        if head.revision != expected_revision or self.has_gate:
            return None
        await self.set_head(
            model, ((named := entities.parse_checkpoint_id(checkpoint_id)) and named.version) or 0
        )
        self.moves.append(checkpoint_id)
        return self.revisions[model]

    async def set_head(self, model: str, version: int, *, by_gate: bool = False) -> None:
        """As a person would, or the gate."""
        ref: BlobRef = manifest_ref(await load(self.world.store, model, version))

        self.world.heads[model] = BasePolicy(version, entities.checkpoint_id(model, version), ref)
        self.revisions[model] = self.revisions.get(model, 1) + 1
        if not by_gate:
            self.set_revisions[model] = self.revisions[model]


@dataclass
class Library:
    """Stored trajectories."""

    known: dict[str, StoredTrajectory] = field(default_factory=dict)

    async def get(self, trajectory_id: str) -> StoredTrajectory:
        if trajectory_id not in self.known:
            raise UnknownTrajectory(f"trajectory {trajectory_id!r} is not stored")
        return self.known[trajectory_id]

    def add(
        self,
        name: str,
        reward: float | None,
        *,
        split: Split = Split.TRAIN,
        task: str = "t",
        version: int = 0,
        unreadable: bool = False,
        group: str = "",
    ) -> str:
        """A stored trajectory of two turns; returns its id. unreadable: none of its turns is trained.
        group: `<run>-g<index>`, if it matters."""
        versions = [TokenVersions(version=version, num_tokens=2)]

        def sampled(prompt: list[int], ids: list[int], logprobs: list[float]) -> Turn:
            return Turn(
                new_prompt_ids=prompt,
                sampled_ids=ids,
                sampled_logprobs=logprobs,
                versions=versions,
                parse_error="not JSON" if unreadable else "",
            )

        tokens = episode_tokens(
            name,
            [sampled([1, 2, 3], [4, 5], [-4.0, -4.1]), sampled([6], [7, 8], [-4.2, -4.3])],
            temperature=1.0,
            train_parse_errors=False,
        )
        self.known[name] = StoredTrajectory(
            tokens, reward, task, split, run_id=group.rpartition("-g")[0], group_id=group
        )
        return name


@dataclass
class Claims:
    """Which tasks were claimed by whom, in order, and which of them the planner refuses."""

    made: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    held_out: set[str] = field(default_factory=set)
    held_runs: set[str] = field(default_factory=set)
    absences: int = 0

    async def claim(
        self, digests: Sequence[str], claimed_by: str, source_run_ids: Sequence[str] = ()
    ) -> None:
        if self.absences:
            self.absences -= 1
            raise Unavailable("the planner is away")
        for digest in digests:
            if digest in self.held_out:
                raise HeldOutInput(f"task {digest} is held out: it must never train")
        self.held_runs.update(source_run_ids)
        if digests:
            self.made.append((tuple(digests), claimed_by))


@dataclass
class InteractiveTrainer:
    """One trainer process, and what a test asks of it."""

    world: World
    sessions: InteractiveSessions
    registry: Registry
    library: Library
    leases: ModelLeases
    claims: Claims

    @property
    def deps(self) -> InteractiveDeps:
        """What the sessions work with."""
        return self.sessions.deps

    async def forward_backward(
        self, request_id: str, inputs: Sequence[TrainingInput], *, model: str = MODEL, **how: Any
    ) -> MeasuredPass:
        asked = passing(inputs, **how)
        digest = repr(asked).encode()
        return await self.sessions.once(
            model, request_id, digest, lambda one: one.forward_backward(request_id, asked)
        )

    async def optim_step(
        self,
        request_id: str,
        adam: Adam = SGD_LIKE,
        *,
        gradients: tuple[str, ...] = (),
        keep_head: bool = False,
        persist: Persist = Persist.CHECKPOINT,
        model: str = MODEL,
    ) -> StepDone:
        update = Update(adam, gradients, keep_head, persist)
        digest = repr(update).encode()
        return await self.sessions.once(
            model, request_id, digest, lambda one: one.optim_step(request_id, update)
        )

    async def weights(self, version: int, *, model: str = MODEL) -> dict[str, torch.Tensor]:
        """Tensors of a published version."""
        return await self.world.weights(version, model=model)


def passing(inputs: Sequence[TrainingInput], **how: Any) -> Pass:
    """A pass. how: group_size, reward_scale, advantage, loss, config, normalize, num_substeps, lora,
    logprobs."""
    normalize = how.pop("normalize", Normalize.TOKENS)
    loss = LossSpec(how.pop("loss", "importance_sampling"), how.pop("config", {}), normalize)
    num_substeps, lora = how.pop("num_substeps", 1), how.pop("lora", None)
    logprobs = how.pop("logprobs", False)
    return Pass(tuple(inputs), BatchOptions(**how), loss, num_substeps, lora, logprobs)


@asynccontextmanager
async def trainer_on(world: World, **changes: Any) -> Any:
    """A fresh process over what outlives one."""
    thread = LearnerThread(LearnerOptions(num_threads=1))
    registry = changes.pop("registry", None) or Registry(world)
    library, claims = Library(), Claims()
    leases = ModelLeases()
    leases.runs_are_known()
    work = world.folder / "work"
    work.mkdir(exist_ok=True)
    deps = InteractiveDeps(
        new_learner=lambda: TorchInteractiveLearner(thread),
        trajectories=library,
        claims=claims,
        conversations=ChatConversations(),
        heads=registry,
        states=InteractiveStates(world.store),
        policies=Policies(world),
        facts=BusFacts(world.recorder, KeptFacts(world.store), now=world.clock),
        leases=leases,
        now=world.clock,
        work_dir=work,
    )
    clock = changes.pop("clock", time.monotonic)
    deps = replace(deps, **changes)
    sessions = InteractiveSessions(deps, clock=clock)
    try:
        yield InteractiveTrainer(world, sessions, registry, library, deps.leases, claims)
    finally:
        await sessions.stop()
        thread.close()


def inline(seed: int, reward: float | None) -> InlineInput:
    """A trajectory of two turns with seeded tokens."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(VOCAB, (count,), generator=generator).tolist()

    def logprobs(count: int) -> list[float]:
        return (-4.2 + 0.2 * torch.rand(count, generator=generator)).tolist()

    prompt, first, reply, second = tokens(5), tokens(3 + seed % 3), tokens(2), tokens(4)
    samples = (
        Sample(prompt, first, logprobs(len(first))),
        Sample(prompt + first + reply, second, logprobs(len(second))),
    )
    return InlineInput(f"t{seed}", samples, 1.0, reward)


def sft_row(seed: int, length: int = 6) -> RowInput:
    """A row of which all but two tokens are trained."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (length,), generator=generator).tolist()
    return RowInput(f"r{seed}", ids, [0.0, 0.0, *[1.0] * (length - 2)], [], [], 1.0, None)


REWARDS = (1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.0)


def batch(count: int = 8) -> list[TrainingInput]:
    return [inline(seed, REWARDS[seed]) for seed in range(count)]
