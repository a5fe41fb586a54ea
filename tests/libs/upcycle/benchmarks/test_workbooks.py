"""Workbooks are read within limits, and their formulas compute to what a spreadsheet program shows."""

import base64
import datetime
import html
import io
import zipfile
from typing import Any

import pytest

from upcycle.benchmarks.sheet_50 import extra
from upcycle.benchmarks.sheet_50.baseline import played
from upcycle.benchmarks.sheet_50.book import Book, Value, area_of, cell_name
from upcycle.benchmarks.sheet_50.env import env, workbook
from upcycle.benchmarks.sheet_50.errors import ExtraMissing, WorkbookRefused
from upcycle.benchmarks.sheet_50.files import MAX_FILE_BYTES, read_workbook, workbook_bytes
from upcycle.benchmarks.sheet_50.recompute import FUNCTIONS, Recalculation, check_formula
from upcycle.errors import ToolFailed

DAY = datetime.date(2024, 3, 5)
BOOK = Book.of(
    {
        "Data": [("a", 1, DAY), ("b", 2.5, None), ("a", 4, True), (None, 10, "x")],
        "Other sheet": [(7, "=A1*2", "=Data!B2+B1")],
    }
)


def computed(formula: str) -> Value:
    """The value of a formula in Data!F9 of BOOK."""
    book = BOOK.copy()
    book.sheets["Data"][9, 6] = formula
    return Recalculation(book).value("Data", (9, 6))


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("=SUM(B1:B4)", 17.5),
        ("=SUMIF($A$1:$A$4,A1,$B$1:$B$4)", 5),
        ('=COUNTIFS(A1:A4,"a",B1:B4,">1")', 1),
        ('=IF(A4="","none",A4)', "none"),
        ('=A1&"-"&TEXT(B1,"000")', "a-001"),
        ("=C1+30", 45356 + 30),
        ("='Other sheet'!C1", 16.5),
        ('=IFERROR(VLOOKUP("z",A1:B4,2,FALSE),"missing")', "missing"),
        ('=INDEX(B1:B4,MATCH("b",A1:A4,0))', 2.5),
        ("=SUM(B:B)", 17.5),
        ("=1/0", "#DIV/0!"),
        ('=VLOOKUP("z",A1:B4,2,FALSE)', "#N/A"),
        ("=A1+1", "#VALUE!"),
        ("=NoSuch!A1", "#REF!"),
        ("=SUM(ZZ1:ZZ9)", "#REF!"),
        ("=B4+Unnamed", "#REF!"),
        ("=F9+1", "#REF!"),
    ],
)
def test_a_formula_computes_to_what_a_spreadsheet_shows(formula: str, value: Value) -> None:
    assert computed(formula) == value


def test_a_circle_of_formulas_ends_and_a_long_chain_is_computed() -> None:
    circle = Book.of({"S": [("=B1", "=C1", "=A1+1")]})
    assert Recalculation(circle).value("S", (1, 1)) == "#REF!"
    chain = Book.of({"S": [(1,), *((f"=A{row}+1",) for row in range(1, 1500))]})
    assert Recalculation(chain).value("S", (1500, 1)) == 1500


def test_text_that_doubles_in_each_cell_does_not_fill_the_memory() -> None:
    doubling = Book.of({"S": [("x" * 100,), *((f"=A{row}&A{row}",) for row in range(1, 60))]})
    assert Recalculation(doubling).value("S", (60, 1)) == "#VALUE!"


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ('=REPT("a",9999)', "function REPT is not computed here; these are: ABS, AND, "),
        ("=NOW()", "function NOW is not computed here"),
        ("=SUM(1,2", "is no formula"),
        ("=" + "1+" * 600 + "1", "a formula has 1,202 characters; at most 1,000"),
    ],
)
def test_a_formula_that_is_not_computed_is_refused_by_name(formula: str, said: str) -> None:
    with pytest.raises(
        WorkbookRefused, match=r"(?s).*".join(map(str, (said[:40],))).replace("(", r"\(")
    ) as raised:
        check_formula(formula)
    assert said in str(raised.value)
    assert "NOW" not in FUNCTIONS


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("ZZZ1", "there is no cell 'ZZZ1'; a sheet has cells A1 to BH2000"),
        ("A0", "there is no cell 'A0'"),
        ("B2:", "'B2:' is no cell and no range; write B2, or B2:D9"),
        ("", "'' is no cell and no range"),
    ],
)
def test_a_reference_to_no_cell_is_refused(reference: str, said: str) -> None:
    with pytest.raises(WorkbookRefused) as raised:
        area_of(reference)
    assert str(raised.value).startswith(said)


def test_a_workbook_comes_back_from_its_file_as_it_was() -> None:
    assert read_workbook(workbook_bytes(BOOK)).differing(BOOK) == {}
    assert cell_name((3, 28)) == "AB3"


