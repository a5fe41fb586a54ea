"""`upcycle up --standing run.toml`: the platform comes up with a training run going, again after a restart.

The request id of SubmitRun is made of the file's content and an ordinal: a run that still goes is found
again, one that is over is followed by the next ordinal. Comments and the order of keys are no content.
The id is also the run's label, by which earlier runs of the file are found without asking for each.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from upcycle.errors import UpcycleError
from upcycle.run_config import Purpose
from upcycle.run_config.reading import RunFile, gather, of_sessions_alone
from upcycle.run_config.wire import spec_to_wire
from upcycle.tasks import plain_name
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec
    from upcycle.platform import Platform

QUICK_FAILURES: Final = 3
"""Runs in a row that failed within QUICK_S of their start, after which none is begun again."""
QUICK_S: Final = 60.0
MAX_ORDINAL: Final = 10_000
"""Runs that one content of the file may have."""
_LOOK_BACK: Final = 50
"""Newest runs of the model among which earlier ones of the file are looked for. Where none is left among
them, each ordinal is asked for, once: the run that is found or begun is the newest again."""
_SUBMIT_TRIES_S: Final = 60.0


class StandingInvalid(UpcycleError, ValueError):
    """The file of a standing run cannot be used; nothing was started."""

    kind = "standing_invalid"


class FailsAtOnce(UpcycleError):
    """The standing run failed right after its start several times in a row."""

    kind = "standing_fails_at_once"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a file asks for."""

    path: Path
    run: RunFile
    digest: str

    @property
    def model(self) -> str:
        """Slug of the model that it trains."""
        return self.run.policy.model

    def request_id(self, ordinal: int) -> str:
        """Of the ordinal's SubmitRun, 1 first."""
        return f"standing-{self.digest[:24]}-{ordinal}"


def read(path: Path) -> Standing:
    """The standing run of a file, which `upcycle train --config` reads too; without a length it goes on
    until it is stopped. Raises RunConfigInvalid and StandingInvalid, naming the file and the line."""
    given = gather({}, (), path, names={})
    has_length = given.value("training.steps") is not None or given.value("training.epochs") is not None
    length = {} if has_length else {"training.steps": 0}
    run = given.run(Purpose.TRAIN, {**length, **of_sessions_alone(given)})
    if "last" in run.source_runs:
        raise StandingInvalid(
            f"{given.say('source_runs')}: `last` is another run after each restart", "name the run by its id"
        )
    table = {name: value.value for name, value in given.values.items()}
    return Standing(path, run, hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest())


async def start_or_find(platform: "Platform", standing: Standing) -> "Run":
    """The standing run, going on or begun anew. Raises FailsAtOnce, and what the platform refuses."""
    from upcycle.cli.mixes import registered_mix
    from upcycle.run_client import is_over

    asked = standing.run
    taskset = await _registered(platform, asked) if asked.taskset else ""
    mix = await registered_mix(platform, asked.mix, exact=False)
    known = await _earlier(platform, standing)
    sources, quick = asked.source_runs, 0
    for ordinal in range(min(known, default=1), MAX_ORDINAL + 1):
        label = standing.request_id(ordinal)
        changed = replace(asked.run, taskset=taskset, source_runs=sources, label=label, mix=mix)
        spec = spec_to_wire(changed)
        run = known.get(ordinal) or await _submitted(platform, spec, label)
        if run is None:
            continue
        if not is_over(run):
            return run
        if not run.spec.source_runs or any(source.trained for source in run.sources):
            sources = ()  # what they could teach is in the weights: they are the first batches once
        quick = quick + 1 if _failed_at_once(run) else 0
        if quick >= QUICK_FAILURES:
            raise _fails_at_once(standing, run)
    raise FailsAtOnce(
        f"{standing.path} was begun {MAX_ORDINAL} times", "change the file: another seed is a change"
    )


async def _registered(platform: "Platform", asked: RunFile) -> str:
    """Its taskset; not exactly these tasks: the same request again must be the same run after a change."""
    from upcycle.cli.tasksets import load_source

    source = load_source(asked.taskset, asked.taskset_name, trains=True)
    return await source.register(platform, exact=False)


