"""Which variables hold keys. No process of an environment has them, and none reads the user's profile."""

import os
from collections.abc import Mapping
from typing import Final

from upcycle.user_settings.catalogue import PROFILE

AGENT_KEY: Final = "UPCYCLE_AGENT_KEY"
KEY_VARIABLES: Final = (
    AGENT_KEY,
    "UPCYCLE_API_KEY",
    "UPCYCLE_JUDGE_KEY",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "UPCYCLE_OPERATOR_KEY",
    "UPCYCLE_USER_KEY",
    "UPCYCLE_ACCESS_SERVICE_KEY",
    "UPCYCLE_ACCESS_OPERATOR_KEY",
    "UPCYCLE_ACCESS_USER_KEYS",
    "MODEL_GATEWAY_BOOTSTRAP_KEY",
    "REWARD_GRADER_JUDGE_KEY",
    "REWARD_GRADER_JUDGES",
)
HIDDEN: Final = "[key]"


def without_keys(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that plays an environment."""
    return {name: value for name, value in variables.items() if name not in KEY_VARIABLES} | {PROFILE: ""}


def forget_keys() -> None:
    """Remove the keys from this process, which plays an environment from here on."""
    for name in KEY_VARIABLES:
        os.environ.pop(name, None)
    os.environ[PROFILE] = ""


MIN_KEY_CHARS: Final = 12
"""A shorter key is a word that a local server wants to see, such as `test`: it stands in honest answers."""


def hidden(text: str, key: str) -> str:
    """The text without the key: a server may repeat it in what it refuses."""
    return text.replace(key, HIDDEN) if key else text


def hidden_in_answer(text: str, key: str) -> str:
    """An answer without the key, where it is long enough to be a secret."""
    return hidden(text, key) if len(key) >= MIN_KEY_CHARS else text