def test_what_is_no_workbook_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("readme.txt", "hello")
    for content in (b"", b"name,amount\n", packed.getvalue()):
        with pytest.raises(WorkbookRefused, match=r"this is no \.xlsx workbook"):
            read_workbook(content)


def test_a_workbook_of_50_mb_is_refused_by_its_size_packed_or_unpacked() -> None:
    with pytest.raises(WorkbookRefused, match=f"52,428,800 bytes; at most {MAX_FILE_BYTES:,}"):
        read_workbook(b"\0" * (50 << 20))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", b"\0" * (50 << 20))
    with pytest.raises(WorkbookRefused, match="unpacks to 52,428,800 bytes"):
        read_workbook(packed.getvalue())


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("read_cells", {"sheet": "Nope", "area": "A1"}, "no sheet 'Nope'; the workbook has Data, Settings"),
        ("read_cells", {"sheet": "data", "area": "A1:BH2000"}, "A1:BH2000 has 120,000 cells"),
        ("write_cells", {"sheet": "Data", "start": "A1", "rows": []}, "rows hold 0 cells"),
        ("write_cells", {"sheet": "Data", "start": "BH2000", "rows": [[1, 2]]}, "there is no cell 'BI2000'"),
        ("write_cells", {"sheet": "Data", "start": "H1", "rows": [["a\x00"]]}, "no cell can hold"),
        ("fill_formula", {"sheet": "Data", "area": "H2:H3", "formula": "B2"}, "'B2' is no formula"),
        ("import_workbook", {"content": "no base64!"}, "content is not base64"),
        ("import_workbook", {"content": base64.b64encode(b"PK").decode()}, "this is no .xlsx workbook"),
    ],
)
async def test_a_tool_says_what_is_wrong_with_its_arguments(
    tool: str, arguments: dict[str, Any], said: str
) -> None:
    play = workbook.play({"number": 0})
    await play.start()
    try:
        result = await env.call_tool(tool, arguments)
    except ToolFailed as error:
        text = str(error)
    else:
        assert result.is_error
        text = result.text
    finally:
        await play.close()
    assert said in text


async def test_a_workbook_that_was_edited_elsewhere_takes_the_place_of_the_given_one() -> None:
    play = workbook.play({"number": 0})
    await play.start()
    try:
        given = await env.call_tool("export_workbook", {})
        book = read_workbook(base64.b64decode(given.text))
        book.sheets["Data"][40, 1] = "mine"
        content = base64.b64encode(workbook_bytes(book)).decode()
        assert "Data: A1:F40" in (await env.call_tool("import_workbook", {"content": content})).text
        shown = await env.call_tool("read_cells", {"sheet": "Data", "area": "A40"})
        assert shown.text == " | A\n40 | mine"
    finally:
        await play.close()


async def test_filling_moves_relative_references_and_keeps_fixed_ones() -> None:
    fill = {"sheet": "Data", "area": "H2:H3", "formula": "=B2*Settings!$B$1"}
    play = workbook.play({"number": 0})
    await play.start()
    try:
        await env.call_tool("fill_formula", fill)
        shown = await env.call_tool("read_cells", {"sheet": "Data", "area": "H3", "formulas": True})
        assert shown.text.endswith("3 | =B3*Settings!$B$1")
    finally:
        await play.close()


async def test_a_given_cell_that_was_changed_costs_the_reward() -> None:
    result = await played(0, (("write_cells", {"sheet": "Data", "start": "B2", "rows": [[1]]}),))
    assert result.score == 0
    assert result.info["reason"] == "given cells were changed: Data!B2"


def test_a_package_that_is_missing_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "_PACKAGES", ("openpyxl", "no_such_formulas"))
    extra.need_extra.cache_clear()
    with pytest.raises(
        ExtraMissing, match=r"needs no_such_formulas, .*; pip install 'upcycle\[benchmarks\]'"
    ):
        extra.need_extra()


def test_a_function_that_is_younger_than_the_format_has_its_prefix_in_the_file() -> None:
    formula = '=IF(A1="MAXIFS(",MAXIFS(A1:A3,B1:B3,"x"),ifs(A1>1,SUMIFS(A1:A3,B1:B3,"IFS(")))'
    packed = workbook_bytes(Book.of({"Data": [[1, "x", formula]]}))
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        stored = html.unescape(archive.read("xl/worksheets/sheet1.xml").decode())
    assert (
        '<f>IF(A1="MAXIFS(",_xlfn.MAXIFS(A1:A3,B1:B3,"x"),_xlfn.ifs(A1>1,SUMIFS(A1:A3,B1:B3,"IFS(")))</f>'
        in stored
    )
    assert read_workbook(packed).sheet("Data")[1, 3] == formula
