"""Read files of rows: csv, tsv, json, parquet, plain text, CoNLL and SQuAD; errors name the file and the line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headcount.errors import BadData, counted, first_line
from headcount.tasks.columns import KNOWN


def read_file(path: Path, layout: str | None = None) -> dict[str, Any]:
    """The fields of `Rows` that a file determines: its table, the line of each row, and remarks.

    layout: "tags" reads text as CoNLL, a word and its tag per line and a blank line between sentences, if it is that.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "dev.tsv"
    ...     _ = path.write_text('it "works"\\t1\\nit does not\\t0\\n')
    ...     read_file(path)["table"]
    {'0': ['it "works"', 'it does not'], '1': ['1', '0']}
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(path)
    text = _decode(path)
    if suffix == ".json" and (content := _whole_json(text)) is not None:
        return _read_squad(path.name, content) if isinstance(content, dict) else _read_objects(path.name, content)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _read_json(path.name, text)
    if layout == "tags" and suffix != ".csv" and "" in [line.strip() for _, line in _lines(text)]:
        return _read_tagged(path.name, _lines(text))
    lines = _lines(text)
    hint = _separated_by_semicolons(path.name, lines)
    if suffix == ".csv":
        return _read_table(path.name, _csv_rows(path.name, text), hint)
    tabs = {line.count("\t") for _, line in lines[:100]}
    if suffix in (".tsv", ".tab") or (len(tabs) == 1 and tabs != {0}):
        return _read_table(path.name, ((number, line.split("\t")) for number, line in lines if line), hint)
    table = {"text": [line for _, line in lines]}
    return {"table": table, "unit": "line", "numbers": [n for n, _ in lines], "remarks": hint}


