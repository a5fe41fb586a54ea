"""`upcycle completion`."""

import sys
from typing import Literal

from upcycle.cli.exits import Exit

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell) -> int:
    """Print a script that completes commands, flags and their values in SHELL.

    bash: `upcycle completion bash > ~/.local/share/bash-completion/completions/upcycle`; zsh: `upcycle
    completion zsh > FOLDER/_upcycle`, with FOLDER in `fpath`; fish: `upcycle completion fish >
    ~/.config/fish/completions/upcycle.fish`. Print it again after an upgrade.

    :param shell: for which shell.
    """
    from upcycle.cli.main import build_app

    sys.stdout.write(build_app().generate_completion(prog_name="upcycle", shell=shell))
    return Exit.OK
