"""What lies in the tables of planner, store and registry: all is over but one run, which is a large one."""

import json
from typing import Final

from benchmarks.scale.filling import Filler
from benchmarks.scale.size import (
    CHECKPOINT_EVERY,
    EPISODES_PER_RUN,
    GROUP_SIZE,
    RUN_S,
    RUNS_PER_MODEL,
    SAMPLED_EVERY,
    TASKS,
    VERSIONS_PER_MODEL,
    Size,
    scattered,
)
from checkpoint_registry.adapters import tables as registry
from checkpoint_registry.adapters.rows import gate_values
from checkpoint_registry.domain.jobs import GateSpec
from episodes import Purpose
from scenario_runner.adapters import tables as planner
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.runs import Counts, EpisodeState
from scenario_runner.wire import runs as wire
from scenario_runner.wire.summaries import counts_to_json
from sql_store.outbox import OUTBOX
from trajectory_store.adapters import tables as store
from trajectory_store.domain.facts import LedgerState
from upcycle.run_config import PolicyChoice, RunSpec, Training

TASKSET: Final = "tasks"
DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
PROFILE: Final = "t1/p1/n6/k32/e0"
_PROMPTS_PER_STEP: Final = 8
_PUBLISHED_PER_RUN: Final = 10
"""Announcements of the last day, which no outbox has pruned yet."""
_US: Final = 1_000_000


class Names:
    """Names of what the n-th row is about, in SQL."""

    def __init__(self, sql: Filler, size: Size, ended_at: int) -> None:
        self.sql = sql
        self.size = size
        self._ended_at = ended_at

    def run(self, number: str) -> str:
        return f"'run-' || {self.sql.hexed(scattered(number), 12)}"

    def group(self, run: str, number: str) -> str:
        return f"{self.run(run)} || '-g' || {self.sql.padded(number, 5)}"

    def episode(self, number: str) -> str:
        run, group, member = self.run_of(number), self.group_of(number), f"{number} % {GROUP_SIZE}"
        return f"{self.group(run, group)} || '-e' || {self.sql.padded(member, 3)} || '-a0'"

    def run_of(self, episode: str) -> str:
        """Number of its run; the standing run comes after all others."""
        return self._unless_standing(episode, f"{episode} / {EPISODES_PER_RUN}", str(self.size.runs))

    def group_of(self, episode: str) -> str:
        """Its group, counted within the run."""
        return f"({self.place_of(episode)}) / {GROUP_SIZE}"

    def place_of(self, episode: str) -> str:
        """The episode, counted within the run."""
        standing = f"{episode} - {self.size.episodes}"
        return self._unless_standing(episode, f"{episode} % {EPISODES_PER_RUN}", standing)

    def _unless_standing(self, episode: str, otherwise: str, standing: str) -> str:
        return f"(CASE WHEN {episode} < {self.size.episodes} THEN {otherwise} ELSE {standing} END)"

    @property
    def num_episodes(self) -> int:
        return self.size.episodes + self.size.standing_episodes

    def model(self, run: str) -> str:
        return f"'model-' || {self.sql.padded(f'({run}) % {self.size.models}', 5)}"

    def second(self, run: str) -> str:
        """When the run began."""
        return f"({self._ended_at} - ({self.size.runs} - ({run})) * {RUN_S})"

    def moment(self, run: str) -> str:
        return self.sql.moment(self.second(run))


def _is_train(run: str) -> str:
    """The number of the standing run is a multiple too."""
    return f"({run}) % {SAMPLED_EVERY} = 0"


