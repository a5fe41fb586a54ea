"""A page says what its run says, needs nothing but itself, and is no larger than it promises."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest
from tests.libs.upcycle.reporting.rows import episode
from tests.libs.upcycle.run_pages.pages import TRACEBACK, evaluation_page, shown, training_page
from tests.libs.upcycle.run_pages.reading_pages import read

from upcycle.run_pages.charts import HEIGHT, WIDTH, charts_of, gains_of
from upcycle.run_pages.errors import PageTooLarge
from upcycle.run_pages.matrix import MAX_ATTEMPTS, MAX_TASKS, matrix_of
from upcycle.run_pages.rendering import page_of, sureness
from upcycle.run_pages.values import GateVerdict, Header, RunPage, ShownToken, ShownTurn, Step

CURVES = (
    "reward",
    "success",
    "gradient norm",
    "KL of engine and trainer",
    "entropy",
    "staleness in versions",
)


def test_an_evaluation_shows_its_report_its_matrix_and_its_episodes() -> None:
    page = read(page_of(evaluation_page()))
    assert page.unclosed == []
    assert (page.tags["h1"], page.tags["main"], page.tags["title"]) == (1, 1, 1)
    for part in ("54.2% [", "pass@k, one of k succeeds", "6 tasks", "sampling.temperature", "c0dec0dec0de"):
        assert part in page.text.replace("\n", " ")
    for part in ("Why is checkout down?", "no such host", '{"wanted": "OOM"}', TRACEBACK, "timeout"):
        assert part in page.text
    assert page.tags["polyline"] == 0
    assert page.tags["rect"] == 10


def test_a_training_run_shows_curves_and_verdicts_with_their_bounds() -> None:
    page = read(page_of(training_page()))
    captions = [text.strip() for text in page.texts["figcaption"]]
    assert all(name in captions for name in CURVES)
    assert page.tags["polyline"] == len(CURVES) + 1
    assert "+22.0%, ≥ +11.0% at 95%" in page.text
    assert "the lower bound is not above 0" in page.text
    assert [text for text in page.texts["td"] if text in ("promoted", "held")] == [
        "held",
        "promoted",
        "promoted",
    ]


@pytest.mark.parametrize("make", [evaluation_page, training_page])
def test_a_page_needs_nothing_but_itself(make: object) -> None:
    assert callable(make)
    html = page_of(make())
    page = read(html)
    assert {"link", "iframe", "object", "img", "base", "embed"} & page.tags.keys() == set()
    for name in ("src", "srcset", "data", "action", "formaction", "style", "xlink:href"):
        assert page.values(name) == []
    assert all(value.startswith("#") for value in page.values("href"))
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    styles, script = page.texts["style"], page.texts["script"]
    assert "url(" not in styles[0] + script[0]
    assert "@import" not in styles[0]
    allowed = (
        f"default-src 'none'; style-src {digest(styles[0])}; script-src {digest(script[0])}; "
        "base-uri 'none'; form-action 'none'"
    )
    assert ("meta", "content", allowed) in page.attributes
    before = html.partition("Content-Security-Policy")[0]
    assert "<style" not in before
    assert "<script" not in before


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_each_link_of_the_matrix_leads_to_an_episode() -> None:
    page = read(page_of(evaluation_page()))
    links = {value[1:] for value in page.values("href")}
    ids = page.values("id")
    assert links <= set(ids)
    assert len(ids) == len(set(ids))
    assert {"e1", "e2", "e3"} <= links


def test_the_matrix_has_a_cell_for_each_attempt_and_the_lowest_means_first() -> None:
    rows = [
        episode("b", 0, 1.0),
        episode("b", 1, 0.25),
        episode("a", 0, 0.0, policy_failure="tool_timeout"),
        episode("a", 1, None),
        episode("z", 0, None),
        episode("y", 0, 7.0, success=True),
    ]
    found = matrix_of(rows, {"ep-b-0": "e1"})
    assert [(line.slug, line.mean, line.num_solved, line.num_played) for line in found.lines] == [
        ("a", 0.0, 0, 2),
        ("b", 0.625, 1, 2),
        ("y", 7.0, 1, 1),
        ("z", None, 0, 1),
    ]
    cells = {line.slug: [(c.text, c.shade, c.mark, c.anchor) for c in line.cells] for line in found.lines}
    assert cells["a"] == [("0.00", 0, "×", ""), ("timeout", None, "", "")]
    assert cells["b"] == [("1.00", 10, "✓", "e1"), ("0.25", 2, "", "")]
    assert cells["y"] == [("7.00", 10, "✓", "")]
    assert found.columns == (1, 2)


def test_a_matrix_has_bounds_and_says_what_it_leaves_out() -> None:
    rows = [episode(f"t{task:04}", 0, 1.0) for task in range(MAX_TASKS + 3)]
    rows += [episode("many", at, 0.0) for at in range(MAX_ATTEMPTS + 2)]
    found = matrix_of(rows, {})
    assert (len(found.lines), found.num_left_out, len(found.columns)) == (MAX_TASKS, 4, MAX_ATTEMPTS)
    assert (found.lines[0].slug, found.lines[0].num_more) == ("many", 2)


def test_a_curve_lies_inside_its_chart_whatever_was_measured() -> None:
    steps = [Step(at, at, {"reward_mean": value}) for at, value in enumerate([0.0, 1.0, 0.5, float("nan")])]
    reward, version = charts_of(steps)
    assert (reward.name, reward.low, reward.high, reward.last) == ("reward", "0.000", "1.000", "0.500")
    assert reward.line.split() == ["44.0,102.0", "178.0,8.0", "312.0,55.0"]
    assert version.last == "3"
    flat = charts_of([Step(at, None, {"loss": 2.0}) for at in range(5_000)])[0]
    places = [tuple(map(float, pair.split(","))) for pair in flat.line.split()]
    assert len(places) <= 400
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert charts_of([Step(1, 1, {"reward_mean": 1.0})]) == ()


def test_gains_stand_on_one_scale_with_zero() -> None:
    better = GateVerdict("c", 2, 2, True, "", 0.5, 0.3, 0.1, 0.95, 9)
    found = gains_of([GateVerdict("b", 1, 1, False, "no gate"), better])
    assert found is not None
    (mark,) = found.marks
    assert found.zero_x < mark.bound_x < mark.gain_x
    assert mark.bound_x - found.zero_x == pytest.approx(mark.gain_x - mark.bound_x, abs=0.2)
    assert gains_of([GateVerdict("b", 1, 1, False, "no gate")]) is None


def test_a_page_that_is_too_large_is_refused_by_name() -> None:
    page = evaluation_page()
    size = len(page_of(page).encode())
    assert page_of(page, max_bytes=size)
    with pytest.raises(PageTooLarge, match=r"page of run-a with 3 episodes is over .* MiB.*--limit"):
        page_of(page, max_bytes=size - 1)


def test_a_run_without_an_episode_is_a_page() -> None:
    page = read(page_of(RunPage(Header("run-0", "evaluation", "failed", warnings=("no engine",)), ())))
    assert page.unclosed == []
    assert "no engine" in page.text
    assert "0 of 0 are shown whole" in page.text


def test_many_turns_are_cut_in_the_middle() -> None:
    one = replace(
        shown(evaluation_page().episodes[0]), turns=tuple(ShownTurn(f"said-{at}.") for at in range(1000))
    )
    text = read(page_of(evaluation_page(shown=(one,)))).text
    assert "said-0." in text
    assert "said-99." in text
    assert "said-100." not in text
    assert "800 turns between are left out" in text
    assert "said-999." in text


def test_a_token_is_marked_by_its_probability_and_has_its_logprob() -> None:
    assert [sureness(logprob) for logprob in (0.0, -0.5, -1.0, -2.5, -9.0, float("nan"))] == [
        0,
        1,
        2,
        3,
        4,
        4,
    ]
    one = shown(evaluation_page().episodes[0], turns=(ShownTurn("", tokens=(ShownToken("<b>", -2.5),)),))
    html = page_of(evaluation_page(shown=(one,)))
    assert '<span class="p3" title="-2.500">&lt;b&gt;</span>' in html


def test_no_template_switches_escaping_off() -> None:
    from upcycle.run_pages import rendering

    for path in rendering._TEMPLATES.glob("*.html"):
        assert not re.search(r"\bsafe\b|autoescape|\{%-? *raw", path.read_text())
