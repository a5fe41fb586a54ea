"""Checks this project without the platform: one line per check. Exit status 1 when one fails.

python .agents/skills/upcycle-environment/scripts/check.py
"""

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[4]
LIMIT_S = 600
UPCYCLE = [sys.executable, "-c", "from upcycle.cli.main import main; main()"]
CHECKS = {
    "tasks are read": [*UPCYCLE, "eval", "tasks.py", "model", "--dry-run"],
    "gold answers earn everything, cheats nothing": [*UPCYCLE, "check", "tasks.py"],
    "the reference player solves a task": [*UPCYCLE, "play", "tasks.py", "--script", "player.py", "--json"],
    "the tests pass": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_environment.py"],
}


def problem(command: list[str]) -> str:
    """What a check says is wrong; empty where nothing is."""
    try:
        done = subprocess.run(
            command, cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {LIMIT_S} s"
    if done.returncode:
        return (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"
    if "--script" in command and not (played := json.loads(done.stdout))["success"]:
        return (
            f"it earned {played['reward']} of {played['task']['slug']} by answering {played['answer']!r:.200}"
        )
    return ""


if __name__ == "__main__":
    failed = 0
    for name, command in CHECKS.items():
        wrong = problem(command)
        failed += bool(wrong)
        print(f"{'failed' if wrong else 'ok'}: {name}", *wrong.splitlines(), sep="\n    ", flush=True)
    sys.exit(1 if failed else 0)
