"""`upcycle train --sft`: supervised fine-tuning (SFT) on a file of conversations, or on a run's successes."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import human
from upcycle.cli.sft_steps import SftPlan, loss_of, run_plan, shown
from upcycle.cli.waiting_view import SayingWaits
from upcycle.errors import UpcycleError
from upcycle.local_runs import is_local_run
from upcycle.platform import Platform
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
    from upcycle.train import Conversation

SFT_RATE: Final = 1e-5
_PAGE: Final = 1000
_CLAIM_S: Final = 30.0
_LIKE_TASK: Final = re.compile("tasks?_?(digest)?", re.IGNORECASE)
"""Fields that a line would have for its task, and that no one would read."""
_GUIDED: Final = "had guidance in the prompt, which the policy will not have"


class SftRefused(UpcycleError, ValueError):
    """The options of SFT contradict each other, or the data holds nothing to train on."""

    kind = "sft_refused"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SftOptions:
    """SFT instead of GRPO: which conversations to train on."""

    sft: Path | None = None
    """train on the assistant turns of this JSONL file: `messages`, `tools`; or `prompt`, `completion`; or a
    trajectories file, of which what succeeded trains. A line may name its `task`: one that is held out is
    refused before the first step. Lines with `guided_after` are left out."""
    sft_from: str | None = None
    """train on the successful trajectories of this run (or `last`); those of held-out tasks never train, and
    guided ones are left out."""
    batch: int = 16
    """conversations per optimizer step."""
    observation_weight: float = 0.0
    """how much the tokens that the policy reads (prompts, tool results) train beside those that it writes,
    which have weight 1; of --sft only. A tiny model learns to copy from what it reads sooner with 0.3."""

    @property
    def is_asked(self) -> bool:
        """--sft or --sft-from was given."""
        return self.sft is not None or self.sft_from is not None


NO_SFT: Final = SftOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SftCall:
    """The options that SFT shares with GRPO. steps: the most optimizer steps; None: all of the epochs.
    epochs: passes over the conversations."""

    steps: int | None = None
    epochs: int = 1
    seed: int = 0
    learning_rate: float = SFT_RATE
    timeout_s: float = 86_400.0
    as_json: bool = False


async def train_sft(model: str, options: SftOptions, call: SftCall) -> int:
    """Train `model` on what the options name; only the last step moves head. Raises SftRefused."""
    from upcycle.train import TrainingClient

    _check(options)
    of_file = None if options.sft is None else _weighted(conversations_in(options.sft), options)
    async with Platform() as platform:
        source, inputs, tasks = (
            (str(options.sft), of_file, tasks_of(of_file))
            if of_file is not None
            else await _successes_of(platform, options)
        )
        plan = planned(inputs, source, options.batch, call)
        await claim(platform, tasks, f"SFT of {model}")
        client = TrainingClient(model, runtime=platform, timeout_s=call.timeout_s, on_wait=SayingWaits())
        with shown(plan, model, as_json=call.as_json) as show:
            last = await run_plan(client, plan, call.learning_rate, show)
    if (num_unnamed := len(inputs) - len(tasks)) and not call.as_json:
        text = f"{num_unnamed} of {len(inputs)} conversations name no task: not compared with held-out tasks"
        human().print(text, markup=False)
    if not call.as_json:
        moved = "head serves it" if last.is_head else "head did not move: the model's gate judges it first"
        print(f"{model}: v{last.version}, {last.checkpoint_id}, loss {loss_of(last):.4f}; {moved}")
    return Exit.OK


def _check(options: SftOptions) -> None:
    if options.sft is not None and options.sft_from is not None:
        raise SftRefused("--sft and --sft-from name two sources", "give one of them")
    if is_local_run(options.sft_from or ""):
        where = f".upcycle/evaluations/{options.sft_from:.80}/trajectories.jsonl"
        raise SftRefused("--sft-from names an evaluation in one process", f"give its file: --sft {where}")
    if not 0.0 <= options.observation_weight <= 1.0:
        raise SftRefused(f"--observation-weight is {options.observation_weight:g}", "use 0 to 1")
    if options.observation_weight and options.sft is None:
        raise SftRefused("--observation-weight goes with --sft FILE", "leave it out")


def _weighted(conversations: "Iterable[Conversation]", options: SftOptions) -> "list[Conversation]":
    return [replace(one, observation_weight=options.observation_weight) for one in conversations]


def planned(inputs: "Sequence[str | Conversation]", source: str, batch: int, call: SftCall) -> SftPlan:
    """Shuffle each epoch on its own and cut it into batches; keep the first `steps`. Raises SftRefused."""
    if call.epochs < 1 or batch < 1 or (call.steps is not None and call.steps < 1):
        raise SftRefused(f"--epochs {call.epochs}, --batch {batch}, --steps {call.steps}: each must be >= 1")
    if not inputs:
        raise SftRefused(f"{source} holds no conversation to train on")
    batches: list[tuple[str | Conversation, ...]] = []
    for epoch in range(call.epochs):
        order = list(inputs)
        random.Random(f"{call.seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
        batches += [tuple(order[at : at + batch]) for at in range(0, len(order), batch)]
    return SftPlan(source, tuple(batches[: call.steps]))


def tasks_of(conversations: "Iterable[Conversation]") -> dict[str, str]:
    """By the name of a conversation, the digest of its task; of those that name one."""
    return {one.name: str(one.task) for one in conversations if one.task}


async def claim(platform: Platform, tasks: Mapping[str, str], claimed_by: str) -> None:
    """Make the tasks of all batches training data before the first step. Raises SftRefused, naming what is
    of a held-out task: then none of up to 10,000 tasks is claimed, and nothing was trained."""
    from upcycle.api.taskset.v1.service_pb2 import ClaimTasksRequest
    from upcycle.rpc import RemoteRefused, remote_errors
    from upcycle.task_rows import MAX_CLAIMED

    digests = sorted(set(tasks.values()))
    for at in range(0, len(digests), MAX_CLAIMED):
        request = ClaimTasksRequest(task_digests=digests[at : at + MAX_CLAIMED], claimed_by=claimed_by)
        try:
            with remote_errors("the check of held-out tasks"):
                await platform.tasksets.ClaimTasks(request, timeout=_CLAIM_S)
        except RemoteRefused as error:
            of_task = [name for name, digest in tasks.items() if digest[:12] in str(error)]
            raise SftRefused(f"{', '.join(of_task[:5]) or 'an input'}: {error}") from error


async def _successes_of(platform: Platform, options: SftOptions) -> tuple[str, list[str], dict[str, str]]:
    """The id of the run that is named, those of its trajectories that can train, and their tasks."""
    from upcycle.cli.runs import resolve_run

    run_id = await resolve_run(platform, options.sft_from or "last")
    found = successes([one async for one in _summaries(platform, run_id)], run_id)
    names = [one.episode.trajectory_id for one in found]
    digests = [one.episode.task_digest for one in found]
    return run_id, names, {name: digest for name, digest in zip(names, digests, strict=True) if digest}


async def _summaries(platform: Platform, run_id: str) -> "Any":
    from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter

    request = ListTrajectoriesRequest(filter=TrajectoryFilter(run_id=run_id), page_size=_PAGE)
    while True:
        page = await platform.trajectories.ListTrajectories(request, timeout=30)
        for one in page.trajectories:
            yield one
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def successes(summaries: "Iterable[TrajectorySummary]", run_id: str) -> "list[TrajectorySummary]":
    """The trajectories that may train: they succeeded, without guidance. Sorted by id. Raises SftRefused if
    there is none."""
    from upcycle.api.common.v1.common_pb2 import SPLIT_AUDIT, SPLIT_HELD_OUT

    listed = list(summaries)
    graded = [one for one in listed if one.graded and one.success and not one.quarantine_reason]
    unguided = [one for one in graded if not one.episode.guided_after]
    allowed = [one for one in unguided if one.episode.split not in (SPLIT_HELD_OUT, SPLIT_AUDIT)]
    num_guided, num_held_out = len(graded) - len(unguided), len(unguided) - len(allowed)
    if not allowed:
        raise SftRefused(
            f"none of the {amount(len(listed), 'trajectory', 'trajectories')} of {run_id} can train: "
            f"{len(graded)} succeeded, {num_held_out} of these are of held-out or audit tasks, which never "
            f"train, and {num_guided} {_GUIDED}",
            "name a run over a taskset of split train, or over tasks that no taskset holds",
        )
    if num_guided:
        human().print(f"{amount(num_guided, 'success', 'successes')} of {run_id} {_GUIDED}: left out")
    return sorted(allowed, key=lambda one: one.episode.trajectory_id)


def conversations_in(path: Path) -> "Iterator[Conversation]":
    """The conversations of a JSONL file, without guided ones; of a trajectories file those that succeeded. A
    last line that its writer did not finish is left out. What is left out is said. Raises SftRefused, naming
    the line."""
    left_out: Counter[str] = Counter()
    num_kept = 0
    lines, cut = _lines_of(path)
    for number, line in lines:
        conversation = _conversation(f"{path.name}:{number}", line)
        if isinstance(conversation, str):
            left_out[conversation] += 1
        else:
            num_kept += 1
            yield conversation
    if cut and not (left_out or num_kept):
        raise SftRefused(f"{path} holds no conversation to train on: {cut}")
    if left_out and not num_kept:
        why = ", ".join(f"{number} {reason}" for reason, number in left_out.items())
        many = amount(left_out.total(), "trajectory", "trajectories")
        raise SftRefused(f"{path}: none of its {many} can train: {why}; nothing is to be learned")
    for reason, number in left_out.items():
        many = amount(number, "trajectory", "trajectories")
        human().print(f"{many} of {path} {reason}: left out", markup=False)
    if cut:
        human().print(f"{cut}: it is left out", markup=False, soft_wrap=True)


def _lines_of(path: Path) -> tuple[list[tuple[int, str]], str]:
    """(number and text of each line that holds something, which one is cut off, or ""). Raises SftRefused."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise SftRefused(f"{path}: no such file", "give a JSONL file of conversations") from None
    except OSError as error:
        raise SftRefused(f"{path} cannot be read: {error}") from error
    found = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    cut = ""
    if _is_cut(lines[-1]):
        cut = f"line {len(lines)}, the last one of {path.name}, is cut off"
        found.pop()
    return [(number, _text(line, f"{path.name}:{number}")) for number, line in found], cut


