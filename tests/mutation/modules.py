"""Which files hold each module that is mutated, and which tests must notice when one of them is wrong."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Module:
    """sources: files below services/ or libs/. tests: files below tests/, of which the plain tests run:
    neither properties nor tests with a server."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def packages(self) -> list[str]:
        """The packages that are imported with a mutant in them."""
        return sorted({source.split("/")[0] for source in self.sources})


_PLANNER = "services/scenario_runner"
_TRAINER = "services/grpo_trainer/runs"
_REGISTRY = "services/checkpoint_registry"

MODULES = {
    "planner": Module(
        (
            "scenario_runner/domain/plan.py",
            "scenario_runner/domain/runs.py",
            "scenario_runner/domain/sources.py",
            "scenario_runner/domain/learning.py",
        ),
        (
            f"{_PLANNER}/test_decisions.py",
            f"{_PLANNER}/test_planning.py",
            f"{_PLANNER}/test_sources.py",
            f"{_PLANNER}/test_nothing_to_learn.py",
        ),
    ),
    "ledger": Module(
        ("trajectory_store/domain/ledger.py", "trajectory_store/domain/facts.py"),
        ("services/trajectory_store/test_ledger_fold.py", "services/trajectory_store/test_ledger_rows.py"),
    ),
    "groups": Module(("grpo_trainer/runs/groups.py",), (f"{_TRAINER}/test_groups.py",)),
    "batches": Module(
        ("grpo_trainer/runs/batches.py", "grpo_trainer/domain/steps.py"), (f"{_TRAINER}/test_batches.py",)
    ),
    "settlement": Module(
        (
            "grpo_trainer/domain/settled.py",
            "grpo_trainer/domain/offers.py",
            "grpo_trainer/domain/trajectories.py",
        ),
        (f"{_TRAINER}/test_settlement.py", f"{_TRAINER}/test_offers.py"),
    ),
    "retention": Module(("checkpoint_registry/domain/retention.py",), (f"{_REGISTRY}/test_retention.py",)),
    "gate": Module(
        (
            "checkpoint_registry/domain/pairs.py",
            "checkpoint_registry/domain/gate.py",
            "checkpoint_registry/domain/evidence.py",
        ),
        (f"{_REGISTRY}/test_looks.py", f"{_REGISTRY}/test_gate_missing.py", f"{_REGISTRY}/test_evidence.py"),
    ),
    "reward_parsing": Module(("reward_grader/domain.py",), ("services/reward_grader/test_rewards.py",)),
    "chat_parsing": Module(("upcycle/harness/parsing.py",), ("libs/upcycle/test_parse_turn.py",)),
}
