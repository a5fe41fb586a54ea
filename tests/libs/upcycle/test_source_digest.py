"""source_digest: an edit of what judges changes it, an edit of anything else does not."""

import os
from pathlib import Path

import pytest

from upcycle.environment import Environment
from upcycle.environment.source_files import SourceLimits, read_source, source_digest
from upcycle.errors import DefinitionError, SourceRefused

ENV = "from upcycle import Environment\nimport helper\nenv = Environment('shop')\n"


def write(folder: Path, **files: str) -> Path:
    """Files by stem or, with `__` for a slash, by path; the environment's file is env.py."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py".replace("/init.py", "/__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "env.py"


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment whose helper imports a module of a folder."""
    helper = "from rules import prices\nimport rules.taxes as taxes\n"
    return write(
        tmp_path / "a",
        env=ENV,
        helper=helper,
        rules__init="",
        rules__prices="P = 1\n",
        rules__taxes="",
        other="",
    )


def test_the_modules_that_it_imports_are_part_of_it_and_others_are_not(env: Path) -> None:
    names = {"env.py", "helper.py", "rules/__init__.py", "rules/prices.py", "rules/taxes.py"}
    assert set(read_source(env).files) == names


@pytest.mark.parametrize(
    "edited", ["env.py", "helper.py", "rules/__init__.py", "rules/prices.py", "rules/taxes.py"]
)
def test_an_edit_of_any_part_changes_the_digest_and_taking_it_back_restores_it(
    env: Path, edited: str
) -> None:
    before, file = source_digest(env), env.parent / edited
    text = file.read_text()
    file.write_text(text + "#")
    assert source_digest(env) != before
    file.write_text(text)
    assert source_digest(env) == before


def test_an_edit_of_an_unrelated_file_does_not_change_it(env: Path) -> None:
    before = source_digest(env)
    (env.parent / "other.py").write_text("X = 1\n")
    (env.parent / "rules" / "unused.py").write_text("X = 1\n")
    (env.parent / "notes.txt").write_text("x")
    assert source_digest(env) == before


def test_an_installed_package_is_not_part_of_it(env: Path, tmp_path: Path) -> None:
    env.write_text(ENV + "import pytest, json\n")
    assert not {name for name in read_source(env).files if "pytest" in name or "json" in name}
    installed = write(tmp_path / "site-packages", env=ENV, helper="")
    assert set(read_source(installed).files) == {"env.py"}


def test_where_the_folder_lies_is_not_in_it_and_what_a_file_is_called_is(env: Path, tmp_path: Path) -> None:
    before = source_digest(env)
    env.parent.rename(tmp_path / "moved")
    assert source_digest(tmp_path / "moved" / "env.py") == before
    (tmp_path / "moved" / "env.py").rename(tmp_path / "moved" / "env2.py")
    assert source_digest(tmp_path / "moved" / "env2.py") != before


def test_content_that_moves_from_one_file_to_the_next_changes_it(tmp_path: Path) -> None:
    env = write(tmp_path, env="import a, b\n", a="x = 1\n", b="y = 1\n")
    before = source_digest(env)
    write(tmp_path, a="y = 1\n", b="x = 1\n")
    assert source_digest(env) != before


def test_relative_imports_of_a_package_are_followed(tmp_path: Path) -> None:
    write(
        tmp_path,
        shop__init="",
        shop__sub__init="from . import early\n",
        shop__sub__early="",
        shop__sub__env="from ..world import W\nfrom .near import N\nfrom .. import far\nimport beside\n",
        shop__world="",
        shop__sub__near="",
        shop__far="",
        shop__unused="",
        beside="",
    )
    found = read_source(tmp_path / "shop" / "sub" / "env.py")
    assert (found.root, found.entry) == (tmp_path, "shop/sub/env.py")
    package = {f"shop/{name}.py" for name in ("__init__", "world", "far")}
    below = {f"shop/sub/{name}.py" for name in ("__init__", "early", "env", "near")}
    assert set(found.files) == {*package, *below, "beside.py"}