def _is_cut(last: bytes) -> bool:
    """Whether what stands after the last line end is no JSON: a whole line has its end."""
    if not last.strip():
        return False
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return True
    return False


def _text(line: bytes, name: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise SftRefused(f"{name} is not UTF-8: {error}", "save the file as UTF-8") from error


def _conversation(name: str, line: str) -> "Conversation | str":
    """In the place of one that is left out: why."""
    from upcycle.train import Conversation
    from upcycle.trajectory_lines.reading import is_trajectory

    try:
        record = json.loads(line, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise SftRefused(f"{name} is not JSON: {error}") from error
    if isinstance(record, dict) and record.get("guided_after"):
        return _GUIDED
    if is_trajectory(record):
        return _demonstrated(name, record)
    messages = _messages(record)
    if messages is None:
        raise SftRefused(
            f"{name} has neither `messages` nor `prompt` and `completion` as lists of messages",
            'write {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", …}]}',
        )
    if not any(message.get("role") == "assistant" for message in messages):
        raise SftRefused(f"{name} has no assistant message: there is nothing to train on")
    if meant := next((key for key in record if key != "task" and _LIKE_TASK.fullmatch(key)), None):
        raise SftRefused(f"{name} has a field {meant!r:.80}", "the field that names its task is `task`")
    task = _task(name, record.get("task"))
    return Conversation(messages=messages, tools=record.get("tools") or (), name=name, task=task)


def _demonstrated(name: str, record: Mapping[str, Any]) -> "Conversation | str":
    from upcycle.train import Conversation
    from upcycle.trajectory_lines.reading import NoTrajectories, checked_row, demonstration_of

    try:
        found = demonstration_of(checked_row(record, name), name)
    except NoTrajectories as error:
        raise SftRefused(str(error)) from error
    if not found.succeeded:
        return "did not succeed"
    task = _task(name, found.task)
    return Conversation(messages=found.messages, tools=found.tools, name=name, task=task)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in names if names.count(key) > 1)!r:.80} is there twice")
    return found


