"""The reload protocol, order by order, and what a canary proves."""

from pathlib import Path
from typing import Any

import pytest
from tests.services.policy_engine.doubles import EngineDouble, HostDouble, policy, target

from engine_client import EngineRejected, EngineUnavailable, MalformedReply
from policy_engine.domain import EngineBroken, Policy, ServedPolicy, VersionRefused, judge_canary
from policy_engine.settings import PolicyEngineSettings
from policy_engine.usecases.reload import ReloadProtocol


def _protocol(engine: EngineDouble) -> ReloadProtocol:
    return ReloadProtocol(HostDouble(engine), "m", recompute_running=False, clock=lambda: 0.0)


async def test_an_engine_with_room_proves_before_anything_is_sampled_and_is_not_paused() -> None:
    engine = EngineDouble()
    served, paused_s = await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), policy(1))
    assert engine.orders == ["stage 1", "swap 1 as 1"]
    assert (served.version, engine.loaded, paused_s) == (1, 1, 0.001)


async def test_requests_in_flight_compute_anew_where_that_is_asked_for() -> None:
    engine = EngineDouble()
    protocol = ReloadProtocol(HostDouble(engine), "m", recompute_running=True, clock=lambda: 0.0)
    await protocol.reload(engine, ServedPolicy(policy(0), 0.0), policy(1))
    assert engine.orders[-1] == "swap 1 as 1, all"


async def test_an_engine_without_room_gets_an_unproven_label_until_it_is_proven() -> None:
    engine = EngineDouble(is_embedded=False)
    await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), policy(1))
    assert engine.orders == [
        "pause keep", "reload 1", "label unproven-1-after-0", "reset", "resume", "label 1",
    ]  # fmt: skip


async def test_weights_that_are_refused_before_they_serve_touch_nothing() -> None:
    engine = EngineDouble()
    with pytest.raises(VersionRefused, match="canary_mismatch"):
        await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), policy(1, logprobs=(-7.0, -7.0)))
    assert engine.orders == ["stage 1", "forget"]


async def test_weights_that_were_not_loaded_are_refused() -> None:
    engine = EngineDouble()
    engine.off[1] = engine.off[0]
    with pytest.raises(VersionRefused, match="kept its old weights"):
        await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), policy(1))


@pytest.mark.parametrize(
    ("error", "may_pass_later"),
    [
        (EngineRejected(400, "no such tensor"), False),
        (MalformedReply("no numbers"), True),
        (EngineUnavailable("no answer"), True),
    ],
)
async def test_weights_that_cannot_be_staged_are_refused_and_touch_nothing(
    error: Exception, may_pass_later: bool
) -> None:
    engine = EngineDouble()
    engine.fails["stage"] = error
    with pytest.raises(VersionRefused, match="engine_error") as caught:
        await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), policy(1))
    assert caught.value.may_pass_later is may_pass_later
    assert engine.orders == ["stage 1"]


async def test_after_a_swap_without_an_answer_the_old_weights_come_back() -> None:
    engine = EngineDouble()
    engine.fails["swap"] = EngineUnavailable("no answer")
    with pytest.raises(VersionRefused, match="engine_error"):
        await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), policy(1))
    assert engine.orders[2:] == ["pause keep", "reload 0", "label 0", "reset all", "resume"]


async def test_refused_weights_that_already_sampled_take_their_requests_with_them() -> None:
    engine = EngineDouble(is_embedded=False)
    with pytest.raises(VersionRefused, match="canary_mismatch"):
        await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), policy(1, logprobs=(-7.0, -7.0)))
    assert engine.orders[-5:] == ["pause abort", "reload 0", "label 0", "reset all", "resume"]


@pytest.mark.parametrize("order", ["reload 1", "label 1", "reset", "resume"])
async def test_whatever_fails_the_old_weights_come_back(order: str) -> None:
    engine = EngineDouble(is_embedded=False)
    engine.fails[order] = EngineRejected(500, "no")
    protocol = _protocol(engine)
    if order in ("reset", "resume"):
        with pytest.raises(EngineBroken):
            await protocol.reload(engine, ServedPolicy(policy(0), 0.0), policy(1))
        return
    with pytest.raises(VersionRefused, match="engine_error"):
        await protocol.reload(engine, ServedPolicy(policy(0), 0.0), policy(1))
    assert engine.orders[-4:] == ["reload 0", "label 0", "reset all", "resume"]


def _judge(measured: Any, before: Any = None, **changes: Any) -> float:
    return judge_canary(policy(1, **changes), measured, before)


def test_the_canary_agrees_within_its_precision() -> None:
    assert _judge([[-1.00005, -2.0]]) == pytest.approx(5e-5)
    assert _judge([[-1.01, -2.005]], dtype="bfloat16") == pytest.approx(0.01)
    assert judge_canary(Policy(target(0), Path("/p"), (), "float32", "w"), [], None) == 0.0


@pytest.mark.parametrize("dtype", ["bfloat16", "auto"])
async def test_an_engine_that_computes_in_bfloat16_proves_weights_of_float32(dtype: str) -> None:
    """What `auto` means is vLLM's choice, so it may be bfloat16."""
    engine = EngineDouble()
    near = policy(1, logprobs=(-1.005, -2.0))
    with pytest.raises(VersionRefused, match="float32 allows"):
        await _protocol(engine).reload(engine, ServedPolicy(policy(0), 0.0), near)
    protocol = ReloadProtocol(
        HostDouble(engine), "m", recompute_running=False, clock=lambda: 0.0, dtype=dtype
    )
    served, _ = await protocol.reload(engine, ServedPolicy(policy(0), 0.0), near)
    assert served.canary_max_abs_diff == pytest.approx(0.005, abs=1e-5)
    with pytest.raises(VersionRefused, match=f"{dtype} allows"):
        await protocol.reload(engine, served, policy(2, logprobs=(-1.5, -2.0)))


def test_the_precision_of_an_engine_is_that_of_its_kind() -> None:
    def dtype(**given: str) -> str:
        return PolicyEngineSettings(model="m", **given).engine_dtype  # type: ignore[arg-type]

    assert dtype(vllm_dtype="bfloat16") == "float32"
    assert dtype(kind="vllm", vllm_dtype="bfloat16") == "bfloat16"
    assert dtype(kind="attach", engine_url="http://e:1", vllm_dtype="auto") == "auto"


@pytest.mark.parametrize(
    "measured", [[[-1.001, -2.0]], [[-1.0, -2.01]], [[float("nan"), -2.0]], [[-1.0, float("-inf")]]]
)
def test_a_wrong_canary_is_refused(measured: list[list[float]]) -> None:
    with pytest.raises(VersionRefused, match="canary_mismatch"):
        _judge(measured)


def test_scores_that_did_not_move_are_no_proof() -> None:
    with pytest.raises(VersionRefused, match="kept its old weights"):
        _judge([[-1.0, -2.0]], [[-1.0, -2.0]])
    assert _judge([[-1.0, -2.0]], [[-1.0, -2.0000002]]) == 0.0