def test_imports_inside_functions_and_circles_are_followed(tmp_path: Path) -> None:
    env = write(tmp_path, env="def f():\n    import late\n", late="import env, late\n")
    assert set(read_source(env).files) == {"env.py", "late.py"}


def test_declared_data_is_part_of_it(tmp_path: Path) -> None:
    declared = "from upcycle import Environment as E\nenv = E('shop', data=['cases.json', 'fixtures'])\n"
    env = write(tmp_path, env=declared)
    (tmp_path / "cases.json").write_text("[]")
    (tmp_path / "fixtures" / "deep").mkdir(parents=True)
    (tmp_path / "fixtures" / "deep" / "one.bin").write_bytes(b"\0")
    before = source_digest(env)
    assert set(read_source(env).files) == {"env.py", "cases.json", "fixtures/deep/one.bin"}
    (tmp_path / "fixtures" / "two.bin").write_bytes(b"\1")
    assert source_digest(env) != before


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("['../secret']", "outside"),
        ("['/etc/passwd']", "outside"),
        ("['missing.json']", "no such file"),
        ("[name for name in NAMES]", "env.py:2: data of Environment is not written as a list"),
        ("'cases.json'", "not written as a list"),
    ],
)
def test_data_that_is_not_below_the_folder_or_no_literal_is_refused(
    tmp_path: Path, data: str, why: str
) -> None:
    env = write(tmp_path / "a", env=f"import upcycle\nenv = upcycle.Environment('shop', data={data})\n")
    (tmp_path / "secret").write_text("s")
    with pytest.raises(SourceRefused, match=why):
        read_source(env)


def test_a_linked_folder_in_declared_data_is_refused_and_not_left_out(tmp_path: Path) -> None:
    declared = "from upcycle import Environment\nenv = Environment('shop', data=['fixtures'])\n"
    env = write(tmp_path, env=declared)
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "rows").mkdir()
    (tmp_path / "fixtures" / "rows").symlink_to(tmp_path / "rows", target_is_directory=True)
    with pytest.raises(SourceRefused, match="fixtures/rows"):
        read_source(env)


def test_data_of_an_environment_is_a_list_of_paths() -> None:
    assert Environment("shop", data=["cases.json"]).data == ("cases.json",)
    with pytest.raises(DefinitionError, match="give a list of paths"):
        Environment("shop", data="cases.json")


def test_a_link_that_leaves_the_folder_is_refused_by_name(env: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("")
    (env.parent / "helper.py").unlink()
    (env.parent / "helper.py").symlink_to(tmp_path / "outside.py")
    with pytest.raises(SourceRefused, match=r"helper\.py is a link to .*outside\.py"):
        read_source(env)
    (env.parent / "helper.py").unlink()
    (env.parent / "helper.py").symlink_to("other.py")
    before = source_digest(env)
    (env.parent / "other.py").write_text("X = 2\n")
    assert source_digest(env) != before


def test_a_pipe_and_a_folder_are_refused_at_once(env: Path) -> None:
    (env.parent / "helper.py").unlink()
    os.mkfifo(env.parent / "helper.py")
    with pytest.raises(SourceRefused, match=r"helper\.py is not a regular file"):
        read_source(env)
    with pytest.raises(SourceRefused, match=r"no such file: .*gone\.py"):
        read_source(env.parent / "gone.py")


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (SourceLimits(num_files=4), "more than 4 files"),
        (SourceLimits(file_bytes=20), "larger than 20 bytes"),
        (SourceLimits(total_bytes=100), "source is larger than 100 bytes"),
    ],
)
def test_sizes_are_bounded(env: Path, limits: SourceLimits, why: str) -> None:
    with pytest.raises(SourceRefused, match=why):
        read_source(env, limits)


@pytest.mark.parametrize("text", ["def (", "x = '\0'", "-" * 5000 + "1", "(" * 5000, "\ufffe"])
def test_a_file_that_does_not_parse_counts_with_its_bytes(env: Path, text: str) -> None:
    helper = env.parent / "helper.py"
    helper.write_text(text, encoding="utf-8")
    broken = source_digest(env)
    helper.write_text("import other\n")
    assert source_digest(env) != broken
    assert "other.py" in read_source(env).files
