"""The client of interactive training for one model: its gradients, its steps, its checkpoints.

While the trainer is unavailable, a request is sent again under the same id until `timeout_s`. The trainer
executes each id once, so no gradient is accumulated or applied twice.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from upcycle.errors import UpcycleError
from upcycle.platform import connected
from upcycle.results import Run as Episode
from upcycle.retrying import retry
from upcycle.run_client import new_request_id
from upcycle.tasks import Taskset
from upcycle.train.custom import CustomLoss, weights_of
from upcycle.train.inputs import Lora, TrainingInput, input_to_wire
from upcycle.train.results import (
    Forward,
    ForwardBackwardResult,
    OptimStepResult,
    StepResult,
    datum_of,
    optim_step_of,
    step_of,
)
from upcycle.train.running import TrainedRun, run_ids_of, submit, wait_until_finished
from upcycle.trained_models import head_was_set, stepped

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import Checkpoint
    from upcycle.platform import Addresses, Platform

DEFAULT_LOSS: Final = "importance_sampling"
_MAX_PAUSE_S: Final = 3.0
_ACTOR: Final = "training client"


class AdamOptions(TypedDict, total=False):
    """Options of an AdamW update beside its learning rate. Defaults: beta1 0.9, beta2 0.95, eps 1e-8,
    weight_decay 0, max_grad_norm 1 (0: no bound)."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float


class StepOptions(AdamOptions, total=False):
    """Options of a step: those of the update, and those of the pass before it, see `forward_backward`."""

    reward_scale: float
    num_substeps: int
    advantage: str


