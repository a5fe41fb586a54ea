"""`upcycle models …`."""

import getpass
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, fields_of, human, print_json, result_console
from upcycle.errors import UnknownName
from upcycle.platform import Platform
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import Checkpoint, Model
    from upcycle.api.registry.v1.service_pb2 import GetHeadWatchResponse

IMPORT_TIMEOUT_S = 600.0

_VERSIONS_SHOWN: Final = 8


async def list_models(*, as_json: JsonFlag = False) -> int:
    """Models, their heads and newest checkpoints."""
    from upcycle.api.registry.v1.service_pb2 import ListModelsRequest

    async with Platform() as platform:
        models = (await platform.registry.ListModels(ListModelsRequest(), timeout=10)).models
    if as_json:
        for model in models:
            print_json("model", model)
        return Exit.OK
    rows = (
        (m.model, f"v{m.head_version}", f"v{m.newest_version}", m.forked_from_checkpoint_id) for m in models
    )
    print_table(("model", "head", "newest", "forked from"), rows)
    return Exit.OK


async def import_model(
    directory: Path, *, name: str, if_not_exists: bool = False, as_json: JsonFlag = False
) -> int:
    """Register a Hugging Face directory as version 0 of a new model.

    :param directory: holds config.json, *.safetensors and the tokenizer's files.
    :param name: slug of the new model.
    :param if_not_exists: the same weights under that name are fine.
    :param as_json: one JSON line.
    """
    from upcycle.uploading import import_parts

    parts = import_parts(name, directory, if_not_exists=if_not_exists)
    async with Platform() as platform:
        answer = await platform.registry.ImportModel(parts, timeout=IMPORT_TIMEOUT_S)
    if as_json:
        print_json("model", answer.model)
    else:
        print(f"{answer.model.model} v0 {answer.base.digest[:12]}")
    return Exit.OK


async def fork(source: str, *, name: str, checkpoint: str = "", as_json: JsonFlag = False) -> int:
    """A new model that starts from SOURCE's head, or from one of its checkpoints.

    :param source: slug of the model to fork.
    :param name: slug of the fork.
    :param checkpoint: id of the checkpoint to start from; default the head.
    :param as_json: one JSON line.
    """
    from upcycle.api.registry.v1.service_pb2 import ForkModelRequest

    request = ForkModelRequest(source_model=source, source_checkpoint_id=checkpoint, model=name)
    async with Platform() as platform:
        answer = await platform.registry.ForkModel(request, timeout=60)
    if as_json:
        print_json("model", answer.model)
    else:
        print(f"{answer.model.model} from {answer.model.forked_from_checkpoint_id} {answer.base.digest[:12]}")
    return Exit.OK


async def checkpoints(model: str, *, as_json: JsonFlag = False) -> int:
    """The checkpoint tree of MODEL, oldest first; ▶ marks the head.

    :param model: slug.
    :param as_json: one JSON line per checkpoint.
    """
    async with Platform() as platform:
        listed = await _checkpoints_of(platform, model)
    if as_json:
        for checkpoint in listed:
            print_json("checkpoint", checkpoint)
        return Exit.OK
    columns = ("", "checkpoint", "state", "step", "held-out", "sources", "reason")
    print_table(columns, map(_checkpoint_row, listed))
    return Exit.OK


async def _checkpoints_of(platform: Platform, model: str) -> "Sequence[Checkpoint]":
    from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest

    request = ListCheckpointsRequest(model=model)
    return (await platform.registry.ListCheckpoints(request, timeout=10)).checkpoints


async def checkpoint_id_of(platform: Platform, model: str, name: str) -> str:
    """The id of the checkpoint of version `v14`; any other name is an id, which the registry checks."""
    if not re.fullmatch(r"v\d+", name):
        return name
    listed = {f"v{one.version}": one.checkpoint_id for one in await _checkpoints_of(platform, model)}
    if name not in listed:
        raise UnknownName(f"{model} has no checkpoint of {name}", known_versions(list(listed), model))
    return listed[name]


