"""`upcycle tasksets import`: data files as tasks files, and what it says of files that are none."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from upcycle import Taskset
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.environment.channel import ChannelServer
from upcycle.environment.loading import load_environment

ENVIRONMENT = """
from upcycle import Environment

env = Environment("quiz")


@env.scenario("ask")
def ask(question: str, answer: str, points: int = 1):
    said = yield question
    yield float(said == answer)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run, with the environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    return tmp_path


def importing(file: str, *options: str) -> int:
    where = () if "--environment" in options else ("--environment", "env.py", "--scenario", "ask")
    return run(["tasksets", "import", file, *where, "-o", "tasks.jsonl", *options])


def test_a_csv_becomes_a_tasks_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = 'uid,q,answer,topic\na,"2\n+ 2",4,sums\nb,3 + 3,6,sums\n'
    (folder / "quiz.csv").write_bytes(b"\xef\xbb\xbf" + rows.encode())
    maps = ("--map", "question=q", "--map", "answer=answer")
    done = importing("quiz.csv", *maps, "--id", "uid", "--family", "topic", "--split", "held_out")
    assert (done, capsys.readouterr().out) == (0, "tasks.jsonl: taskset quiz, 2 tasks, held_out\n")
    written = Taskset.from_file("tasks.jsonl")
    assert [(one.slug, one.family, one.args) for one in written] == [
        ("a", "sums", {"question": "2\n+ 2", "answer": "4"}),
        ("b", "sums", {"question": "3 + 3", "answer": "6"}),
    ]
    assert (written.split, written.environment.name) == ("held_out", "quiz")
    assert Path(written.environment.path).resolve() == folder / "env.py"
    assert importing("quiz.csv", *maps, "--limit", "1", "--overwrite", "--json") == Exit.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], said["tasks"], said["taskset"]) == ("taskset_file", 1, "quiz")


def test_json_lines_keep_their_types(folder: Path) -> None:
    rows = [{"question": "1", "answer": "\u2028", "points": 3, "more": [1]}, {"question": "2", "answer": "2"}]
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (folder / "quiz.jsonl").write_text(lines)
    assert importing("quiz.jsonl", "--name", "mine") == Exit.OK
    written = Taskset.from_file("tasks.jsonl")
    assert written.name == "mine"
    assert [task.args for task in written] == [
        {"question": "1", "answer": "\u2028", "points": 3},
        {"question": "2", "answer": "2"},
    ]


def test_the_scenario_of_a_served_environment(folder: Path) -> None:
    (folder / "quiz.csv").write_text("question,answer,other\n1,2,3\n")

    async def served() -> tuple[int, str]:
        server = await ChannelServer(load_environment(folder / "env.py")).listen("127.0.0.1", 0)
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            options = ("--environment", url, "--scenario", "ask")
            return await asyncio.to_thread(importing, "quiz.csv", *options), url
        finally:
            server.close()

    done, url = asyncio.run(served())
    assert done == Exit.OK
    written = Taskset.from_file("tasks.jsonl")
    assert (written.environment.name, written.environment.url) == ("quiz", url)
    assert [task.args for task in written] == [{"question": "1", "answer": "2"}]


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("quiz.csv", "", (), "quiz.csv has no rows"),
        ("quiz.csv", "question,answer\n", (), "quiz.csv has no rows"),
        ("quiz.csv", "question,anwser\n1,2\n", (), "quiz.csv:2: no column 'answer'; did you mean 'anwser'?"),
        ("quiz.csv", "question;answer\n1;2\n", (), "quiz.csv:2: no column 'question'"),
        ("quiz.csv", 'question,answer\n1,"2\n', (), "quiz.csv:2: not CSV: unexpected end of data"),
        ("quiz.csv", "question,answer\n1\n", (), "quiz.csv:2: not 2 cells"),
        ("quiz.csv", "question,answer,points\n1,2,x\n", (), "quiz.csv:2: ask.points: expected an integer"),
        ("quiz.csv", "question,answer\n1,2\n1,2\n", (), "quiz.csv:3: the same task as quiz.csv:2"),
        ("quiz.csv", "question,answer\n1,2\n", ("--map", "question"), "--map 'question' names no column"),
        ("quiz.csv", "question,answer\n1,2\n", ("--map", "a=b", "--map", "a=c"), "argument 'a' twice"),
        ("quiz.csv", "question,answer\n1,2\n", ("--limit", "-1"), "--limit is -1"),
        ("quiz.jsonl", '{"question": 1}\n{"x"\n', ("--limit", "9"), "quiz.jsonl:1: no column 'answer'"),
        ("quiz.jsonl", '{"question": "1", "answer": "1"}\n{"x"\n', (), "quiz.jsonl:2: not JSON"),
        ("quiz.jsonl", "[1, 2]\n", (), "quiz.jsonl:1: of type list, not an object"),
        ("quiz.jsonl", '{"question": "1", "answer": "1", "points": NaN}', (), "quiz.jsonl:1: ask.points"),
        (
            "quiz.xlsx",
            "PK",
            (),
            "quiz.xlsx: cannot read data from '.xlsx'; give a .csv, .jsonl, .parquet file",
        ),
        ("tasks.jsonl", "{}", (), "tasks.jsonl is there already"),
    ],
)
def test_a_file_that_cannot_be_tasks_is_refused_by_name(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
    options: tuple[str, ...],
    said: str,
) -> None:
    (folder / name).write_text(content)
    assert importing(name, *options) == Exit.USAGE
    assert said in capsys.readouterr().err
    assert (folder / "tasks.jsonl").exists() == (name == "tasks.jsonl")


def test_a_file_in_another_encoding_is_named_with_line_and_byte(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "quiz.csv").write_bytes("question,answer\nune,deux\nété,2\n".encode("latin-1"))
    assert importing("quiz.csv") == Exit.USAGE
    assert "quiz.csv:3:1: byte 0xe9 is not UTF-8" in capsys.readouterr().err


def test_parquet_without_its_reader_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (folder / "quiz.parquet").write_bytes(b"PAR1")
    assert importing("quiz.parquet") == Exit.USAGE
    assert "pip install pyarrow" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "scenario", "said", "status"),
    [
        ("env.txt", "ask", "'env.txt' is no environment", Exit.USAGE),
        ("nowhere.py", "ask", "nowhere.py", Exit.USAGE),
        ("env.py", "aks", "has no scenario 'aks'; it has ask", Exit.USAGE),
        ("tcp://127.0.0.1:1", "ask", "no environment answers at tcp://127.0.0.1:1", Exit.UNREACHABLE),
    ],
)
def test_an_environment_that_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str], environment: str, scenario: str, said: str, status: Exit
) -> None:
    (folder / "quiz.csv").write_text("question,answer\n1,2\n")
    assert importing("quiz.csv", "--environment", environment, "--scenario", scenario) == status
    assert said in capsys.readouterr().err
