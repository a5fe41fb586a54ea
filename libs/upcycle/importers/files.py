"""Files of data, read row by row: .csv, .jsonl and .parquet. A file of a million rows is never in memory."""

import csv
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from upcycle.errors import TasksetInvalid, UnknownName
from upcycle.importers.rows import DataRow, rows_of_table

DATA_FILES: Final = (".csv", ".jsonl", ".parquet")
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_UTF8_MARK: Final = b"\xef\xbb\xbf"


def rows_of_file(path: Path) -> Iterator[DataRow]:
    """Its rows; what is wrong is named with file and line. Raises TasksetInvalid or UnknownName."""
    if path.suffix not in DATA_FILES:
        raise TasksetInvalid(
            f"{path}: cannot read data from {path.suffix or 'a file without an ending'!r}",
            f"give a {', '.join(DATA_FILES)} file",
        )
    if not path.is_file():
        raise UnknownName(f"no such file: {path}", f"give a {', '.join(DATA_FILES)} file")
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    return _csv_rows(path) if path.suffix == ".csv" else _json_rows(path)


def _csv_rows(path: Path) -> Iterator[DataRow]:
    return rows_of_table(csv.DictReader(_lines(path), strict=True), f"{path}:")


def _json_rows(path: Path) -> Iterator[DataRow]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TasksetInvalid(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise TasksetInvalid(
                f"{path}:{number}: of type {type(row).__name__}, not an object", 'write {"question": "2 + 2"}'
            )
        yield DataRow(f"{path}:{number}", row)


def _lines(path: Path) -> Iterator[str]:
    """Each line with its end. Raises TasksetInvalid with line and byte of what is not UTF-8."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise TasksetInvalid(f"{path}:{number}: a line of more than {MAX_LINE_BYTES} bytes")
            try:
                yield (line.removeprefix(_UTF8_MARK) if number == 1 else line).decode()
            except UnicodeDecodeError as error:
                raise TasksetInvalid(
                    f"{path}:{number}:{error.start + 1}: byte 0x{line[error.start]:02x} is not UTF-8",
                    "save the file as UTF-8, or convert it: iconv -f latin1 -t utf-8",
                ) from error


def _parquet_rows(path: Path) -> Iterator[DataRow]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise TasksetInvalid(
            f"{path}: .parquet is read by pyarrow, which is not installed",
            "pip install pyarrow, or write the file as .jsonl",
        ) from error
    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches():
            for cells in batch.to_pylist():
                number += 1
                yield DataRow(f"{path}: row {number}", cells)
    except (ValueError, OSError) as error:  # what pyarrow raises inherits from these
        raise TasksetInvalid(f"{path}: not Parquet: {error}") from error
