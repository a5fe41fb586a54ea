"""Flags of `upcycle eval` for agents that play in this process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyclopts import Parameter

from upcycle.external.naming import is_external
from upcycle.run_config.reading import Sources
from upcycle.runtimes import no_platform


@Parameter(name="*", group="Agents of others")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalFlags:
    """Who plays, where it is no model of the platform."""

    agent: str = ""
    """instead of MODEL: openai:URL#model for any OpenAI-compatible server (key in UPCYCLE_AGENT_KEY),
    openai:URL for one that serves one model, or a name such as claude. It plays in this process. Beside
    MODEL: "cmd: python my_agent.py", a program that asks MODEL through the gateway and prints its answer."""
    gateway: bool = False
    """play here, through the platform's gateway: a registered model, `provider/name` of a provider behind
    it, or claude, openai, gemini or openai_compatible, where it has one such model."""
    runtime: str = ""
    """where the environments run: forked (a process an episode, the default), in-process, or the
    tcp://host:port of one that is served."""
    trajectories: Path | None = None
    """file for what was said, a JSON line an episode. Default .upcycle/evaluations/RUN/trajectories.jsonl."""

    def is_asked(self, given: Sources) -> bool:
        """Whether the platform's planner has nothing to do with it. Raises RuntimeRefused for a runtime
        where it has."""
        model = given.value("policy.model") or ""
        is_ours = bool(self.agent or self.gateway or self.trajectories or is_external(model))
        if self.runtime and not is_ours:
            raise no_platform(self.runtime)
        return is_ours


NO_EXTERNAL: Final = ExternalFlags()