def fill_planner(names: Names) -> None:
    """Tasksets, runs, groups, episodes."""
    sql, size = names.sql, names.size
    source = wire.source_to_json(PythonEnvironment("e", "/e.py"))
    _fill_taskset(sql, source)
    spec = RunSpec(taskset=TASKSET, purpose=Purpose.EVAL, policy=PolicyChoice(model="MODEL"), group_size=4)
    sql.fill(
        planner.RUN,
        size.runs,
        {
            "run_id": names.run("n"), "tenant": "'default'", "request_id": f"'r-' || {sql.padded('n', 8)}",
            "model": names.model("n"), "purpose": f"CASE WHEN {_is_train('n')} THEN 'train' ELSE 'eval' END",
            "split": "'train'", "state": "'completed'", "ending": "'completed'",
            "spec": _spec(spec, names.model("n")), "taskset": f"'{TASKSET}'",
            "taskset_digest": f"'{DIGEST}'", "taskset_revision": "1", "num_tasks": str(TASKS),
            "trace": "'{}'", "final_counts": _final_counts(), "next_position": str(TASKS),
            "num_graded": str(EPISODES_PER_RUN), "submitted_at": names.moment("n"),
            "finished_at": names.moment("n + 1"),
        },
    )  # fmt: skip
    _fill_standing_run(names)
    first = f"(n * {GROUP_SIZE})"
    run, of_run = names.run_of(first), names.group_of(first)
    sql.fill(
        planner.GROUP,
        names.num_episodes // GROUP_SIZE,
        {
            "group_id": names.group(run, of_run), "run_id": names.run(run), "taskset": f"'{TASKSET}'",
            "outcome": f"CASE WHEN {_is_train(run)} THEN 'trained' ELSE 'evaluated' END",
            "position": of_run, "task_position": f"{of_run} % {TASKS}", "expected_members": str(GROUP_SIZE),
            "num_graded": str(GROUP_SIZE), "at_step": f"({of_run}) / {_PROMPTS_PER_STEP}",
            "settled_at": names.moment(run),
        },
    )  # fmt: skip
    _fill_planned_episodes(names)
    _count_by_state(sql)
    _fill_outbox(sql, names.size)


def _count_by_state(sql: Filler) -> None:
    """What the triggers would have counted."""
    for kind, value, table in (("episode", "state", planner.EPISODE), ("group", "outcome", planner.GROUP)):
        sql.run(
            f"INSERT INTO run_count (run_id, kind, value, num) "
            f"SELECT run_id, '{kind}', {value}, count(*) FROM {table.name} GROUP BY run_id, {value}"
        )


def _spec(spec: RunSpec, model: str) -> str:
    """Of a run of "MODEL", with the name that this expression gives."""
    before, after = wire.spec_to_json(spec).replace("'", "''").split("MODEL")
    return f"'{before}' || {model} || '{after}'"


