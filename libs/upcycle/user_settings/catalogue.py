"""Every setting of a user but the fields of a run: key in a file, environment variable, default, help."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

KEYS: Final = "keys"
"""The table of the profile that holds keys, by the names of their variables."""
SECRETS: Final = "secrets"
"""The table of the profile that holds secrets of MCP servers, by name."""
RUN_TABLES: Final = ("eval", "train")
"""Tables with fields of a run."""
PROFILE: Final = "UPCYCLE_PROFILE"
"""Names the user's profile; set and empty: there is none."""
PROJECT: Final = "UPCYCLE_PROJECT"
"""Names the project's file; set and empty: there is none."""


class ValueKind(StrEnum):
    """What the value is. A path of a file begins at the folder of the file."""

    TEXT = "text"
    NUMBER = "a whole number"
    PATH = "a path"


@dataclass(frozen=True, slots=True)
class UserSetting:
    """key: `table.name` in a file. only_profile: a project's file may not have it: it is a key, or says where
    one is sent."""

    key: str
    variable: str
    help: str
    default: str = ""
    kind: ValueKind = ValueKind.TEXT
    only_profile: bool = False
    words: tuple[str, ...] = ()

    @property
    def is_secret(self) -> bool:
        """Its value is shown nowhere."""
        return self.key.startswith((f"{KEYS}.", f"{SECRETS}."))

    def hides(self, value: str) -> bool:
        """Whether a value is one to show nowhere: a key, or a URL with a password."""
        return self.is_secret or "@" in value


DEFAULT_PORTS: Final[Mapping[str, int]] = {
    "tasksets": 7101,
    "environments": 7101,
    "trajectories": 7105,
    "training": 7106,
    "registry": 7107,
    "gateway": 7180,
}
"""Of the services at `platform.host`, by public address."""
HOST: Final = "platform.host"


def _key(variable: str, text: str) -> UserSetting:
    return UserSetting(f"{KEYS}.{variable}", variable, text, only_profile=True)


_PEERS: Final = tuple(
    UserSetting(f"platform.{peer}", f"UPCYCLE_PEERS_{peer.upper()}", f"host:port of the platform's {peer}.")
    for peer in DEFAULT_PORTS
)
SETTINGS: Final = (
    UserSetting(HOST, "UPCYCLE_PLATFORM_HOST", "host of a platform whose services have their default ports."),
    *_PEERS,
    UserSetting(
        "agents.claude_model", "UPCYCLE_CLAUDE_MODEL", "model of the agent `claude`.", "claude-sonnet-4-5"
    ),
    UserSetting("agents.openai_model", "UPCYCLE_OPENAI_MODEL", "model of the agent `openai`.", "gpt-5"),
    UserSetting(
        "agents.gemini_model", "UPCYCLE_GEMINI_MODEL", "model of the agent `gemini`.", "gemini-2.5-pro"
    ),
    UserSetting("agents.prices", "UPCYCLE_AGENT_PRICES", "MODEL=READ/WRITTEN,… of a million tokens."),
    UserSetting(
        "agents.anthropic_url",
        "ANTHROPIC_BASE_URL",
        "server in Anthropic's place.",
        "https://api.anthropic.com",
        only_profile=True,
    ),
    UserSetting(
        "agents.openai_url",
        "OPENAI_BASE_URL",
        "server in OpenAI's place.",
        "https://api.openai.com/v1",
        only_profile=True,
    ),
    UserSetting(
        "agents.gemini_url",
        "GEMINI_BASE_URL",
        "server in Gemini's place.",
        "https://generativelanguage.googleapis.com",
        only_profile=True,
    ),
    UserSetting("judge.model", "UPCYCLE_JUDGE", "judge of graders that name none.", only_profile=True),
    UserSetting("up.model", "UPCYCLE_UP_MODEL", "slug that `upcycle up` serves."),
    UserSetting(
        "up.model_dir", "UPCYCLE_UP_MODEL_DIR", "directory that it is imported from.", kind=ValueKind.PATH
    ),
    UserSetting(
        "up.engine",
        "UPCYCLE_UP_ENGINE",
        "engine of `upcycle up`.",
        "embedded",
        words=("embedded", "vllm-cpu"),
    ),
    UserSetting(
        "up.data_dir",
        "UPCYCLE_UP_DATA_DIR",
        "data of `upcycle up`; commands look there for its platform.",
        ".upcycle/up",
        kind=ValueKind.PATH,
    ),
    UserSetting(
        "up.port_offset",
        "UPCYCLE_UP_PORT_OFFSET",
        "added to every default port of `upcycle up`.",
        "0",
        kind=ValueKind.NUMBER,
    ),
    _key("UPCYCLE_API_KEY", "key of the platform's gateway."),
    _key("UPCYCLE_OPERATOR_KEY", "the platform's operator's key, for every command."),
    _key("UPCYCLE_USER_KEY", "your key of the platform, where you are not its operator."),
    _key("UPCYCLE_AGENT_KEY", "key of the server of openai:URL#model."),
    _key("UPCYCLE_JUDGE_KEY", "key of the judge's server."),
    _key("ANTHROPIC_API_KEY", "key of the agent `claude`."),
    _key("OPENAI_API_KEY", "key of the agent `openai`."),
    _key("GEMINI_API_KEY", "key of the agent `gemini`."),
    _key("GOOGLE_API_KEY", "key of the agent `gemini`, where GEMINI_API_KEY is not set."),
)
BY_KEY: Final[Mapping[str, UserSetting]] = {one.key: one for one in SETTINGS}
BY_VARIABLE: Final[Mapping[str, UserSetting]] = {one.variable: one for one in SETTINGS}
TABLES: Final = (*dict.fromkeys(key.partition(".")[0] for key in BY_KEY), SECRETS, *RUN_TABLES)
OWN_PREFIXES: Final = ("UPCYCLE_UP_", *(f"UPCYCLE_{table.upper()}_" for table in RUN_TABLES))
"""Variables with these beginnings are settings, and nothing else."""
