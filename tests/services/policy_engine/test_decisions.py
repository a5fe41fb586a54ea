"""What the supervisor decides, with an engine process and a platform that do as the test says."""

from tests.services.policy_engine.supervisor_bench import SupervisorBench
from tests.support.waiting import until

from engine_client import SERVING_STATES, EngineState, EngineUnavailable
from identities.objects import PolicyFolder
from policy_engine.domain import FailureKind, VersionRefused


def refusal(kind: FailureKind, *, may_pass_later: bool) -> VersionRefused:
    return VersionRefused(kind, "because", may_pass_later=may_pass_later)


async def test_an_unknown_model_is_waited_for_by_name() -> None:
    bench = SupervisorBench()
    bench.platform.known = False
    async with bench:
        await bench.rounds(2)
        assert bench.supervisor.facts() is None
        assert "imported" in (bench.supervisor.ready() or "")
        bench.platform.known = True
        await bench.until("ready 0")
        assert bench.supervisor.ready() is None


async def test_the_newest_version_wins_and_those_between_are_skipped() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.wanted = [7, 0]
        bench.supervisor.look_now()
        await bench.until("reloaded 0->7")
        assert bench.platform.fetches == [0, 7]
        assert bench.states[-3:] == [EngineState.READY, EngineState.RELOADING, EngineState.READY]
        assert "keep [7]" in bench.platform.facts


async def test_a_bad_version_is_refused_once_and_the_next_one_taken() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.logprobs[1] = (-5.0, -5.0)
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 canary_mismatch")
        await bench.rounds(5)
        assert bench.platform.facts.count("failed 1 canary_mismatch") == 1
        assert (bench.version(), bench.host.engine.loaded) == (0, 0)
        facts = bench.facts()
        assert facts.state is EngineState.FAILED
        assert facts.state in SERVING_STATES, "the old version serves on"
        assert facts.reason.startswith("canary_mismatch: v1: the engine's log-probabilities are off by")
        bench.platform.wanted = [2, 0]
        await bench.until("reloaded 0->2")
        assert (bench.facts().state, bench.facts().reason) == (EngineState.READY, "")


async def test_a_refusal_is_forgotten_when_the_channel_wants_what_serves() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.refused[1] = refusal(FailureKind.DIGEST_MISMATCH, may_pass_later=False)
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 digest_mismatch")
        bench.platform.wanted = [0]
        await bench.rounds(2)
        assert (bench.facts().state, bench.facts().reason) == (EngineState.READY, "")


async def test_a_fetch_that_fails_is_tried_again() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.refused[1] = refusal(FailureKind.FETCH_FAILED, may_pass_later=True)
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 fetch_failed")
        assert bench.version() == 0
        bench.platform.refused.clear()
        await bench.until("reloaded 0->1")


async def test_at_start_a_bad_newest_version_falls_back_to_head() -> None:
    bench = SupervisorBench()
    bench.platform.wanted = [5, 3, 0]
    bench.platform.refused[5] = refusal(FailureKind.DIGEST_MISMATCH, may_pass_later=False)
    bench.host.broken.add(3)
    async with bench:
        await bench.until("ready 0")
        assert bench.platform.facts[:2] == ["failed 5 digest_mismatch", "failed 3 engine_error"]
        await bench.rounds(2)
        facts = bench.facts()
        assert (facts.state, facts.reason) == (EngineState.FAILED, "digest_mismatch: because")


async def test_a_dead_engine_is_started_on_what_it_served() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.wanted = [4, 0]
        await bench.until("reloaded 0->4")
        bench.platform.wanted = [4, 0]
        bench.host.dead = "killed"
        await bench.until("ready 4")
        assert bench.host.started == [0, 4]
        assert bench.facts().state is EngineState.READY


async def test_an_engine_with_weights_of_somebody_else_leaves_the_lease_and_is_started_again() -> None:
    async with SupervisorBench(prove_s=0.01) as bench:
        await bench.until("ready 0")
        bench.host.engine.off[9], bench.host.engine.loaded = 1.0, 9
        await until(lambda: bench.platform.facts.count("ready 0") == 2, "the engine to be ready again")
        assert (bench.host.started, bench.host.engine.loaded) == ([0, 0], 0)
        (lost,) = bench.while_starting[-1:]
        assert "it computes no more what was proven: v0: the engine's log-probabilities are" in lost.reason
        assert lost.state not in SERVING_STATES


async def test_an_engine_that_somebody_else_paused_is_started_again() -> None:
    async with SupervisorBench(prove_s=0.01) as bench:
        await bench.until("ready 0")
        bench.host.engine.paused = True
        await until(lambda: bench.while_starting, "the lease to be withdrawn")
        bench.host.engine.paused = False
        await until(lambda: bench.facts().state is EngineState.READY, "the engine to be ready again")
        assert bench.while_starting[0].reason.endswith("it was paused by somebody else")


