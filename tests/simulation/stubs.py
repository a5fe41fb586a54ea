"""What a history does not run for real: environments, engines, the learner. Each depends only on the seed."""

import hashlib
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from blob_store import BlobRef
from engine_client import SamplingParams
from episodes import EpisodeBroken, EpisodeFailure
from grpo_trainer.adapters.policies import HeldOutTasks, PolicyCache, RegistryPolicies
from grpo_trainer.domain.following import UNSCALED, Scales
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.learner.protocol import BatchGroup, Canary, StepNumbers
from grpo_trainer.telemetry import TrainerInstruments
from rollout_sampler.domain import EpisodeTask
from rollout_sampler.usecases.turns import PlayLimits
from scenario_runner.domain.environments import (
    EnvironmentLost,
    EpisodeFault,
    EpisodeToPlay,
    Grade,
    ToolOutcome,
)
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.environment.tools import ToolSpec
from upcycle.retrying import retry
from upcycle.states import StateEntry

TOKEN: Final = 7
_SAMPLING: Final = SamplingParams(2)


def safetensors_of(text: str) -> bytes:
    """A weights file with one tensor, whose bytes follow from a text."""
    data = hashlib.sha256(text.encode()).digest()
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def scores(weights: bytes, row: Sequence[int]) -> list[float]:
    """The log-probabilities of a row's tokens after the first; others by other weights."""
    (number,) = struct.unpack("<I", hashlib.sha256(weights).digest()[:4])
    return [-0.5 - number / 2**32] * (len(row) - 1)


def write_policy(directory: Path, text: str) -> None:
    """A HF directory whose weights follow from a text."""
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(safetensors_of(text))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_text("{}")


class StubEnvironment:
    """One episode: no tools; the reward follows from the episode's name."""

    prompt: tuple[Mapping[str, str], ...] = ({"role": "user", "content": "?", "name": ""},)
    tools: tuple[ToolSpec, ...] = ()
    source_digest = ""
    first_state = None
    guidance = ""
    guidance_parts: Mapping[str, str] = MappingProxyType({})

    def __init__(self, episode: EpisodeToPlay, rules: "Luck") -> None:
        self._episode = episode
        self._rules = rules

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, limit_s: float | None = None
    ) -> ToolOutcome:
        raise EpisodeFault(EpisodeFailure.SCENARIO_ERROR, f"there is no tool {name}")

    async def last_state(self) -> StateEntry:
        raise AssertionError("this environment declares no state")

    async def grade(self, answer: str, transcript: Mapping[str, Any], judge: object = None) -> Grade:
        self._rules.maybe_break(
            self._rules.grading_fails, EpisodeFault, EpisodeFailure.SCENARIO_ERROR, "grade"
        )
        reward = self._rules.reward_of(self._episode.episode_id)
        return Grade(reward, reward == 1.0, (), {}, 0.01)

    async def close(self) -> None:
        """Nothing is open."""


class Luck:
    """How often what is not simulated goes wrong."""

    def __init__(
        self,
        rng: random.Random,
        opening_fails: float = 0.0,
        playing_fails: float = 0.0,
        grading_fails: float = 0.0,
        learning_fails: float = 0.0,
        engines_fail: float = 0.0,
    ) -> None:
        self._rng = rng
        self.engines_fail = engines_fail
        self.learning_fails = learning_fails
        self.opening_fails = opening_fails
        self.playing_fails = playing_fails
        self.grading_fails = grading_fails
        self._salt = rng.random()

    def be_kind(self) -> None:
        """Nothing goes wrong from now on."""
        self.opening_fails = self.playing_fails = self.grading_fails = 0.0
        self.learning_fails = self.engines_fail = 0.0

    def reward_of(self, episode_id: str) -> float:
        """0 to 1; the same whenever it is asked. Few groups get one reward for all, and train nothing. In
        half of the runs every second member succeeds: beside head, many a candidate is better."""
        group, member = episode_id.rsplit("-a", 1)[0].rsplit("-e", 1)
        run_id = group.rsplit("-g", 1)[0]
        is_kind = hashlib.sha256(f"{self._salt}/{run_id}".encode()).digest()[0] % 2 == 0
        if is_kind and int(member) % 2 == 0:
            return 1.0
        digest = hashlib.sha256(f"{self._salt}/{episode_id}".encode()).digest()
        return (digest[0] % 4) / 3.0

    def maybe_break(self, chance: float, error: Callable[..., Exception], *args: object) -> None:
        """Raise an error, sometimes."""
        if chance and self._rng.random() < chance:
            raise error(*args)


class StubHost:
    """Starts environments at once."""

    def __init__(self, luck: Luck) -> None:
        self._luck = luck

    async def start(self, episode: EpisodeToPlay) -> StubEnvironment:
        self._luck.maybe_break(self._luck.opening_fails, EnvironmentLost, "its process was killed")
        return StubEnvironment(episode, self._luck)


