"""`upcycle completion`."""

import re
import sys
from typing import Final, Literal

from upcycle.cli.exits import Exit

Shell = Literal["bash", "zsh", "fish"]
_FILES: Final = 'COMPREPLY=( $(compgen -f -- "${cur}") )'
_FUNCTION: Final = "-F _upcycle upcycle"


def completion(shell: Shell) -> int:
    """Print a script that completes commands, flags and their values in SHELL; bash offers files elsewhere.

    bash: `upcycle completion bash > ~/.local/share/bash-completion/completions/upcycle`; zsh: `upcycle
    completion zsh > FOLDER/_upcycle`, with FOLDER in `fpath`; fish: `upcycle completion fish >
    ~/.config/fish/completions/upcycle.fish`. Print it again after an upgrade.

    :param shell: for which shell.
    """
    from upcycle.cli.main import build_app

    script = build_app().generate_completion(prog_name="upcycle", shell=shell)
    sys.stdout.write(_for_bash(script) if shell == "bash" else script)
    return Exit.OK


def _for_bash(script: str) -> str:
    """Where nothing is offered, readline completes names of files as it does for any program; also for paths,
    for which `compgen -f` knows neither `~`, nor spaces, nor a `/` behind a folder."""
    script = script.replace(_FILES, "COMPREPLY=()")
    for flag, values in _values().items():
        offered = f'COMPREPLY=( $(compgen -W "{" ".join(values)}" -- "${{cur}}") )'
        script = re.sub(rf"(^ *{flag}\)\n *)COMPREPLY=\(\)$", rf"\1{offered}", script, flags=re.MULTILINE)
    return script.replace(f"complete {_FUNCTION}", f"complete -o bashdefault -o default {_FUNCTION}")


def _values() -> dict[str, tuple[str, ...]]:
    """Of flags whose words are refused by more than a list: with the nearest, or with what is missing."""
    from upcycle.external.naming import NAMES
    from upcycle.projects.writing import PRESETS
    from upcycle.shipped import BENCHMARKS

    return {"--agent": NAMES, "--benchmark": tuple(BENCHMARKS), "--preset": PRESETS}
