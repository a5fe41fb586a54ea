"""Which runs of the registry watch the demo's head, and when the watch has played its pairs."""

from checkpoint_registry.settings import CheckpointRegistrySettings
from local_demo.head_watch import WATCH_PAIRS, WATCH_SETTINGS, is_watch_over, pairs_played, watch_runs
from upcycle.api.taskset.v1 import taskset_pb2 as ts


def run(
    settled: int = 100,
    *,
    label: str = "watch incident@v14 against v7",
    state: "ts.RunState.ValueType" = ts.RUN_STATE_COMPLETED,
) -> ts.Run:
    counts = ts.RunCounts(requested=100, settled=settled)
    return ts.Run(spec=ts.RunSpec(label=label), state=state, counts=counts)


def test_what_the_demo_sets_are_settings_of_the_registry() -> None:
    prefix = str(CheckpointRegistrySettings.model_config["env_prefix"])
    names = {name.removeprefix(prefix).lower() for name in WATCH_SETTINGS}
    assert names == {"watch_pairs", "watch_trickle_s"} <= set(CheckpointRegistrySettings.model_fields)


def test_runs_that_watch_a_head_have_its_version_in_their_label() -> None:
    mine = run()
    others = ("watch incident@v7 against v0", "gate incident@v14 against v7", "watch", "", "watch incident@v")
    assert watch_runs([*(run(label=label) for label in others), mine], 14) == [mine]


def test_the_watch_is_over_once_all_pairs_are_played() -> None:
    assert not is_watch_over([])
    assert not is_watch_over([run()])
    assert is_watch_over([run(), run()])
    assert pairs_played([run(), run()]) == WATCH_PAIRS


def test_pairs_of_a_run_that_goes_on_or_failed_do_not_count() -> None:
    failed, going = run(state=ts.RUN_STATE_FAILED), run(100, state=ts.RUN_STATE_RUNNING)
    assert not is_watch_over([run(), failed])
    assert pairs_played([run(), going]) == 50
    assert not is_watch_over([run(), run(), going])
    assert is_watch_over([failed, run(), run()])
