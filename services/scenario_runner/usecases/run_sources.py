"""The code that judges a run: kept at submit, refused where a tool needs more time than an episode has, or
where it gives no guidance, or makes no new tasks, that the run asks for."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scenario_runner.domain.difficulty import is_number
from scenario_runner.domain.environments import EnvironmentDescription, EnvironmentSource
from service_kit.errors import InvalidRequest
from upcycle.environment.server_secrets import REFERENCE_BEGINS
from upcycle.environment.source_files import SourceFiles
from upcycle.run_config.names import ON_FAILURE
from upcycle.run_config.self_play import Roles

FilesNow = Callable[[EnvironmentSource], Awaitable[SourceFiles | None]]
Describe = Callable[[EnvironmentSource], Awaitable[EnvironmentDescription]]
KeepRunSource = Callable[[EnvironmentSource, int], Awaitable[str]]
"""Of an environment and the episodes' deadline in seconds: the digest of the kept source."""
ScenariosCheck = Callable[[EnvironmentSource, Sequence[str]], Awaitable[None]]
"""Of an environment and the scenarios that a run plays."""
ArgumentCheck = Callable[[EnvironmentSource, Sequence[str], str], Awaitable[None]]
"""Of an environment, the scenarios that a run plays, and the argument that says how hard their tasks are."""
OpensCheck = Callable[[EnvironmentSource], Awaitable[object]]
"""Of an environment: loads it, or connects to it. Raises EnvironmentBroken."""

SecretsCheck = Callable[[EnvironmentDescription], Awaitable[None]]
"""Raises EnvironmentBroken where secrets that it names are not set."""

_DECLARES_A_LIMIT: Final = b"timeout_s"


async def no_check(environment: EnvironmentDescription) -> None:
    """Of a planner without a store of secrets."""


class KeepSource:
    """Pack the code that judges a run's episodes, as it lies there now; the run keeps it until its end."""

    def __init__(
        self,
        files_now: FilesNow,
        keep: Callable[[SourceFiles], Awaitable[None]],
        describe: Describe,
        has_secrets: SecretsCheck = no_check,
    ) -> None:
        """files_now: of an environment, None for one that is served elsewhere; raises EnvironmentBroken.
        describe: loads it; asked only about a source that gives a tool a limit of its own, or names a
        secret."""
        self._files_now = files_now
        self._keep = keep
        self._describe = describe
        self._has_secrets = has_secrets

    async def __call__(self, source: EnvironmentSource, deadline_s: int) -> str:
        """Its digest, "" where it is not known. Raises EnvironmentBroken, also where a secret is missing,
        Unavailable, and InvalidRequest for a tool that may take longer than an episode."""
        files = await self._files_now(source)
        if files is None:
            return ""
        if any(_DECLARES_A_LIMIT in content for content in files.files.values()):
            _refuse_long_tools(await self._describe(source), deadline_s)
        if any(REFERENCE_BEGINS in content for content in files.files.values()):
            await self._has_secrets(await self._describe(source))
        await self._keep(files)
        return files.digest


class CheckGuidance:
    """Refuse a run with guidance over an environment of which a scenario declares none."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    async def __call__(self, source: EnvironmentSource, scenarios: Sequence[str]) -> None:
        """scenarios: that the run plays. Raises EnvironmentBroken, InvalidRequest."""
        environment = await self._describe(source)
        without = sorted(set(scenarios) - environment.guided)
        if without:
            raise InvalidRequest(
                f"spec.training.guidance is {ON_FAILURE!r}, and of environment {environment.name!r} the "
                f"scenario {without[0]!r} declares none: write @{without[0]}.guidance in its file, or leave "
                "the option out"
            )


class CheckGenerators:
    """Refuse a run with new tasks over an environment of which a scenario declares no generator."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    async def __call__(self, source: EnvironmentSource, scenarios: Sequence[str]) -> None:
        """scenarios: that the run plays. Raises EnvironmentBroken, InvalidRequest."""
        environment = await self._describe(source)
        without = sorted(set(scenarios) - environment.generating)
        if without:
            raise InvalidRequest(
                f"spec.training.new_tasks is set, and of environment {environment.name!r} the scenario "
                f"{without[0]!r} declares no generator: write @{without[0]}.generator in its file, or leave "
                "the option out"
            )


