"""`upcycle eval MODEL --agent "cmd: …"`: a program that plays, in front of a gateway that counts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_servers import KEY, MODEL, Asked, ModelServerDouble, Said, openai_shaped, serving
from tests.support.model_servers import Turn as Reply

from upcycle.cli.main import run
from upcycle.external import command_agent
from upcycle.external.command_agent import prompt_text
from upcycle.platform import PEERS

ASKS = """
import json, os, sys, urllib.request
prompt = sys.stdin.read()
assert prompt == os.environ["UPCYCLE_PROMPT"], prompt
body = {"model": os.environ["UPCYCLE_MODEL"], "messages": [{"role": "user", "content": prompt}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


class CountingGateway:
    """Answers 3 to each question, and keeps rewards of sessions that asked something."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.rewards: dict[str, Any] = {}
        self._answer = openai_shaped(lambda results: Reply("3"))

    def __call__(self, asked: Asked) -> Said:
        parts = asked.path.strip("/").split("/")
        if parts[0] == "s":
            self.sessions.add(parts[1])
            return self._answer(Asked(asked.method, f"/{'/'.join(parts[2:])}", asked.headers, asked.body))
        if parts[-1] == "reward":
            if parts[2] not in self.sessions:
                return Said(404, {"error": {"code": "session_not_found"}})
            self.rewards[parts[2]] = asked.body
            said = {"trajectory_id": f"traj-{parts[2]}", "run_id": "sessions-key"}
            return Said(200, said)
        return self._answer(asked)


@pytest.fixture
def counting(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingGateway]:
    gateway = CountingGateway()
    with serving(gateway) as server:
        assert isinstance(server, ModelServerDouble)
        for peer in PEERS:
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", server.url.removeprefix("http://"))
        monkeypatch.setenv("UPCYCLE_API_KEY", KEY)
        yield gateway


def agent(folder: Path, source: str) -> str:
    (folder / "agent.py").write_text(source)
    return f"cmd: {sys.executable} agent.py"


def last(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_each_episode_is_a_session_with_its_reward(
    counting: CountingGateway, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = agent(shop, ASKS)
    assert run(["eval", "tasks.py", MODEL, "--agent", command, "--group", "2", "--json"]) == 0
    done = last(capsys)
    assert done["reward_mean"] == 0.5
    assert len(counting.sessions) == len(counting.rewards) == 4
    given = list(counting.rewards.values())
    assert sorted((one["score"], one["success"]) for one in given) == [(0, False)] * 2 + [(1, True)] * 2
    assert {(one["group"], one["split"]) for one in given} == {(done["run_id"], "unassigned")}
    assert sorted(done["sessions"]["graded"]) == sorted(f"traj-{one}" for one in counting.sessions)
    assert done["sessions"]["run_id"] == "sessions-key"


def test_an_agent_that_asks_nothing_is_evaluated_and_the_result_says_that_it_is_not_recorded(
    counting: CountingGateway, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "tasks.py", MODEL, "--agent", agent(shop, "print(3)"), "--json"]) == 0
    done = last(capsys)
    assert (done["reward_mean"], done["sessions"]["graded"]) == (0.5, [])
    assert done["sessions"]["left"] == {"the agent asked the model nothing": 2}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (ASKS + "\nprint('no luck', file=sys.stderr); sys.exit(3)", "ended with status 3: no luck"),
        ("import time; time.sleep(60)", "did not end within 1.5 s"),
        (f"print('x' * {2 << 20})", "at most 1048576 are an answer"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "at most 1048576 are an answer"),
        (
            "import os, sys; sys.stderr.write(os.environ['OPENAI_API_KEY'] + 'y' * 495); sys.exit(3)",
            "3: [key]yyy",
        ),
    ],
)
def test_an_agent_that_fails_makes_its_episode_missing_and_no_reward_of_0(
    counting: CountingGateway,
    shop: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    words: str,
) -> None:
    if "sleep" in source:
        monkeypatch.setattr(command_agent, "COMMAND_S", 1.5)
    run(["eval", "tasks.py", MODEL, "--agent", agent(shop, source), "--json"])
    done = last(capsys)
    assert done["coverage"]["num_graded"] == 0
    said = json.dumps(done["failures"])
    assert words in said
    assert KEY[-5:] not in said, "nor the half of a key that stood before what is shown"
    assert counting.rewards == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([MODEL, "--agent", "cmd:"], "names no command"),
        ([MODEL, "--agent", "cmd: no-such-program"], "there is no program 'no-such-program'"),
        ([MODEL, "--agent", "cmd: 'open"], "cannot be read"),
        (["--agent", "cmd: true"], "MODEL missing"),
        ([MODEL, "--agent", "cmd: true", "--temperature", "0"], "--temperature is for models"),
        ([MODEL, "--agent", "cmd: true", "--gateway"], "--gateway is for models"),
        (["other", "--agent", "cmd: true"], "serves no model 'other'"),
    ],
)
def test_what_cannot_be_played_is_refused_before_any_work(
    counting: CountingGateway, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["eval", "tasks.py", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert counting.sessions == set()


def test_a_prompt_of_messages_is_one_text() -> None:
    image = {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url"}]}
    assert prompt_text([{"role": "system", "content": "be brief"}, image]) == "be brief\n\nlook"