async def test_an_engine_that_is_too_busy_for_a_proof_serves_on() -> None:
    async with SupervisorBench(prove_s=0.01) as bench:
        await bench.until("ready 0")
        named = bench.host.engine.orders.count("label 0")
        bench.host.engine.fails["label"] = EngineUnavailable("busy")
        await bench.rounds(4)
        assert bench.host.started == [0]
        bench.host.engine.fails.clear()
        await bench.rounds(4)
        assert bench.host.engine.orders.count("label 0") > named
        assert not bench.while_starting


async def test_nothing_is_sent_to_an_engine_that_died() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.requests.pin("run-a", 3)
        await _until_held(bench, (3,))
        bench.host.dead = "killed"
        await until(lambda: bench.platform.facts.count("ready 0") == 2, "the engine to be ready again")
        lost = bench.while_starting[0]
        assert lost.state not in SERVING_STATES
        assert (lost.reason, lost.beside.held) == ("the engine to be started again: killed", ())


async def test_an_engine_that_can_go_neither_forth_nor_back_is_restarted() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.host.engine.fails |= dict.fromkeys(("swap", "reload"), EngineUnavailable("it hangs"))
        bench.platform.wanted = [1, 0]
        await until(lambda: len(bench.host.started) > 1, "a second start")
        bench.host.engine.fails.clear()
        assert bench.host.started[:2] == [0, 0]
        await bench.until("reloaded 0->1")


async def test_a_version_that_kills_the_engine_is_not_tried_again_at_once() -> None:
    bench = SupervisorBench(refused_s=60.0)
    async with bench:
        await bench.until("ready 0")
        bench.host.engine.fails |= dict.fromkeys(("swap", "reload"), EngineUnavailable("it died"))
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 engine_error")
        bench.host.engine.fails.clear()
        await until(lambda: bench.platform.facts.count("ready 0") == 2, "the engine to be ready again")
        assert bench.version() == 0


async def test_a_pin_that_failed_for_the_engines_sake_is_tried_again() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.host.engine.fails["hold"] = EngineUnavailable("busy")
        bench.requests.pin("run-a", 3)
        await bench.until("failed 3 engine_error")
        bench.host.engine.fails.clear()
        await _until_held(bench, (3,))


async def test_pins_are_held_while_runs_need_them_and_a_little_longer() -> None:
    async with SupervisorBench(max_held=2) as bench:
        await bench.until("ready 0")
        bench.requests.pin("run-a", 3)
        bench.supervisor.look_now()
        await _until_held(bench, (3,))
        bench.requests.unpin("run-a")
        bench.requests.pin("run-b", 4)
        await _until_held(bench, (3, 4))
        bench.requests.pin("run-c", 5)
        await _until_held(bench, (4, 5))
        assert "drop m@v3" in bench.host.engine.orders
        assert bench.version() == 0


async def test_a_policy_that_still_answers_requests_holds_up_no_promotion() -> None:
    """The supervisor waited for its last request, up to two minutes, and then started the engine anew."""
    async with SupervisorBench(max_held=1) as bench:
        await bench.until("ready 0")
        bench.requests.pin("run-a", 3)
        await _until_held(bench, (3,))
        bench.host.engine.busy.add("m@v3")
        bench.requests.unpin("run-a")
        bench.requests.pin("run-b", 4)
        await until(lambda: bench.facts().beside.failures, "the failure")
        assert "requests with m@v3 have not ended" in bench.facts().beside.failures[PolicyFolder("m", 4)]
        bench.platform.wanted = [7, 0]
        bench.supervisor.look_now()
        await bench.until("reloaded 0->7")
        assert bench.host.engine.orders.count("drop m@v3") == 1
        assert "hold m@v4" not in bench.host.engine.orders, "the engine has no room for it"
        bench.host.engine.busy.clear()
        await _until_held(bench, (4,))
        assert bench.host.started == [0]


async def test_an_engine_that_does_not_drop_a_policy_in_time_keeps_it_and_is_ordered_again() -> None:
    async with SupervisorBench(max_held=1) as bench:
        await bench.until("ready 0")
        bench.requests.pin("run-a", 3)
        await _until_held(bench, (3,))
        bench.host.engine.fails["drop"] = EngineUnavailable("no answer in time")
        bench.requests.unpin("run-a")
        bench.requests.pin("run-b", 4)
        await until(lambda: bench.host.engine.orders.count("drop m@v3") > 1, "another order")
        bench.host.engine.fails.clear()
        await _until_held(bench, (4,))
        assert bench.host.started == [0]


async def test_more_pins_than_places_are_served_in_their_order() -> None:
    async with SupervisorBench(max_held=1) as bench:
        await bench.until("ready 0")
        bench.requests.pin("run-a", 3)
        bench.requests.pin("run-b", 4)
        await _until_held(bench, (3,))
        await bench.rounds(5)
        assert bench.facts().beside.held == (PolicyFolder("m", 3),), "a run in progress keeps its version"
        bench.requests.unpin("run-a")
        await _until_held(bench, (4,))