class TrainingClient:
    """Trains one model slug. A step moves the model's head, so that the gateway serves the new version and
    the next rollouts sample from it.

    Head of a model for which a run asked for a gate is moved by that gate alone, or by a person (`set_head`):
    a step is published and judged, and agents of this process play the newest weights until then.

    inputs of every pass: Runs, ids of stored trajectories, Trajectory, Conversation and TokenRow objects.
    Raises upcycle.rpc.RemoteError for what the trainer refuses, with its reason; UpcycleError for what is
    wrong on this side.
    """

    def __init__(
        self,
        model: str,
        *,
        runtime: "Platform | Addresses | None" = None,
        lora: Lora | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """runtime: a Platform or its Addresses; None: the running platform, found at each call. lora: which
        parameters train; None: the same as in the last call, at first all weights. timeout_s: of each call,
        including everything that it waits for."""
        if not model:
            raise UpcycleError("the model slug is empty", "`upcycle models list` names those that exist")
        self.model = model
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._lora = lora
        self._accumulated: list[str] = []

    async def step(
        self,
        inputs: Sequence[TrainingInput],
        *,
        learning_rate: float,
        group_size: int | None = None,
        loss_fn: str = DEFAULT_LOSS,
        loss_fn_config: Mapping[str, float] | None = None,
        promote: bool = True,
        **more: Unpack[StepOptions],
    ) -> StepResult:
        """forward_backward, then optim_step, in one request; see both for the arguments."""
        from upcycle.api.training.v1 import service_pb2 as pb

        scale, advantage = more.pop("reward_scale", 1.0), more.pop("advantage", "")
        num_substeps = more.pop("num_substeps", 1)
        request = pb.StepRequest(
            model=self.model,
            request_id=new_request_id("step"),
            batch=_batch(inputs, group_size, scale, advantage),
            loss=_loss(loss_fn, loss_fn_config),
            num_substeps=num_substeps,
            adam=_adam(learning_rate, more),
            keep_head=not promote,
            lora=_lora(self._lora),
        )
        reply = await self._call("step", lambda stub: stub.Step, request)
        if promote:
            stepped(self.model, is_head=reply.result.is_head)
        return step_of(reply.result, dict(reply.metrics), reply.num_datums)

    async def forward_backward(
        self,
        inputs: Sequence[TrainingInput],
        loss_fn: str = DEFAULT_LOSS,
        loss_fn_config: Mapping[str, float] | None = None,
        *,
        group_size: int | None = None,
        reward_scale: float = 1.0,
        num_substeps: int = 1,
        advantage: str = "",
    ) -> ForwardBackwardResult:
        """Accumulates the gradient of a built-in loss; the next optim_step divides the accumulated sum by the
        number of trained tokens.

        group_size: how many consecutive inputs form a group; rewards are relative to their group (None: all
        inputs are one group; 1: the reward itself is the advantage). num_substeps: the pass is computed in
        so many slices, which needs less memory and gives the same gradient. reward_scale: multiplies rewards.
        advantage: how rewards of a group become credit, by default `dr_grpo`. loss_fn_config: options of
        the loss, named in docs/understand/grpo.md.
        """
        from upcycle.api.training.v1 import service_pb2 as pb

        request = pb.ForwardBackwardRequest(
            model=self.model,
            request_id=new_request_id("fb"),
            batch=_batch(inputs, group_size, reward_scale, advantage),
            loss=_loss(loss_fn, loss_fn_config),
            num_substeps=num_substeps,
            lora=_lora(self._lora),
        )
        reply = await self._call("forward_backward", lambda stub: stub.ForwardBackward, request)
        self._accumulated.append(request.request_id)
        return ForwardBackwardResult(dict(reply.metrics), reply.num_datums)

    async def forward(
        self,
        inputs: Sequence[TrainingInput],
        *,
        group_size: int | None = None,
        reward_scale: float = 1.0,
        advantage: str = "",
    ) -> Forward:
        """Log-probabilities of every token under the policy in training; changes nothing."""
        from upcycle.api.training.v1 import service_pb2 as pb

        request = pb.ForwardRequest(
            model=self.model,
            request_id=new_request_id("fwd"),
            batch=_batch(inputs, group_size, reward_scale, advantage),
            lora=_lora(self._lora),
        )
        reply = await self._call("forward", lambda stub: stub.Forward, request)
        return Forward(reply.forward_id, reply.version, [datum_of(datum) for datum in reply.data])

    async def backward(
        self, forward_id: str, weights: Sequence[Sequence[float]], metrics: Mapping[str, float] | None = None
    ) -> ForwardBackwardResult:
        """Accumulates a gradient that the caller computed. weights: per datum of the forward pass,
        -dLoss/dlogprob of each of its tokens. Refused if the model's weights changed since that pass."""
        from upcycle.api.training.v1 import interactive_pb2, service_pb2

        request = service_pb2.BackwardRequest(
            model=self.model,
            request_id=new_request_id("bwd"),
            forward_id=forward_id,
            weights=[interactive_pb2.TokenValues(values=values) for values in weights],
            metrics=dict(metrics or {}),
        )
        reply = await self._call("backward", lambda stub: stub.Backward, request)
        self._accumulated.append(request.request_id)
        return ForwardBackwardResult(dict(reply.metrics), reply.num_datums)

    async def forward_backward_custom(
        self,
        inputs: Sequence[TrainingInput],
        loss_fn: CustomLoss,
        *,
        group_size: int | None = None,
        reward_scale: float = 1.0,
    ) -> ForwardBackwardResult:
        """Accumulates the gradient of a loss that this process computes with torch.

        loss_fn(data, logprobs) -> (loss, metrics): DatumTensors, and as many tensors [T] to differentiate by.
        Raises CustomLossInvalid.
        """
        passed = await self.forward(inputs, group_size=group_size, reward_scale=reward_scale)
        weights, metrics = await asyncio.to_thread(weights_of, passed.data, loss_fn)
        return await self.backward(passed.forward_id, weights, metrics)

    async def optim_step(
        self, learning_rate: float, *, promote: bool = True, **adam: Unpack[AdamOptions]
    ) -> OptimStepResult:
        """One update with all accumulated gradients. The new version is saved, published and, if `promote`
        and the model has no gate, made head.

        adam: beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0, max_grad_norm=1 (0: no bound). Refused if the
        trainer has lost a gradient that this client accumulated.
        """
        from grpc import StatusCode

        from upcycle.api.training.v1 import service_pb2 as pb
        from upcycle.rpc import RemoteConflict, RemoteRefused

        request = pb.OptimStepRequest(
            model=self.model,
            request_id=new_request_id("optim"),
            adam=_adam(learning_rate, adam),
            gradients=self._accumulated,
            keep_head=not promote,
        )
        try:
            reply = await self._call("optim_step", lambda stub: stub.OptimStep, request)
        except (RemoteConflict, RemoteRefused) as error:
            if error.code is not StatusCode.INVALID_ARGUMENT:  # else the trainer has dropped its gradients
                self._accumulated = []
            raise
        self._accumulated = []
        if promote:
            stepped(self.model, is_head=reply.result.is_head)
        return optim_step_of(reply.result)

    async def train_on(
        self,
        runs: Sequence[Episode | str],
        *,
        taskset: Taskset | str | None = None,
        sampling: bool = True,
        timeout_s: float = 86_400.0,
        **options: Any,
    ) -> TrainedRun:
        """Start a training run whose first batches are evaluations, and wait until it is over.

        runs: Runs of evaluations of train tasks, or their run ids; all groups of each evaluation train, each
        at most once. taskset: what the run goes on with; None: that of the first evaluation. sampling=False:
        it samples nothing and ends when the evaluations are used up. options: the flags of `upcycle train`,
        such as steps, prompts, learning_rate, gate. Raises RunConfigInvalid; upcycle.rpc.RemoteError where
        the planner refuses a source, with its reason; TrainingFailed when the run fails or is not over in
        time.
        """
        from upcycle.run_config.flags import training_run

        chosen = training_run(self.model, {**options, "no_sampling": not sampling})
        async with connected(self._runtime) as platform:
            run_id = await submit(platform, self.model, run_ids_of(runs), taskset, chosen)
            return await wait_until_finished(platform, run_id, timeout_s)

    async def available_losses(self) -> list[str]:
        """Built-in losses that the model can be trained with."""
        from upcycle.api.training.v1.service_pb2 import ListLossesRequest

        request = ListLossesRequest(model=self.model)
        reply = await self._call("available_losses", lambda stub: stub.ListLosses, request)
        return list(reply.losses)

    async def checkpoints(self) -> "list[Checkpoint]":
        """The model's checkpoint tree, oldest first; each names its parent, run and step."""
        from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest

        request = ListCheckpointsRequest(model=self.model)
        reply = await self._ask("checkpoints", lambda at: at.registry.ListCheckpoints, request)
        return list(reply.checkpoints)

    async def head(self) -> "Checkpoint":
        """The promoted checkpoint. The gateway serves it, and the next step continues it."""
        from upcycle.api.registry.v1.service_pb2 import GetModelRequest

        reply = await self._ask("head", lambda at: at.registry.GetModel, GetModelRequest(model=self.model))
        checkpoint: Checkpoint = reply.head
        return checkpoint

    async def set_head(self, checkpoint: "str | Checkpoint", *, reason: str = "set manually") -> "Checkpoint":
        """Move head to any checkpoint, to roll back or to branch; the next step continues that checkpoint."""
        from upcycle.api.registry.v1.service_pb2 import SetHeadRequest

        checkpoint_id = checkpoint if isinstance(checkpoint, str) else checkpoint.checkpoint_id
        request = SetHeadRequest(model=self.model, checkpoint_id=checkpoint_id, actor=_ACTOR, reason=reason)
        await self._ask("set_head", lambda at: at.registry.SetHead, request)
        head_was_set(self.model)
        return await self.head()

    async def _call(self, what: str, method: Callable[[Any], Any], request: Any) -> Any:
        return await self._ask(what, lambda platform: method(platform.training), request)

    async def _ask(self, what: str, method: "Callable[[Platform], Any]", request: Any) -> Any:
        """Send a request, again under the same id while the service is unavailable; returns the reply."""
        from upcycle.rpc import remote_errors

        give_up_at = time.monotonic() + self._timeout_s

        async def once() -> Any:
            with remote_errors(f"{what} of {self.model!r}"):
                return await method(platform)(request, timeout=max(give_up_at - time.monotonic(), 0.1))

        async with connected(self._runtime) as platform:
            return await retry(once, budget_s=self._timeout_s, max_pause_s=_MAX_PAUSE_S)


def _batch(
    inputs: Sequence[TrainingInput], group_size: int | None, reward_scale: float, advantage: str
) -> Any:
    from upcycle.api.training.v1 import interactive_pb2 as pb

    return pb.Batch(
        inputs=[input_to_wire(one) for one in inputs],
        group_size=group_size,
        reward_scale=reward_scale,
        advantage=advantage,
    )


def _loss(name: str, config: Mapping[str, float] | None) -> Any:
    from upcycle.api.training.v1 import interactive_pb2 as pb

    return pb.Loss(name=name, config=dict(config or {}))


def _lora(given: Lora | None) -> Any:
    from upcycle.api.training.v1 import interactive_pb2 as pb

    if given is None:
        return None
    return pb.LoraOptions(rank=given.rank, alpha=given.alpha, targets=given.targets)


def _adam(learning_rate: float, given: Mapping[str, Any]) -> Any:
    from upcycle.api.training.v1 import interactive_pb2 as pb

    names = [field.name for field in pb.AdamParameters.DESCRIPTOR.fields]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise UpcycleError(f"unknown argument {unknown[0]!r}", f"the optimizer has {', '.join(names)}")
    return pb.AdamParameters(learning_rate=learning_rate, **given)