def known_versions(names: "Sequence[str]", model: str) -> str:
    """All versions of a model, oldest first, or of many the newest and where the others are."""
    if len(names) <= _VERSIONS_SHOWN:
        return f"it has {', '.join(names) or 'none'}"
    newest = ", ".join(names[-_VERSIONS_SHOWN:])
    return f"it has {len(names):,}, the newest are {newest}; `upcycle models checkpoints {model}` lists all"


def _checkpoint_row(checkpoint: "Checkpoint") -> tuple[str, ...]:
    from upcycle.api.registry.v1.registry_pb2 import CheckpointState

    state = CheckpointState.Name(checkpoint.state).removeprefix("CHECKPOINT_STATE_").lower()
    rate = f"{checkpoint.gate.candidate_rate:.1%}" if checkpoint.HasField("gate") else "–"
    mark = "▶" if checkpoint.is_head else ""
    step, trained_on = str(checkpoint.step), sources_words(checkpoint.sources)
    return mark, checkpoint.checkpoint_id, state, step, rate, trained_on, checkpoint.reason


def sources_words(sources: Mapping[str, int]) -> str:
    """Evaluations that trained a checkpoint, most groups first: `trained on run-… (38 groups)`."""
    if not sources:
        return "–"
    by_groups = sorted(sources.items(), key=lambda item: (-item[1], item[0]))
    named = (f"{run_id} ({amount(groups, 'group')})" for run_id, groups in by_groups)
    return f"trained on {', '.join(named)}"


async def head(
    model: str,
    *,
    set_to: Annotated[str | None, Parameter(name="--set")] = None,
    reason: str = "set from the command line",
    as_json: JsonFlag = False,
) -> int:
    """The head of MODEL and how it got there; `--set CHECKPOINT` rolls back or promotes manually.

    Its last line says what head and the version before it played side by side since, and what that waits for.

    :param model: slug.
    :param set_to: checkpoint that becomes head: its id, or its version as `v14`.
    :param reason: written to the audit log.
    :param as_json: one JSON line.
    """
    from upcycle.api.registry.v1.service_pb2 import GetHeadWatchRequest, GetModelRequest, ListHeadMovesRequest

    async with Platform() as platform:
        now = (await platform.registry.GetModel(GetModelRequest(model=model), timeout=10)).model
        if set_to is not None:
            now = await _moved(platform, now, set_to, reason)
        moves = (await platform.registry.ListHeadMoves(ListHeadMovesRequest(model=model), timeout=10)).moves
        watch = await platform.registry.GetHeadWatch(GetHeadWatchRequest(model=model), timeout=10)
    if as_json:
        print_json("head", {**fields_of(now), "watch": fields_of(watch)})
        return Exit.OK
    human().print(f"[bold]{model}[/bold] serves {now.head_checkpoint_id} (v{now.head_version})")
    rows = ((str(m.revision), m.from_checkpoint_id, m.to_checkpoint_id, m.actor, m.reason) for m in moves)
    print_table(("revision", "from", "to", "by", "why"), rows)
    result_console().print(watch_words(watch), soft_wrap=True, markup=False)
    return Exit.OK


async def _moved(platform: Platform, now: "Model", set_to: str, reason: str) -> "Model":
    """With this checkpoint as head, unless head moved meanwhile."""
    from upcycle.api.registry.v1.service_pb2 import SetHeadRequest

    request = SetHeadRequest(
        model=now.model,
        checkpoint_id=await checkpoint_id_of(platform, now.model, set_to),
        expected_revision=now.head_revision,
        actor=getpass.getuser(),
        reason=reason,
    )
    return (await platform.registry.SetHead(request, timeout=10)).model


def watch_words(watch: "GetHeadWatchResponse") -> str:
    """What the watch of head played, and what it does now, in one line."""
    if not watch.pairs_wanted:
        return f"not watched: {watch.waits_for}"
    played = (
        f"watched: {watch.pairs:,} of {watch.pairs_wanted:,} pairs with "
        f"v{watch.predecessor_version}, head worse in {watch.worse:,}, better in {watch.better:,}"
    )
    if watch.run_id:
        return f"{played}; {watch.run_id} plays more"
    return f"{played}; waits: {watch.waits_for}" if watch.waits_for else played


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
    """A table without borders. What is in it is text, never markup: others wrote some of it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    result_console().print(table)