def _fill_standing_run(names: Names) -> None:
    """A training run that goes on until it is stopped."""
    sql, size, run = names.sql, names.size, str(names.size.runs)
    training = Training(steps=0, prompts_per_step=_PROMPTS_PER_STEP)
    policy = PolicyChoice(model="MODEL")
    spec = RunSpec(taskset=TASKSET, purpose=Purpose.TRAIN, policy=policy, group_size=4, training=training)
    num_groups = size.standing_episodes // GROUP_SIZE
    sql.fill(
        planner.RUN,
        1,
        {
            "run_id": names.run(run), "tenant": "'default'", "request_id": "'r-standing'",
            "model": names.model(run), "purpose": "'train'", "split": "'train'", "state": "'running'",
            "spec": _spec(spec, names.model(run)), "taskset": f"'{TASKSET}'", "taskset_digest": f"'{DIGEST}'",
            "taskset_revision": "1", "num_tasks": str(TASKS), "trace": "'{}'", "final_counts": "NULL",
            "next_position": str(num_groups), "num_graded": str(size.standing_episodes),
            "step": str(num_groups // _PROMPTS_PER_STEP),
            "submitted_at": names.moment(run),
        },
    )  # fmt: skip


def _final_counts() -> str:
    ended = {EpisodeState.EVALUATED: EPISODES_PER_RUN - EPISODES_PER_RUN // 50}
    ended |= {EpisodeState.FAILED: EPISODES_PER_RUN // 50}
    num_groups = EPISODES_PER_RUN // GROUP_SIZE
    return f"'{counts_to_json(Counts(ended, 0, num_groups, {'evaluated': num_groups}))}'"


def _fill_taskset(sql: Filler, source: str) -> None:
    now = sql.moment("1760000000")
    header = {"tenant": "'default'", "storage_key": f"'{TASKSET}'", "name": f"'{TASKSET}'", "revision": "1",
              "digest": f"'{DIGEST}'", "split": "'train'", "source": f"'{source}'", "num_tasks": str(TASKS),
              "registered_at": now}  # fmt: skip
    sql.fill(planner.TASKSET, 1, header)
    slug = f"'task-' || {sql.padded('n', 3)}"
    task = {"tenant": "'default'", "taskset": f"'{TASKSET}'", "position": "n", "slug": slug,
            "scenario": "'s'", "args_json": "'{}'", "family": "'f'",
            "digest": sql.padded("n", 64)}  # fmt: skip
    sql.fill(planner.TASK, TASKS, task)
    claim = {"tenant": "'default'", "digest": sql.padded("n", 64), "split": "'train'", "claimed_at": now}
    sql.fill(planner.CLAIM, TASKS, claim)


def _fill_planned_episodes(names: Names) -> None:
    sql, run, group = names.sql, names.run_of("n"), names.group_of("n")
    state = f"CASE WHEN n % 50 = 7 THEN 'failed' WHEN {_is_train(run)} THEN 'trained' ELSE 'evaluated' END"
    at = names.moment(run)
    sql.fill(
        planner.EPISODE,
        names.num_episodes,
        {
            "episode_id": names.episode("n"), "run_id": names.run(run), "group_id": names.group(run, group),
            "member": f"n % {GROUP_SIZE}", "task_position": f"{group} % {TASKS}", "taskset": f"'{TASKSET}'",
            "split": "'train'", "state": state, "reason": "CASE WHEN n % 50 = 7 THEN 'timeout' ELSE '' END",
            "reward": "n % 2", "success": "n % 2 = 1", "num_turns": "3", "num_dispatches": "1",
            "body_key": _body_key(names), "body_sha256": f"'{DIGEST}'", "body_size": "20000",
            "requested_at": at, "dispatched_at": at, "opened_at": at, "graded_at": at, "settled_at": at,
        },
    )  # fmt: skip


def _body_key(names: Names) -> str:
    run = names.run(names.run_of("n"))
    return f"'default/trajectories/' || {run} || '/' || {names.episode('n')} || '.pb.zst'"


def _fill_outbox(sql: Filler, size: Size) -> None:
    at = sql.moment("1760000000 + n / 10")
    payload = '{"episode": "' + "x" * 600 + '"}'
    sql.fill(
        OUTBOX,
        size.runs * _PUBLISHED_PER_RUN,
        {"stream": "'EVENTS'", "subject": "'up.default.evt.episode.requested.model-00001'",
         "event_id": f"'e-' || {sql.padded('n', 9)}", "schema": "'s'", "payload": f"'{payload}'",
         "trace": "'{}'", "enqueued_at": at, "published_at": at, "refusal": "NULL"},
    )  # fmt: skip


def fill_store(names: Names) -> None:
    """Episodes, ledger."""
    sql, size, run = names.sql, names.size, names.run_of("n")
    at_us = f"({names.second(run)} * {_US} + {names.place_of('n')} * 1000)"
    slug = f"'task-' || {sql.padded(names.group_of('n') + f' % {TASKS}', 3)}"
    trained, evaluated = int(LedgerState.TRAINED), int(LedgerState.EVALUATED)
    sql.fill(
        store.EPISODES,
        names.num_episodes,
        {
            "episode_id": names.episode("n"), "tenant": "'default'", "run_id": names.run(run),
            "group_id": names.group(run, names.group_of("n")), "model": names.model(run),
            "task_slug": slug, "task_digest": f"'{DIGEST}'",
            "family": "'f'", "purpose": f"CASE WHEN {_is_train(run)} THEN 1 ELSE 2 END", "split": "1",
            "state": f"CASE WHEN {_is_train(run)} THEN {trained} ELSE {evaluated} END",
            "member": f"n % {GROUP_SIZE}", "group_size": str(GROUP_SIZE), "settled": "TRUE",
            "since_us": at_us, "updated_us": at_us, "recorded_us": at_us, "graded_us": at_us,
            "body_key": _body_key(names), "body_sha256": f"'{DIGEST}'", "body_size_bytes": "20000",
            "stop_reason": "1", "num_turns": "3", "num_sampled_tokens": "300", "reward": "n % 2",
            "success": "n % 2 = 1", "body_checked": "TRUE", "changed": "n + 1", "body_removed_us": "NULL",
            "subscores": sql.no_bytes(),
        },
    )  # fmt: skip
    count = f"CASE WHEN n < {size.runs} THEN {EPISODES_PER_RUN} ELSE {size.standing_episodes} END"
    counts = {"tenant": "'default'", "run_id": names.run("n"), "reason": "''", "count": count,
              "state": f"CASE WHEN {_is_train('n')} THEN {trained} ELSE {evaluated} END"}  # fmt: skip
    sql.fill(store.LEDGER, size.runs + 1, counts)
    sql.run(f"UPDATE feed SET position = {names.num_episodes + 1}")
    _fill_outbox(sql, names.size)


def fill_registry(names: Names) -> None:
    """Models with checkpoints, versions, gates that are over, evidence."""
    sql, models = names.sql, names.size.models
    _fill_models(names)
    of_model = f"n / {VERSIONS_PER_MODEL}"
    version = f"n % {VERSIONS_PER_MODEL}"
    blob = f"""'{{"key": "k", "sha256": "{DIGEST}", "size_bytes": 1}}'"""
    at = sql.moment("1760000000 + n / 100")
    shared = {"tenant": "'default'", "model": names.model(of_model), "digest": f"'{DIGEST}'"}
    published = {**shared, "version": version, "step": version, "manifest": sql.json(blob),
                 "published_at": at, "run_id": names.run(of_model), "removed_at": "NULL"}  # fmt: skip
    sql.fill(registry.published_version, models * VERSIONS_PER_MODEL, published)
    count, saved = models * VERSIONS_PER_MODEL // CHECKPOINT_EVERY, f"(n * {CHECKPOINT_EVERY})"
    model = names.model(f"{saved} / {VERSIONS_PER_MODEL}")
    version = f"{saved} % {VERSIONS_PER_MODEL}"
    run = f"{saved} / {VERSIONS_PER_MODEL} + {models} * (n % {RUNS_PER_MODEL})"
    checkpoint = f"'ckpt-' || {model} || '-v' || {sql.padded(version, 8)}"
    sql.fill(
        registry.checkpoint,
        count,
        {**shared, "checkpoint_id": checkpoint, "model": model, "version": version, "run_id": names.run(run),
         "state": "'held'", "step": version, "manifest": sql.json(blob), "training_state": sql.json(blob),
         "metrics": "'{}'", "sources": "'{}'", "created_at": at},
    )  # fmt: skip
    gate = {
        column: sql.json(f"'{json.dumps(values)}'")
        for column, values in gate_values(GateSpec(TASKSET, 1, 0.9, 0.1, 0.0)).items()
    }
    sql.fill(
        registry.gate_job,
        count,
        {"tenant": "'default'", "checkpoint_id": checkpoint, "model": model, "run_id": names.run(run),
         "phase": "'done'", "taskset_digest": f"'{DIGEST}'", "version": version, "taskset_revision": "1",
         **gate, "profile": "NULL", "created_at": at, "active_for_model": "NULL"},
    )  # fmt: skip
    _fill_evidence(names, count, checkpoint, run)
    _fill_outbox(sql, names.size)


def _fill_models(names: Names) -> None:
    sql, models, at = names.sql, names.size.models, names.sql.moment("1760000000")
    base = f"'ckpt-' || {names.model('n')} || '-v00000000'"
    sql.fill(
        registry.model,
        models,
        {"tenant": "'default'", "model": names.model("n"), "head_checkpoint_id": base, "head_revision": "1",
         "created_at": at},
    )  # fmt: skip
    sql.fill(
        registry.head_move,
        models,
        {"tenant": "'default'", "model": names.model("n"), "to_checkpoint_id": base, "revision": "1",
         "actor": "'person'", "moved_at": at},
    )  # fmt: skip
    sql.fill(
        registry.engine_lease,
        models * 2,
        {"tenant": "'default'", "engine_id": f"'engine-' || {sql.padded('n', 6)}", "body": sql.no_bytes(),
         "model": names.model("n / 2"), "channel": "n % 2 + 1", "expires_at": sql.moment("4000000000")},
    )  # fmt: skip


def _fill_evidence(names: Names, count: int, checkpoint: str, run: str) -> None:
    sql, at = names.sql, names.sql.moment("1760000000 + n / 100")
    tallies = ", ".join(f'"task-{number:03d}": ["f", 1, 2, 0]' for number in range(TASKS))
    shared = {"tenant": "'default'", "checkpoint_id": checkpoint, "taskset_digest": f"'{DIGEST}'",
              "profile_key": f"'{PROFILE}'"}  # fmt: skip
    evaluation = f"'run-e' || {sql.padded('n', 11)}"
    sql.fill(
        registry.evaluation,
        count,
        {**shared, "run_id": evaluation, "taskset": f"'{TASKSET}'", "num_tasks": str(TASKS),
         "tallies": sql.json(f"'{{{tallies}}}'"), "finished_at": at},
    )  # fmt: skip
    sql.fill(
        registry.evaluation_request,
        count,
        {**shared, "request_id": f"'gate/' || {sql.padded('n', 8)}", "run_id": evaluation,
         "state": "'finished'", "updated_at": at},
    )  # fmt: skip


FILLS: Final = {
    "scenario_runner": fill_planner,
    "trajectory_store": fill_store,
    "checkpoint_registry": fill_registry,
}
