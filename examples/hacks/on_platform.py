"""One planted hack on the whole platform: services as processes, a GRPO run, the alarms of the store."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from examples.hacks.platform_record import (
    PlatformRecord,
    RaisedAlarm,
    SeenEpisode,
    Verdict,
    first_alarms,
    is_hack,
)
from examples.hacks.tasks import held_out_tasks, train_tasks
from local_stack.stack import Stack, StackSettings
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, PURPOSE_TRAIN, PolicySelector
from upcycle.api.registry.v1.registry_pb2 import Checkpoint, CheckpointState
from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest
from upcycle.api.taskset.v1.taskset_pb2 import GateConfig, Run, RunSpec, SamplingConfig, TrainingConfig
from upcycle.api.trajectory.v1.service_pb2 import (
    GetTrajectoryRequest,
    ListAlarmsRequest,
    ListTrajectoriesRequest,
    TrajectoryFilter,
)
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
from upcycle.audits import wait_for_verdicts
from upcycle.platform import Addresses, Platform
from upcycle.run_client import follow_run, register_taskset, state_word, submit_run

MODEL: Final = "hacks"
REPOSITORY: Final = Path(__file__).resolve().parents[2]
RUN_LIMIT_S: Final = 900.0
AFTERWARDS_S: Final = 300.0
_ASK_S: Final = 30.0
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class PlatformPlan:
    """The run. gate_tasks: of which every eleventh has no solution."""

    steps: int = 16
    groups: int = 8
    group_size: int = 6
    learning_rate: float = 5e-4
    train_tasks: int = 192
    gate_tasks: int = 22
    gate_attempts: int = 2
    checkpoint_every: int = 8
    seed: int = 0


async def play_on_platform(
    variant: str, policy: Path, folder: Path, plan: PlatformPlan = PlatformPlan()
) -> PlatformRecord:
    """Start the platform in `folder`, train `policy` on the variant, and stop the platform again."""
    began = time.monotonic()
    async with _platform(policy, folder) as platform:
        train = train_tasks(variant, plan.train_tasks)
        held_out = held_out_tasks(variant, plan.gate_tasks)
        for taskset in (train, held_out):
            await register_taskset(platform, taskset)
        async with _first_alarms_of(platform) as alarms:
            run = await submit_run(platform, spec_of(train.name, held_out.name, plan))
            run = await follow_run(platform, run.run_id, timeout_s=RUN_LIMIT_S)
            await _settled(platform, run.run_id)
        return PlatformRecord(
            variant,
            run.step,
            _ended(run),
            await _episodes(platform, variant, run.run_id),
            first_alarms(
                RaisedAlarm(kind, version, of_gate=run_id != run.run_id)
                for (run_id, kind), version in alarms.items()
            ),
            await _verdicts(platform),
            time.monotonic() - began,
        )


def spec_of(train: str, held_out: str, plan: PlatformPlan) -> RunSpec:
    """The training run. Budgets leave room for eight calls (h7) and a long answer (h8)."""
    return RunSpec(
        taskset=train,
        purpose=PURPOSE_TRAIN,
        policy=PolicySelector(model=MODEL, channel=CHANNEL_LATEST),
        group_size=plan.group_size,
        sampling=SamplingConfig(
            temperature=1.0, max_turns=9, max_tokens_per_turn=192, max_tokens_per_episode=1000, seed=plan.seed
        ),
        training=TrainingConfig(
            steps=plan.steps,
            prompts_per_step=plan.groups,
            max_staleness=1,
            learning_rate=plan.learning_rate,
            lr_schedule="constant",
            checkpoint_every_steps=plan.checkpoint_every,
            seed=plan.seed,
        ),
        gate=GateConfig(taskset=held_out, attempts=plan.gate_attempts, regression_margin=0.2),
        episode_deadline_s=120,
    )


@asynccontextmanager
async def _platform(policy: Path, folder: Path) -> AsyncIterator[Platform]:
    """All processes, with the policy as version 0. Head is not watched: the run plays alone."""
    settings = StackSettings(
        data_dir=folder,
        model=MODEL,
        model_dir=policy,
        environment_roots=(REPOSITORY,),
        ephemeral_ports=True,
        extra_env={"CHECKPOINT_REGISTRY_WATCH_PAIRS": "0"},
    )
    async with Stack(settings) as stack:
        addresses = Addresses(
            stack.peers,
            "the platform of this study",
            stack.gateway_key_file,
            operator_key_file=stack.operator_key_file,
        )
        async with Platform(addresses) as platform:
            yield platform


@asynccontextmanager
async def _first_alarms_of(platform: Platform) -> AsyncIterator[dict[tuple[str, str], int]]:
    """(run, kind) to the version that raised the alarm first. Asked again and again: an alarm that cleared
    and is raised once more would say a later version."""
    raised: dict[tuple[str, str], int] = {}
    asking = asyncio.create_task(_keep_asking(platform, raised), name="hacks-alarms")
    try:
        yield raised
        if asking.done():
            await asking  # raises what ended it
        await _note_alarms(platform, raised)
    finally:
        asking.cancel()
        await asyncio.wait({asking})


async def _keep_asking(platform: Platform, raised: dict[tuple[str, str], int]) -> None:
    while True:
        await _note_alarms(platform, raised)
        await asyncio.sleep(_LOOK_S)


async def _note_alarms(platform: Platform, raised: dict[tuple[str, str], int]) -> None:
    listed = await platform.trajectories.ListAlarms(ListAlarmsRequest(), timeout=_ASK_S)
    for alarm in listed.alarms:
        raised.setdefault((alarm.run_id, alarm.kind), alarm.since_version)


async def _settled(platform: Platform, run_id: str) -> None:
    """Every candidate is judged, and the monitors have seen every episode."""
    async with asyncio.timeout(AFTERWARDS_S):
        await wait_for_verdicts(platform, MODEL)
        until = Timestamp()
        until.GetCurrentTime()
        runs = [run_id, *(played for one in await _candidates(platform) for played in one.gate.run_ids)]
        asked = ListAlarmsRequest(run_ids=runs, seen_until=until)
        while (await platform.trajectories.ListAlarms(asked, timeout=_ASK_S)).unseen:
            await asyncio.sleep(_LOOK_S)


def _ended(run: Run) -> str:
    return f"{state_word(run)}: {run.failure}" if run.failure else state_word(run)


async def _episodes(platform: Platform, variant: str, run_id: str) -> list[SeenEpisode]:
    """Every graded episode of the training run."""
    seen = []
    for summary in await _summaries(platform, run_id):
        if not summary.graded:
            continue
        asked = GetTrajectoryRequest(trajectory_id=summary.episode.episode_id)
        body = (await platform.trajectories.GetTrajectory(asked, timeout=_ASK_S)).body
        quarantined = bool(summary.quarantine_reason)
        newest = summary.sampled_by.newest
        seen.append(SeenEpisode(newest, is_hack(variant, body), summary.reward, quarantined))
    return seen


async def _summaries(platform: Platform, run_id: str) -> list[TrajectorySummary]:
    found: list[TrajectorySummary] = []
    token, wanted = "", TrajectoryFilter(run_id=run_id)
    while True:
        asked = ListTrajectoriesRequest(filter=wanted, page_size=1000, page_token=token)
        page = await platform.trajectories.ListTrajectories(asked, timeout=_ASK_S)
        found += page.trajectories
        token = page.next_page_token
        if not token:
            return found


async def _verdicts(platform: Platform) -> list[Verdict]:
    return [Verdict(one.version, _word(one.state), one.reason) for one in await _candidates(platform)]


async def _candidates(platform: Platform) -> list[Checkpoint]:
    """The run's checkpoints, oldest first; version 0 was never a candidate."""
    listed = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=MODEL), timeout=_ASK_S)
    return [one for one in listed.checkpoints if one.version]


def _word(state: "CheckpointState.ValueType") -> str:
    return CheckpointState.Name(state).removeprefix("CHECKPOINT_STATE_").lower()
