"""The client of interactive training for one model: its gradients, its steps, its checkpoints.

While the trainer is unavailable, a request is sent again under the same id until `timeout_s`. The trainer
executes each id once, so no gradient is accumulated or applied twice.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from upcycle.errors import UpcycleError
from upcycle.platform import connected
from upcycle.results import Run as Episode
from upcycle.retrying import retry
from upcycle.run_client import new_request_id
from upcycle.tasks import Taskset
from upcycle.train.custom import CustomLoss, weights_of
from upcycle.train.inputs import Lora, TrainingInput
from upcycle.train.requests import (
    DEFAULT_LOSS,
    AdamOptions,
    PassOptions,
    PassRequest,
    Persist,
    StepOptions,
    adam_to_wire,
    batch_to_wire,
    lora_to_wire,
    pass_options,
    persist_to_wire,
    refuse_unknown,
)
from upcycle.train.results import (
    Forward,
    ForwardBackwardResult,
    OptimStepResult,
    StepResult,
    datum_of,
    optim_step_of,
    step_of,
)
from upcycle.train.running import TrainedRun, run_ids_of, submit, submit_alone, wait_until_finished
from upcycle.train.sampling import Prompt, Sampled, SamplingRequest, sampled
from upcycle.trained_models import head_was_set, stepped

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import Checkpoint
    from upcycle.platform import Addresses, Platform

_MAX_PAUSE_S: Final = 3.0
_ACTOR: Final = "training client"
LOST_STEPS: Final = "LOST_STEPS"
"""Reason of the RemoteConflict by which the trainer says that unsaved steps are gone."""

_Done = TypeVar("_Done", bound=OptimStepResult)


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
        on_wait: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """runtime: a Platform or its Addresses; None: the running platform, found at each call. lora: which
        parameters train; None: the same as in the last call, at first all weights. timeout_s: of each call,
        including everything that it waits for. on_wait: gets what a call waits for, each time that it asked
        for it in vain, and None once it waits no more."""
        if not model:
            raise UpcycleError("the model slug is empty", "`upcycle models list` names those that exist")
        self.model = model
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._lora = lora
        self._accumulated: list[str] = []
        self._sampled_version: int | None = None

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

        asked = PassRequest(inputs, group_size, loss_fn, loss_fn_config, pass_options(more))
        persist = more.pop("persist", "checkpoint")
        request = pb.StepRequest(
            model=self.model,
            request_id=new_request_id("step"),
            batch=asked.batch(),
            loss=asked.loss(),
            num_substeps=asked.num_substeps,
            adam=adam_to_wire(learning_rate, more),
            keep_head=not promote,
            lora=lora_to_wire(self._lora),
            persist=persist_to_wire(persist),
        )
        reply = await self._call("step", lambda stub: stub.Step, request)
        return self._stepped(step_of(reply.result, dict(reply.metrics), reply.num_datums), promote)

    async def forward_backward(
        self,
        inputs: Sequence[TrainingInput],
        loss_fn: str = DEFAULT_LOSS,
        loss_fn_config: Mapping[str, float] | None = None,
        *,
        group_size: int | None = None,
        logprobs: bool = False,
        **more: Unpack[PassOptions],
    ) -> ForwardBackwardResult:
        """Accumulates the gradient of a built-in loss; the next optim_step divides the accumulated sum by the
        number of trained tokens, unless normalize="sum".

        group_size: how many consecutive inputs form a group; rewards are relative to their group (None: all
        inputs are one group; 1: the reward itself is the advantage). loss_fn_config: options of the loss,
        named in docs/understand/grpo.md. logprobs: return those of the trained tokens. more: see PassOptions.
        """
        from upcycle.api.training.v1 import service_pb2 as pb

        asked = PassRequest(inputs, group_size, loss_fn, loss_fn_config, pass_options(more))
        refuse_unknown(more)
        request = pb.ForwardBackwardRequest(
            model=self.model,
            request_id=new_request_id("fb"),
            batch=asked.batch(),
            loss=asked.loss(),
            num_substeps=asked.num_substeps,
            lora=lora_to_wire(self._lora),
            logprobs=logprobs,
        )
        reply = await self._call("forward_backward", lambda stub: stub.ForwardBackward, request)
        self._accumulated.append(request.request_id)
        per_token = [list(one.values) for one in reply.logprobs]
        return ForwardBackwardResult(dict(reply.metrics), reply.num_datums, per_token)

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
            batch=batch_to_wire(inputs, group_size, reward_scale, advantage),
            lora=lora_to_wire(self._lora),
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
        self,
        learning_rate: float,
        *,
        promote: bool = True,
        persist: Persist = "checkpoint",
        **adam: Unpack[AdamOptions],
    ) -> OptimStepResult:
        """One update with all accumulated gradients. The new version is saved, published and, if `promote`
        and the model has no gate, made head.

        persist: `weights` publishes the version only: engines may sample from it, head stays. `none` saves
        nothing: the step is in the trainer's memory until a later one saves it. Where the trainer loses such
        steps, the next call raises RemoteConflict with reason LOST_STEPS, once, and the one after it goes on
        from the last checkpoint. adam: see AdamOptions. Refused if the trainer has lost a gradient that this
        client accumulated.
        """
        from grpc import StatusCode

        from upcycle.api.training.v1 import service_pb2 as pb
        from upcycle.rpc import RemoteConflict, RemoteRefused

        request = pb.OptimStepRequest(
            model=self.model,
            request_id=new_request_id("optim"),
            adam=adam_to_wire(learning_rate, adam),
            gradients=self._accumulated,
            keep_head=not promote,
            persist=persist_to_wire(persist),
        )
        try:
            reply = await self._call("optim_step", lambda stub: stub.OptimStep, request)
        except (RemoteConflict, RemoteRefused) as error:
            if error.code is not StatusCode.INVALID_ARGUMENT:  # else the trainer has dropped its gradients
                self._accumulated = []
            raise
        self._accumulated = []
        return self._stepped(optim_step_of(reply.result), promote)

    def _stepped(self, done: _Done, promote: bool) -> _Done:
        """Notes which weights the agents of this process, and `sample`, are to play."""
        if done.persist != "none":
            self._sampled_version = done.version
            if promote:
                stepped(self.model, is_head=done.is_head)
        return done

    async def sample(
        self,
        prompt: Prompt,
        *,
        num_samples: int = 1,
        max_tokens: int = 256,
        temperature: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
        version: int | None = None,
    ) -> list[Sampled]:
        """What the model says, with tokens and log-probabilities, through the gateway; waits up to timeout_s
        until an engine serves the weights.

        prompt: text, token ids, or messages. version: None: the newest that this client published, before
        that head. Raises SamplingRefused; Unavailable; PlatformNotFound without a key of the gateway.
        """
        at = self._sampled_version if version is None else version
        name = self.model if at is None else f"{self.model}@v{at}"
        asked = SamplingRequest(name, prompt, num_samples, max_tokens, temperature, stop, seed)
        async with connected(self._runtime) as platform:
            return await retry(
                lambda: sampled(
                    platform.addresses, asked, self._timeout_s, is_published=at == self._sampled_version
                ),
                budget_s=self._timeout_s,
                max_pause_s=_MAX_PAUSE_S,
                on_wait=self._on_wait,
            )

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

    async def train_on_sessions(
        self, sessions: str = "all", *, timeout_s: float = 86_400.0, **options: Any
    ) -> TrainedRun:
        """Start a training run on graded recorded sessions alone, and wait until it is over.

        sessions: which ones, as of `upcycle train --sessions`. options: its other flags, such as steps,
        prompts, single_sessions, sessions_idle_s. Raises RunConfigInvalid; upcycle.rpc.RemoteError where the
        planner finds none that can train, with the reasons; TrainingFailed as train_on.
        """
        from upcycle.run_config.flags import training_run

        chosen = training_run(self.model, {**options, "sessions": sessions, "no_sampling": True})
        async with connected(self._runtime) as platform:
            return await wait_until_finished(platform, await submit_alone(platform, chosen), timeout_s)

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
        self._sampled_version = None
        return await self.head()

    async def _call(self, what: str, method: Callable[[Any], Any], request: Any) -> Any:
        from upcycle.rpc import RemoteConflict

        try:
            return await self._ask(what, lambda platform: method(platform.training), request)
        except RemoteConflict as error:
            if error.reason == LOST_STEPS:  # the gradients of this client were in the same memory
                self._accumulated, self._sampled_version = [], None
            raise

    async def _ask(self, what: str, method: "Callable[[Platform], Any]", request: Any) -> Any:
        """Send a request, again under the same id while the service is unavailable; returns the reply."""
        from upcycle.rpc import remote_errors

        give_up_at = time.monotonic() + self._timeout_s

        async def once() -> Any:
            with remote_errors(f"{what} of {self.model!r}"):
                return await method(platform)(request, timeout=max(give_up_at - time.monotonic(), 0.1))

        async with connected(self._runtime) as platform:
            return await retry(
                once, budget_s=self._timeout_s, max_pause_s=_MAX_PAUSE_S, on_wait=self._on_wait
            )