async def test_a_pin_that_cannot_be_proven_is_not_held() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.logprobs[3] = (-9.0, -9.0)
        bench.requests.pin("run-a", 3)
        bench.supervisor.look_now()
        await bench.until("failed 3 canary_mismatch")
        assert bench.host.engine.orders[-2:] == ["hold m@v3", "drop m@v3"]
        assert bench.facts().beside.held == ()


async def test_a_restarted_engine_gets_its_pins_again() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.requests.pin("run-a", 3)
        bench.supervisor.look_now()
        await _until_held(bench, (3,))
        bench.host.dead = "killed"
        orders = bench.host.engine.orders
        await until(lambda: orders.count("hold m@v3") == 2, "v3 to be loaded into the new engine")
        await _until_held(bench, (3,))


async def test_a_pin_on_a_removed_version_is_refused_once_and_the_others_are_served() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.removed.add(3)
        bench.requests.pin("run-a", 3)
        bench.requests.pin("run-b", 4)
        await _until_held(bench, (4,))
        await bench.rounds(5)
        assert bench.platform.facts.count("failed 3 version_removed") == 1
        assert bench.version() == 0


async def test_holds_are_served_under_their_models_names_and_before_pins() -> None:
    async with SupervisorBench(max_held=2) as bench:
        await bench.until("ready 0")
        twin, other = PolicyFolder("twin", 4), PolicyFolder("other", 5)
        assert bench.requests.hold_only([twin])
        assert not bench.requests.hold_only([twin]), "no news"
        bench.requests.pin("run-a", 3)
        await until(lambda: bench.facts().beside.held == (PolicyFolder("m", 3), twin), "both to be held")
        assert {"hold twin@v4", "hold m@v3"} <= set(bench.host.engine.orders)
        assert (bench.facts().beside.max_held, bench.facts().beside.pinned) == (2, (3,))
        bench.requests.hold_only([twin, other])
        await until(lambda: bench.facts().beside.held == (other, twin), "the hold to take the place")
        bench.requests.hold_only([])
        await until(lambda: PolicyFolder("m", 3) in bench.facts().beside.held, "the pin to be served")


async def test_a_hold_that_cannot_be_served_is_reported_in_the_lease_alone() -> None:
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        bench.platform.logprobs[4] = (-9.0, -9.0)
        twin = PolicyFolder("twin", 4)
        bench.requests.hold_only([twin])
        await until(lambda: "canary_mismatch" in bench.facts().beside.failures.get(twin, ""), "the failure")
        assert bench.facts().beside.held == ()
        assert not [fact for fact in bench.platform.facts if fact.startswith("failed")]
        bench.requests.hold_only([])
        await until(lambda: not bench.facts().beside.failures, "the failure to go with its hold")


async def _until_held(bench: SupervisorBench, versions: tuple[int, ...]) -> None:
    def held() -> bool:
        facts = bench.supervisor.facts()
        return facts is not None and tuple(one.version for one in facts.beside.held) == versions

    await until(held, f"{versions} to be held")


async def test_a_supervisor_that_stops_lets_the_engine_finish_what_it_samples() -> None:
    bench = SupervisorBench()
    async with bench:
        await bench.until("ready 0")
    assert bench.host.engine.orders[-2:] == ["drain 10", "stop"]
    assert bench.states[-1] is EngineState.STOPPING


async def test_an_engine_is_watched_also_where_something_is_wanted_all_the_time() -> None:
    """Rounds that are shorter than the time between two looks at the engine."""
    async with SupervisorBench() as bench:
        await bench.until("ready 0")
        await bench.rounds(20)
        assert bench.host.watches == 1
        bench.host.dead = "gone"
        await until(lambda: bench.host.started == [0, 0], "another start")


async def test_an_engine_that_keeps_its_weights_is_started_again_for_others_and_holds_again() -> None:
    bench = SupervisorBench()
    bench.host.keeps_weights = True
    async with bench:
        await bench.until("ready 0")
        bench.requests.pin("run", 3)
        await _until_held(bench, (3,))
        bench.platform.wanted = [1, 0]
        await bench.until("ready 1")
        orders = bench.host.engine.orders
        begun = orders.index("drain 10")
        assert orders[begun : begun + 3] == ["drain 10", "stop", "label 1"]
        assert bench.host.started == [0, 1]
        assert "v1 to be served by a new process" in bench.while_starting[-1].reason
        await until(lambda: orders.count("hold m@v3") == 2, "the version to be held by the new process")


async def test_a_bad_version_for_an_engine_that_keeps_its_weights_leaves_the_old_one_serving() -> None:
    bench = SupervisorBench()
    bench.host.keeps_weights = True
    async with bench:
        await bench.until("ready 0")
        bench.platform.logprobs[1] = (-5.0, -5.0)
        bench.platform.wanted = [1, 0]
        await bench.until("failed 1 canary_mismatch")
        await until(lambda: bench.host.started == [0, 1, 0], "a start on what served")
        await until(lambda: bench.facts().state is EngineState.FAILED, "its lease to say why")
        assert bench.version() == 0
        await bench.rounds(5)
        assert bench.host.started == [0, 1, 0]