def _task(name: str, given: Any) -> str:
    """The digest of the task that a line names; empty where it names none. Raises SftRefused."""
    from upcycle.errors import TasksetInvalid
    from upcycle.task_rows import EnvironmentRef, Task, canonical_json, check_name

    match given:
        case None | "":
            return ""
        case str() if re.fullmatch("[0-9a-f]{64}", given):
            return given
        case {"environment": str(environment), "scenario": str(scenario), **rest} if rest.keys() <= {"args"}:
            try:  # as a taskset takes it: what no taskset can hold would be compared with nothing
                ref = EnvironmentRef(check_name("environment", environment))
                return Task(ref, scenario, canonical_json(rest.get("args", {}))).digest
            except TasksetInvalid as error:
                raise SftRefused(f"{name}: `task` is none: {error}") from error
    raise SftRefused(
        f"{name}: `task` is {str(given)[:80]!r}",
        "give the digest that `upcycle trajectories export` writes, or environment, scenario and args",
    )


def _messages(record: Any) -> list[Mapping[str, Any]] | None:
    """The messages of a record; None where it has none."""
    if not isinstance(record, dict):
        return None
    names = ("messages",) if "messages" in record else ("prompt", "completion")
    messages: list[Mapping[str, Any]] = []
    for part in (record.get(name) for name in names):
        if not isinstance(part, list) or not all(isinstance(message, dict) for message in part):
            return None
        messages += part
    return messages
