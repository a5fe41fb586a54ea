"""`TrainingClient.optim_step` names the gradients that the trainer must still hold."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from upcycle import TrainingClient
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteRefused


class Client(TrainingClient):
    """Its calls succeed, but for those that `errors` holds."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__("m")
        self.errors = list(errors)
        self.named: list[list[str]] = []

    async def _call(self, what: str, method: Callable[[Any], Any], request: Any) -> Any:
        if what == "backward":
            return pb.BackwardResponse()
        self.named.append(list(request.gradients))
        if self.errors:
            raise self.errors.pop(0)
        return pb.OptimStepResponse()


async def steps(client: Client, count: int) -> list[list[str]]:
    """One backward pass, then optim_step so often; the gradients that each named."""
    await client.backward("forward", [])
    for _ in range(count):
        try:
            await client.optim_step(1e-3)
        except (Unavailable, RemoteRefused):
            continue
    return client.named


def refusal(code: grpc.StatusCode) -> RemoteRefused:
    return RemoteRefused("optim_step", code, "REASON", "why")


@pytest.mark.parametrize("error", [Unavailable("trainer"), refusal(grpc.StatusCode.INVALID_ARGUMENT)])
async def test_a_step_that_failed_is_asked_for_again_with_the_same_gradients(error: Exception) -> None:
    first, second, third = await steps(Client(error), 3)
    assert len(first) == 1
    assert (second, third) == (first, []), "kept until a step took them"


async def test_gradients_that_the_trainer_dropped_are_not_asked_for_again() -> None:
    first, second = await steps(Client(refusal(grpc.StatusCode.FAILED_PRECONDITION)), 2)
    assert (len(first), second) == (1, [])
