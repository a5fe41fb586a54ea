"""`upcycle models rehearse-rollback`: shows that the version before head can be served, and moves nothing."""

import getpass
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from upcycle.cli.exits import Exit
from upcycle.cli.holds import until_served
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.errors import Unavailable, UpcycleError
from upcycle.model_names import named_version
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import HeadMove, Model

_TIMEOUT_S: Final = 10.0
_REQUEST_S: Final = 60.0
_TTL_S: Final = 600.0
_MAX_TOKENS: Final = 16


class NothingToRollBackTo(UpcycleError):
    """Head has no predecessor."""

    kind = "nothing_to_roll_back_to"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsal saw. loaded_s: until an engine had loaded the version and its canary agreed. failures:
    why requests were not answered by it. head_moved: somebody moved head meanwhile."""

    model: str
    head_version: int
    version: int
    engine_id: str
    loaded_s: float
    answered: int
    failures: Sequence[str]
    median_ms: float
    slowest_ms: float
    head_moved: bool

    @property
    def is_passed(self) -> bool:
        """The version can be served as head is."""
        return not self.failures

    def lines(self) -> list[str]:
        """For a person."""
        asked = self.answered + len(self.failures)
        done = "can be rolled back to" if self.is_passed else "was not answered for as head would be"
        said = [
            f"{self.model}@v{self.version} (head is v{self.head_version}) {done}: loaded by "
            f"{self.engine_id} in {self.loaded_s:.1f} s, its canary agrees, and it answered "
            f"{self.answered} of {asked} requests"
        ]
        if self.answered:
            said.append(f"median {self.median_ms:.0f} ms, slowest {self.slowest_ms:.0f} ms")
        said += sorted(set(self.failures))
        if self.head_moved:
            said.append("head was moved by others meanwhile: rehearse again")
        else:
            said.append(
                f"head is where it was; `upcycle models head {self.model} --set v{self.version}` moves it"
            )
        return said


async def rehearse_rollback(
    model: str,
    *,
    to: str = "",
    requests: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 16,
    prompt: str = "hello",
    as_json: JsonFlag = False,
) -> int:
    """Show that the version before head can be served: an engine loads and proves it, and answers requests.

    Head stays where it is, and what production asks goes to it. The version is held for the rehearsal alone.
    Ends with 1 where a request was not answered by the version.

    :param model: slug.
    :param to: rehearse this version, `v12` or a checkpoint id, in place of the one before head.
    :param requests: how many the version has to answer, one after the other.
    :param prompt: what it is asked.
    :param as_json: one JSON line.
    """
    async with Platform() as platform:
        before = await _model(platform, model)
        version = _named(model, to) if to else await _predecessor(platform, before)
        found = await _rehearsed(platform, before, version, [prompt] * requests)
    if as_json:
        print_json("rehearsal", asdict(found))
    else:
        for line in found.lines():
            human().print(line, markup=False, soft_wrap=True)
    return Exit.OK if found.is_passed else Exit.FAILED


async def _model(platform: Platform, model: str) -> "Model":
    from upcycle.api.registry.v1.service_pb2 import GetModelRequest

    return (await platform.registry.GetModel(GetModelRequest(model=model), timeout=_TIMEOUT_S)).model


def _named(model: str, version: str) -> int:
    """Raises UnknownName."""
    found = named_version(f"{model}@{version}").version
    if found is None:
        raise NothingToRollBackTo(f"--to {version}: head itself", "name another version, or leave --to out")
    return found


async def _predecessor(platform: Platform, model: "Model") -> int:
    """The version from which head moved forward to where it is. Raises NothingToRollBackTo."""
    from upcycle.api.registry.v1.service_pb2 import ListHeadMovesRequest

    listed = await platform.registry.ListHeadMoves(
        ListHeadMovesRequest(model=model.model), timeout=_TIMEOUT_S
    )
    came_from = [_from(move) for move in listed.moves if move.to_checkpoint_id == model.head_checkpoint_id]
    older = [version for version in came_from if version is not None and version < model.head_version]
    if not older:
        raise NothingToRollBackTo(
            f"head of {model.model!r}, v{model.head_version}, has no older version before it",
            f"name one with --to; `upcycle models checkpoints {model.model}` lists them",
        )
    return older[-1]


def _from(move: "HeadMove") -> int | None:
    return (
        named_version(f"{move.model}@{move.from_checkpoint_id}").version if move.from_checkpoint_id else None
    )


async def _rehearsed(platform: Platform, before: "Model", version: int, prompts: Sequence[str]) -> Rehearsal:
    """The version is released again, whatever comes of it."""
    from upcycle.api.registry.v1.service_pb2 import HoldPolicyRequest, ReleasePolicyRequest

    model, holder = before.model, f"rehearsal {getpass.getuser()}"[:64]
    request = HoldPolicyRequest(model=model, version=version, ttl_s=_TTL_S, holder=holder)
    began = time.monotonic()
    held = (await platform.registry.HoldPolicy(request, timeout=_TIMEOUT_S)).hold
    try:
        await until_served(
            platform, held, way_out="it could not be served as head either; `--to` names others"
        )
        loaded_s = time.monotonic() - began
        took_ms, failures = await _asked(platform, model, version, prompts)
    finally:
        over = ReleasePolicyRequest(model=model, version=version, holder=holder)
        await platform.registry.ReleasePolicy(over, timeout=_TIMEOUT_S)
    now = await _model(platform, model)
    return Rehearsal(
        model=model,
        head_version=before.head_version,
        version=version,
        engine_id=held.engine_id,
        loaded_s=round(loaded_s, 3),
        answered=len(took_ms),
        failures=failures,
        median_ms=round(median(took_ms), 1) if took_ms else 0.0,
        slowest_ms=round(max(took_ms, default=0.0), 1),
        head_moved=now.head_revision != before.head_revision,
    )


async def _asked(
    platform: Platform, model: str, version: int, prompts: Sequence[str]
) -> tuple[list[float], list[str]]:
    """Milliseconds of each request that the version answered, and why others were not; none is repeated."""
    from upcycle.train.sampling import SamplingRefused, SamplingRequest, sampled

    took_ms: list[float] = []
    failures: list[str] = []
    for prompt in prompts:
        request = SamplingRequest(f"{model}@v{version}", prompt, 1, _MAX_TOKENS, 1.0, (), None)
        began = time.monotonic()
        try:
            (said,) = await sampled(platform.addresses, request, _REQUEST_S, is_published=False)
        except (SamplingRefused, Unavailable) as error:
            failures.append(str(error))
            continue
        if said.version == version:
            took_ms.append(1000 * (time.monotonic() - began))
        else:
            failures.append(f"a request for v{version} was answered by v{said.version}")
    return took_ms, failures