class CheckDifficulty:
    """Refuse a run that chooses new tasks by an argument that is no number, or none of a scenario."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    async def __call__(self, source: EnvironmentSource, scenarios: Sequence[str], argument: str) -> None:
        """scenarios: that the run plays. Raises EnvironmentBroken, InvalidRequest."""
        environment = await self._describe(source)
        for name in sorted(set(scenarios)):
            schema = environment.scenarios.get(name, {})
            if not is_number(schema, argument):
                there = ", ".join(one for one in schema.get("properties", {}) if is_number(schema, one))
                raise InvalidRequest(
                    f"spec.training.new_tasks_difficulty is {argument!r}, and of environment "
                    f"{environment.name!r} the scenario {name!r} takes no number of that name (numbers: "
                    f"{there or 'none'}): name an argument that says how hard a task is, or leave the "
                    "option out"
                )


class CheckProposers:
    """Refuse a run that plays against itself over an environment of which no scenario proposes tasks of the
    other."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    async def __call__(self, source: EnvironmentSource, roles: Roles) -> None:
        """Raises EnvironmentBroken, InvalidRequest."""
        environment = await self._describe(source)
        declared = environment.proposers
        if declared.get(roles.solver) != roles.proposer:
            pairs = ", ".join(f"{proposer}:{solver}" for solver, proposer in sorted(declared.items()))
            raise InvalidRequest(
                f"spec.training.self_play is '{roles.proposer}:{roles.solver}', and environment "
                f"{environment.name!r} declares {pairs or 'no scenario that proposes tasks of another'}: "
                f"write @{roles.solver}.proposed_by({roles.proposer}) in its file, or leave the option out"
            )
        if roles.order > 1 and roles.solver not in environment.left_overs:
            raise InvalidRequest(
                f"spec.training.self_play_order is {roles.order}, and of environment "
                f"{environment.name!r} the scenario {roles.solver!r} does not say "
                f"what a failed attempt leaves: write @{roles.solver}.left_over in its file, or leave the "
                "option out"
            )


async def _unknown_proposers(source: EnvironmentSource, roles: Roles) -> None:
    pass


async def _unknown_argument(source: EnvironmentSource, scenarios: Sequence[str], argument: str) -> None:
    pass


async def _unknown_scenarios(source: EnvironmentSource, scenarios: Sequence[str]) -> None:
    pass


async def _unknown_opening(source: EnvironmentSource) -> None:
    pass


async def _unknown_source(source: EnvironmentSource, deadline_s: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class SourceChecks:
    """What is asked of the environments of a run at its submission. keep: see KeepSource. guides: see
    CheckGuidance. opens: asked of each environment of a run that plays several. generates: see
    CheckGenerators. proposes: see CheckProposers. has_difficulty: see CheckDifficulty."""

    keep: KeepRunSource = _unknown_source
    guides: ScenariosCheck = _unknown_scenarios
    opens: OpensCheck = _unknown_opening
    generates: ScenariosCheck = _unknown_scenarios
    proposes: Callable[[EnvironmentSource, Roles], Awaitable[None]] = _unknown_proposers
    has_difficulty: ArgumentCheck = _unknown_argument


UNKNOWN_SOURCES: Final = SourceChecks()
"""Of a planner that cannot read where environments lie, nor load them."""


def _refuse_long_tools(environment: EnvironmentDescription, deadline_s: int) -> None:
    for tool in environment.tools:
        limit_s = tool.timeout_s
        if limit_s is not None and limit_s > deadline_s:
            raise InvalidRequest(
                f"tool {tool.name!r} of environment {environment.name!r} may take {limit_s:g} s (its "
                f"timeout_s), and an episode of this run ends after {deadline_s} s: set "
                f"spec.episode_deadline_s to {int(limit_s) + 60} or so, or give the tool a shorter timeout_s"
            )