class StubPlayer:
    """Takes the place of EpisodePlayer: one turn of two tokens, by the version that is served."""

    engine_id = ""
    is_mostly_tools = False
    tools_s = 0.0

    def __init__(
        self,
        task: EpisodeTask,
        environment: object,
        form: object,
        engines: Any,
        environments: object,
        *,
        time_s: float,
    ) -> None:
        self.time_s = time_s
        self._policy = task.policy
        self._engines = engines
        self._luck: Luck = engines.luck

    async def play_into(self, body: trajectory_pb2.TrajectoryBody, limits: PlayLimits, nonce: str) -> None:
        """See EpisodePlayer."""
        broken = self._luck.maybe_break
        broken(self._luck.playing_fails, EpisodeBroken, EpisodeFailure.ENGINE_ERROR, "the engine broke")
        completion = await retry(
            lambda: self._engines.sample(self._policy, [1, 2], _SAMPLING, body.usage), budget_s=limits.retry_s
        )
        self.engine_id = completion.engine_id
        turn = trajectory_pb2.Turn(
            new_prompt_ids=[1, 2],
            sampled_ids=completion.token_ids,
            sampled_logprobs=completion.logprobs,
            sampled_texts=["x", "x"],
            versions=[
                trajectory_pb2.TokenVersions(version=version, weights_digest=digest, num_tokens=2)
                for version, digest in completion.weights_digests.items()
            ],
            finish_reason=trajectory_pb2.FINISH_REASON_STOP,
            text="xx",
        )
        body.turns.append(turn)
        broken(self._luck.playing_fails, EpisodeBroken, EpisodeFailure.TOOL_TIMEOUT, "its tool hung")
        body.answer, body.stop_reason = "xx", trajectory_pb2.STOP_REASON_ANSWERED

    async def note_last_state(self, body: trajectory_pb2.TrajectoryBody) -> None:
        """A simulated environment declares no state."""


def _write(directory: Path, gradients: str) -> None:
    directory.mkdir()
    (directory / "gradients.json").write_text(gradients)


class StubSnapshot:
    """Weights on the host: the gradients that they hold, as text."""

    def __init__(self, gradients: tuple[str, ...]) -> None:
        self._gradients = gradients

    @property
    def canary(self) -> Canary:
        """What engines must score, too, once they have these weights."""
        weights, row = safetensors_of(json.dumps(self._gradients)), [TOKEN, TOKEN]
        return ((row, scores(weights, row)),)

    async def save(self, directory: Path) -> None:
        _write(directory, json.dumps(self._gradients))

    async def export(self, directory: Path) -> None:
        write_policy(directory, json.dumps(self._gradients))


class StubLearner:
    """Its weights are the list of the groups whose gradients they hold."""

    def __init__(self, luck: Luck) -> None:
        self._luck = luck
        self._gradients: tuple[str, ...] = ()

    async def begin(self, spec: TrainingSpec, base: Path) -> None:
        self._gradients = ()

    async def resume(self, spec: TrainingSpec, base: Path, tensors: Path) -> None:
        self._gradients = tuple(json.loads((tensors / "gradients.json").read_text()))

    def check(self, group: BatchGroup) -> None:
        """It takes any tokens."""

    async def step(self, groups: Sequence[BatchGroup], scales: Scales = UNSCALED) -> StepNumbers:
        self._luck.maybe_break(self._luck.learning_fails, MemoryError, "a row does not fit")
        self._gradients += tuple(group.group_id for group in groups)
        return StepNumbers({"loss": 1.0, "learner_s": 0.1, "rank_s": 0.1}, applied=True)

    async def snapshot(self) -> StubSnapshot:
        return StubSnapshot(self._gradients)

    async def close(self) -> None:
        """Nothing is loaded."""


class StubInstruments(TrainerInstruments):
    """No spans and no metrics."""

    @contextmanager
    def step(self, *_: object) -> Any:
        yield "00-" + "1" * 32 + "-" + "2" * 16 + "-01"

    def count_step(self, *_: object) -> None: ...

    def count_settled(self, *_: object) -> None: ...


class StubPolicies(RegistryPolicies):
    """Where no registry runs: publishing and fetching are real; head is what the history says."""

    def __init__(
        self, store: Any, folder: Path, heads: Mapping[str, BasePolicy], check: Callable[[str], object]
    ) -> None:
        self._check = check
        self._store = store
        self.cache = PolicyCache(store, folder, in_use=lambda: ())
        self._heads = heads

    async def head(self, model: str) -> BasePolicy:
        return self._heads[model]

    async def recorded_state(self, model: str, version: int) -> BlobRef | None:
        """None was recorded."""
        return None


class NothingHeldOut(HeldOutTasks):
    """There is no gate."""

    def __init__(self) -> None: ...

    async def digests(self, taskset: str) -> tuple[str, ...]:
        return ()
