"""Builds what environments run in: forked processes in cells, and servers that are reached by TCP."""

import logging
from pathlib import Path
from typing import Final

from scenario_runner.adapters.cell import CellRules, lacking
from scenario_runner.adapters.forked_host import FindSecrets, ForkedHost, no_secrets
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygote_pool import FindSource
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.domain.environments import EpisodeTimeouts
from scenario_runner.settings import NAME, ScenarioRunnerSettings

log = logging.getLogger(__name__)

_SQLITE_ENDS: Final = ("", "-wal", "-shm", "-journal")


def build_hosts(
    settings: ScenarioRunnerSettings, find_source: FindSource, find_secrets: FindSecrets = no_secrets
) -> Hosts:
    """Where environments run."""
    timeouts = EpisodeTimeouts(
        start_s=settings.start_timeout_s,
        tool_s=settings.tool_timeout_s,
        grade_s=settings.grade_timeout_s,
        tool_result_bytes=settings.tool_result_bytes,
    )
    limits = Limits(
        address_space_bytes=settings.memory_bytes,
        file_size_bytes=settings.file_bytes,
        cpu_s=settings.cpu_s,
        extra_processes=settings.extra_processes,
        uid=settings.uid,
    )
    options = ZygoteOptions(
        limits,
        max_children=settings.max_environments,
        start_timeout_s=settings.import_timeout_s,
        fork_timeout_s=settings.start_timeout_s,
        environment_variables=settings.environment_variables,
        cell=cell_rules(settings),
    )
    forked = ForkedHost(options, timeouts, find_source=find_source, find_secrets=find_secrets)
    return Hosts(forked, TcpHost(timeouts))


def cell_rules(settings: ScenarioRunnerSettings) -> CellRules:
    """Of the operator. Says in the log what this machine cannot hold back."""
    if settings.cell != "off" and (missing := lacking()):
        deployed = "refused" if settings.cell == "enforced" else "played"
        log.warning("cell_incomplete", extra={"missing": ", ".join(missing), "deployed": deployed})
    return CellRules(
        mode=settings.cell,
        files=tuple(map(str, settings.cell_files)),
        folders=tuple(map(str, settings.cell_folders)),
        ports=settings.cell_ports,
        hidden=(*map(str, settings.cell_hidden), *_own_files(settings)),
    )


def _own_files(settings: ScenarioRunnerSettings) -> list[str]:
    """The keys of secrets, the password of its database, and its SQLite database; none on a server."""
    named = [settings.secrets_key_file, *settings.secrets_old_key_files, settings.sql.password_file]
    key = [str(file) for file in named if file is not None]
    scheme, _, path = settings.sql.url_for(NAME).partition(":///")
    if scheme != "sqlite":
        return key
    return [*key, str(Path(path).parent), *(f"{path}{end}" for end in _SQLITE_ENDS)]
