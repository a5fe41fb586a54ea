"""`make gate-study`: every bar, as a table in Markdown, and one JSON object as the last line.

DRAWS=0.5 draws half as often.
"""

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import groupby

from tests.gate_study.bars import Cell, cells

Figure = tuple[float, float]


def main() -> int:
    """Prints the table; 1 where a bar is missed."""
    started = time.monotonic()
    all_cells = _cells()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        figures = []
        for cell, figure in zip(all_cells, pool.map(_measured, range(len(all_cells))), strict=True):
            figures.append(figure)
            print(
                f"{time.monotonic() - started:6.0f} s  {cell.part}: {cell.title}: {figure[0]:.3f}",
                file=sys.stderr,
            )
    print("\n".join(_table(all_cells, figures)))
    missed = [
        f"{cell.part}: {cell.title}"
        for cell, (share, _) in zip(all_cells, figures, strict=True)
        if not cell.bar.holds(share, cell.reps)
    ]
    print(json.dumps(_summary(all_cells, figures, missed, time.monotonic() - started), ensure_ascii=False))
    return 1 if missed else 0


def _cells() -> list[Cell]:
    share = float(os.environ.get("DRAWS", "1"))
    return [replace(cell, reps=max(1, round(share * cell.reps))) for cell in cells()]


def _measured(at: int) -> Figure:
    cell = _cells()[at]
    return cell.measured(cell.reps)


def _table(all_cells: list[Cell], figures: list[Figure]) -> list[str]:
    lines = ["| what | share | bar | attempts played | draws |", "|---|---|---|---|---|"]
    rows = list(zip(all_cells, figures, strict=True))
    for part, group in groupby(
        sorted(rows, key=lambda row: _order(all_cells, row[0])), lambda row: row[0].part
    ):
        lines.append(f"| **{part}** | | | | |")
        for cell, (share, attempts) in group:
            cost = f"{attempts:,.0f}" if attempts else ""
            lines.append(f"| {cell.title} | {share:.3f} | {cell.bar.text()} | {cost} | {cell.reps:,} |")
    return lines


def _order(all_cells: list[Cell], cell: Cell) -> int:
    return [one.part for one in all_cells].index(cell.part)


def _summary(
    all_cells: list[Cell], figures: list[Figure], missed: list[str], seconds: float
) -> dict[str, object]:
    shares = {
        f"{cell.part}: {cell.title}": round(share, 4)
        for cell, (share, _) in zip(all_cells, figures, strict=True)
    }
    return {"study": "gate", "bars_missed": missed, "seconds": round(seconds), "shares": shares}


if __name__ == "__main__":
    sys.exit(main())