async def _earlier(platform: "Platform", standing: Standing) -> "dict[int, Run]":
    """Runs of this file among the newest of its model, by ordinal: a run's label is its request id."""
    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
    from upcycle.rpc import remote_errors

    request = ListRunsRequest(model=standing.model, limit=_LOOK_BACK, asked_for=True)
    with remote_errors("standing run"):
        listed = (await platform.tasksets.ListRuns(request, timeout=10)).runs
    prefix = standing.request_id(0)[:-1]
    labels = ((run.spec.label.removeprefix(prefix), run) for run in listed if prefix in run.spec.label)
    return {int(ordinal): run for ordinal, run in labels if ordinal.isdecimal()}


async def _submitted(platform: "Platform", spec: "RunSpec", request_id: str) -> "Run | None":
    """The run of a request id, begun now or earlier; None where an earlier version asked otherwise for it.

    Sent again while the planner is unavailable. Raises RemoteError for what it refuses.
    """
    from upcycle.retrying import retry
    from upcycle.rpc import RemoteConflict
    from upcycle.run_client import submit_run

    try:
        return await retry(
            lambda: submit_run(platform, spec, request_id=request_id), budget_s=_SUBMIT_TRIES_S
        )
    except RemoteConflict:
        return None


def _failed_at_once(run: "Run") -> bool:
    from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_FAILED

    took = run.finished_at.ToMicroseconds() - run.submitted_at.ToMicroseconds()
    return run.state == RUN_STATE_FAILED and took < QUICK_S * 1e6


def _fails_at_once(standing: Standing, run: "Run") -> FailsAtOnce:
    return FailsAtOnce(
        f"the standing run of {standing.path} failed {QUICK_FAILURES} times in a row within {QUICK_S:g} s of "
        f"its start, last as {run.run_id}: {run.failure}; it is not begun again",
        "remove the cause and change the file (another seed is a change), or use `upcycle train`",
    )


async def keep(platform: "Platform", standing: Standing) -> list[str]:
    """Start the standing run, or find the one that is going; the lines that a person should see. What is
    refused is one of them: the platform stays up."""
    from upcycle.rpc import RemoteError, remote_errors

    try:
        with remote_errors("standing run"):
            return [standing_line(await start_or_find(platform, standing))]
    except FailsAtOnce as error:
        return [str(error)]
    except RemoteError as error:
        refusal = error.message
    except UpcycleError as error:
        refusal = str(error)
    other = await _other_training(platform, standing)
    if other is None:
        return [f"no standing run: {refusal}"]
    return [
        f"no standing run: {standing.model} is being trained by {other.run_id} on {_what_trains(other)}",
        f"  end that one and start again: upcycle runs stop {other.run_id} --wait",
        f"  or train a copy of the model: upcycle models fork {standing.model} NEW, and name NEW in "
        f"{standing.path}",
    ]


async def _other_training(platform: "Platform", standing: Standing) -> "Run | None":
    """The training run of the model that is going; None where there is none or the planner is unavailable."""
    import grpc

    from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN
    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest

    request = ListRunsRequest(model=standing.model, unfinished=True)
    try:
        listed = await platform.tasksets.ListRuns(request, timeout=10)
    except grpc.aio.AioRpcError:
        return None
    return next((run for run in listed.runs if run.spec.purpose == PURPOSE_TRAIN), None)


def standing_line(run: "Run") -> str:
    """One line: which run, what it does, where it is."""
    from upcycle.run_client import state_word

    model, limit = run.spec.policy.model, run.spec.training.steps
    until = f"for {amount(limit, 'step')}" if limit else "until it is stopped"
    on = _what_trains(run)
    where = f"goes on at step {run.step}" if run.step else "is at its beginning"
    way = f"go on with it: upcycle runs resume {run.run_id}"
    if state_word(run) != "paused":
        way = f"follow it: upcycle train --attach {run.run_id}"
    else:
        where += " and is paused"
    return f"standing run {run.run_id} trains {model} on {on} {until}; it {where}. To {way}"


def _what_trains(run: "Run") -> str:
    taskset = plain_name(run.spec.taskset)
    if not taskset:
        return f"recorded sessions ({run.spec.sessions})"
    return f"what evaluations of {taskset} bring" if run.spec.no_sampling else taskset