def _decode(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadData(f"cannot read {path}: {error.strerror}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BadData(
            f"{path.name}, line {line}: the text is not UTF-8",
            advice="save it as UTF-8 text; a workbook or an archive has to be exported or unpacked first",
        ) from error
    if not text.strip():
        raise BadData(f"{path.name} is empty")
    return text


def _lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines. Only a line feed ends a line, since a text can contain other separators."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [(number, line.removesuffix("\r")) for number, line in enumerate(lines, start=1)]


def _csv_rows(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1
    try:
        for row in reader:
            if row:
                yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise BadData(f"{name}, line {start}: not valid csv: {error}") from error


def _separated_by_semicolons(name: str, lines: list[tuple[int, str]]) -> list[str]:
    """A hint if every line has the same number of semicolons, as spreadsheets of some countries write them."""
    counts = {line.count(";") for _, line in lines[:100] if line}
    if len(counts) != 1 or counts == {0}:
        return []
    return [f"{name} looks separated by semicolons: if it is, save it with commas or tabs"]


def _read_table(name: str, rows: Iterator[tuple[int, list[str]]], hint: list[str]) -> dict[str, Any]:
    numbered = list(rows)
    first = numbered[0][1]
    twice = [cell for cell in first if first.count(cell) > 1 and _is_known(cell)]
    if twice:
        raise BadData(
            f"{name}, line {numbered[0][0]}: two columns are called {twice[0]!r}", advice="rename one of them"
        )
    header = _is_header(first, [row for _, row in numbered[1:1001]])
    names = first if header else [str(i) for i in range(len(first))]
    numbered = numbered[header:]
    for line, row in numbered:
        if len(row) != len(names):
            columns = f"{counted(len(row), 'column')}; expected {len(names)}"
            raise BadData(". ".join([f"{name}, line {line}: {columns}", *hint]))
    remark = f"{name} has no header: its columns are counted from 0"
    if header:
        remark = f"the first line of {name} is read as a header"
    return {
        "table": {column: [row[i] for _, row in numbered] for i, column in enumerate(names)},
        "unit": "line",
        "numbers": [line for line, _ in numbered],
        "remarks": [*([] if header and any(map(_is_known, first)) else [remark]), *(hint if len(names) == 1 else [])],
    }


def _is_header(first: list[str], others: list[list[str]]) -> bool:
    """A first line is a header if it has a common column name, or differs in kind from the lines below it.

    >>> _is_header(["a fine film", "1"], [["a dull one", "0"], ["another", "1"]])
    False
    >>> _is_header(["opinion", "verdict"], [["a dull one", "bad"], ["another", "bad"], ["third", "good"]])
    True
    """
    if len(set(first)) < len(first) or "" in first or any(map(_is_number, first)):
        return False
    if any(map(_is_known, first)):
        return True
    for i, cell in enumerate(first):
        below = [row[i] for row in others if i < len(row)]
        few = len(below) > 1 and len(set(below)) <= (len(below) + 1) / 2
        if below and (all(map(_is_number, below)) or (few and cell not in below)):
            return True
    return False


def _is_known(cell: str) -> bool:
    return cell.strip().lower() in KNOWN


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_json(name: str, text: str) -> dict[str, Any]:
    rows, lines = [], []
    for line, content in _lines(text):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
            if "\\u" in content:  # a lone surrogate can be written so, and cannot be encoded
                json.dumps(row, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            raise BadData(f"{name}, line {line}: not JSON: {error.msg} at column {error.colno}") from error
        except (ValueError, RecursionError) as error:
            raise BadData(f"{name}, line {line}: JSON that cannot be read: {error}") from error
        if not isinstance(row, dict):
            raise BadData(f"{name}, line {line}: expected a JSON object on each line")
        rows.append(row)
        lines.append(line)
    names = list(rows[0])
    for line, row in zip(lines, rows, strict=True):
        missing = [column for column in names if column not in row]
        if missing:
            raise BadData(f"{name}, line {line}: there is no {missing[0]!r}, which line {lines[0]} has")
    table = {column: [row[column] for row in rows] for column in names}
    return {"table": table, "unit": "line", "numbers": lines}


def _whole_json(text: str) -> Any:
    """A file that is one list, or one object with the rows in `data`; None if it is neither."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, list) or (isinstance(content, dict) and "data" in content) else None


def _read_objects(name: str, content: list[Any]) -> dict[str, Any]:
    names = list(content[0]) if content and isinstance(content[0], dict) else []
    for i, row in enumerate(content):
        missing = names if not isinstance(row, dict) else [column for column in names if column not in row]
        if missing or not names:
            what = f"there is no {missing[0]!r}" if names and isinstance(row, dict) else "expected a JSON object"
            raise BadData(f"{name}, entry {i}: {what}")
    return {"table": {column: [row[column] for row in content] for column in names}, "unit": "entry"}


def _read_squad(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """SQuAD's own JSON, 1.1 or 2.0: a row for each question."""
    if isinstance(content["data"], list) and content["data"] and "paragraphs" not in content["data"][0]:
        return _read_objects(name, content["data"])
    table: dict[str, list[Any]] = {"question": [], "context": [], "answers": [], "answer_start": []}
    ids: list[Any] = []
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = [] if question.get("is_impossible") else question["answers"]
                    table["question"].append(question["question"])
                    table["context"].append(paragraph["context"])
                    table["answers"].append([str(answer["text"]) for answer in answers])
                    table["answer_start"].append([int(answer["answer_start"]) for answer in answers])
                    ids.append(question.get("id", len(ids)))
    except (KeyError, TypeError, ValueError) as error:
        where = f"question {ids[-1]}" if ids else "the start"
        raise BadData(f"{name}, after {where}: not SQuAD's JSON: {first_line(error)} is missing or wrong") from error
    if not ids:
        raise BadData(f"{name} has no questions")
    return {"table": table, "unit": "question", "numbers": ids}


def _read_tagged(name: str, lines: list[tuple[int, str]]) -> dict[str, Any]:
    """CoNLL: the first column is the word, the last its tag; the table also has the line of every word."""
    sentences: list[list[tuple[int, str, str]]] = [[]]
    width = 0
    for number, line in lines:
        cells = line.split("\t") if "\t" in line else line.split()
        if not line.strip() or line.startswith("-DOCSTART-"):
            if sentences[-1]:
                sentences.append([])
            continue
        width = width or len(cells)
        if len(cells) != width or width < 2:
            raise BadData(
                f"{name}, line {number}: {counted(len(cells), 'column')}; expected {max(width, 2)}, a word and its tag"
            )
        sentences[-1].append((number, cells[0], cells[-1].strip()))
    filled = [sentence for sentence in sentences if sentence]
    if not filled:
        raise BadData(f"{name} has no sentences")
    table = {
        key: [[word[i] for word in one] for one in filled] for i, key in ((1, "tokens"), (2, "tags"), (0, "lines"))
    }
    return {"table": table, "unit": "line", "numbers": [one[0][0] for one in filled]}


def _read_parquet(path: Path) -> dict[str, Any]:
    import pyarrow.parquet
    from pyarrow.lib import ArrowException

    try:
        table = pyarrow.parquet.read_table(path)
        names, columns = table.column_names, [column.to_pylist() for column in table.columns]
    except (ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        raise BadData(f"{path.name} is not a parquet file: {first_line(error)}") from error
    if not table.num_rows or not names:
        raise BadData(f"{path.name} is empty")
    if len(set(names)) < len(names):
        raise BadData(f"{path.name} has two columns of the same name: {', '.join(names)}")
    return {"table": dict(zip(names, columns, strict=True))}
