"""`Rows`: one table from whatever holds the data, with a name for the place of every row.

Data is a file, a directory, a hub id, a `datasets.Dataset`, a `pandas.DataFrame` or a list of dicts. Nothing from a
data set is executed, and a directory is refused if it refers to data outside itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from headcount.errors import BadData, counted, first_line, unknown
from headcount.files import looks_like_a_file
from headcount.model_directory import CONFIG
from headcount.tasks.columns import Column
from headcount.tasks.data_files import read_file

SPLITS = ("validation", "dev", "val", "test", "train")  # the first of these is evaluated on, unless `split` names one
SUFFIXES = {  # of the files in folders of images and sounds
    "images": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    "sounds": (".wav", ".flac", ".ogg", ".mp3"),
}
LISTS = ("metadata.csv", "metadata.jsonl", "transcripts.tsv", "labels.csv", "labels.tsv")  # what a folder's files are
CARDS = ("README.md", ".huggingface.yaml")  # files of a data set that say which of its files are data


@dataclass
class Rows:
    """A table with names for its columns and for the places of its rows.

    >>> rows = Rows.of([{"text": "fine", "label": 1}, {"text": "dull", "label": 0}])
    >>> rows.names, rows.column("text"), rows.column(1), rows.place(0, "label")
    (['text', 'label'], ['fine', 'dull'], [1, 0], "data, example 0, column 'label'")

    table: the values of each column. source: a short name for messages and signatures.
    unit, numbers: how messages name a row: "line" and its number in the file, counted from 1; or "example" and None,
        which counts from 0.
    classes: the names of the classes, for columns of class numbers that have them (a datasets.ClassLabel).
    remarks: what the user should know, for example that columns are numbered because the file has no header.
    folder: where files that the table names are found, if their paths are not absolute.
    """

    table: dict[str, list[Any]]
    source: str = "data"
    split: str | None = None
    unit: str = "example"
    numbers: Sequence[int] | None = None
    classes: dict[str, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    folder: Path = Path()

    @classmethod
    def of(cls, data: Any, split: str | None = None, layout: str | None = None) -> Rows:
        """Read whatever the user passed as data; of several splits, the one named.

        layout: what the task expects in files: "tags" (CoNLL), "images" or "sounds" (folders of them).
        """
        if isinstance(data, Rows):
            rows = data
        elif isinstance(data, (str, Path)):
            rows = _from_name(str(data), split, layout)
        elif hasattr(data, "column_names"):  # datasets, without importing it
            rows = _from_datasets(data, "data", split)
        elif hasattr(data, "columns") and hasattr(data, "to_dict"):  # pandas, without importing it
            rows = _from_frame(data)
        elif isinstance(data, Sequence) and all(isinstance(row, Mapping) for row in data):
            rows = _from_dicts(data)
        else:
            kinds = "a file, a directory, a hub id, a datasets.Dataset, a pandas.DataFrame or a list of dicts"
            raise BadData(f"cannot read rows from {type(data).__name__}; expected {kinds}")
        if not len(rows):
            raise BadData(f"{rows.source}{f', split {rows.split}' if rows.split else ''}: there are no rows")
        return rows

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'row')} of {self.source}: {', '.join(self.names)}>"

    def __len__(self) -> int:
        return len(next(iter(self.table.values()), []))

    @property
    def names(self) -> list[str]:
        return list(self.table)

    def name(self, column: str | int) -> str:
        """The column's name, given its name or its number (counted from 0)."""
        if str(column) in self.table:
            return str(column)
        if str(column).isdecimal():
            if int(column) < len(self.names):
                return self.names[int(column)]
            raise BadData(f"{self.source} has no column {column}: it has {len(self.names)}, counted from 0")
        raise BadData(f"{self.source}: {unknown('column', str(column), self.names)}")

    def column(self, column: str | int) -> list[Any]:
        return self.table[self.name(column)]

    def place(self, row: int, column: str | None = None) -> str:
        """How messages name a row, or one value of it: "dev.tsv, line 17, column 'label'"."""
        place = f"{self.source}, {self.unit} {row if self.numbers is None else self.numbers[row]}"
        return place if column is None else f"{place}, column {column!r}"

    def take(self, limit: int | None, seed: int | None = 0) -> Rows:
        """A random sample of `limit` rows in their order, the same for the same seed; with None the first rows."""
        if limit is None or limit >= len(self):
            return self
        if limit < 1:
            raise BadData(f"limit must be at least 1, not {limit}")
        chosen = range(limit)
        if seed is not None:
            chosen = np.sort(np.random.default_rng(seed).choice(len(self), limit, replace=False)).tolist()
        how = "the first ones" if seed is None else f"a random sample (seed {seed})"
        numbers = range(len(self)) if self.numbers is None else self.numbers
        return replace(
            self,
            table={name: [values[i] for i in chosen] for name, values in self.table.items()},
            numbers=[numbers[i] for i in chosen],
            remarks=[*self.remarks, f"{limit} of {len(self)} rows of {self.source}: {how}"],
        )


def aligned(first: Rows, second: Rows, source: Column = None, target: Column = None) -> Rows:
    """One table from two line-aligned files.

    >>> en, fr = Rows({"text": ["a dog"]}, "val.en"), Rows({"text": ["un chien"]}, "val.fr")
    >>> aligned(en, fr).table
    {'source': ['a dog'], 'target': ['un chien']}
    """
    if len(first) != len(second):
        raise BadData(
            f"{first.source} has {counted(len(first), 'line')} and {second.source} has {len(second)}; "
            "expected line-aligned files"
        )
    sides = []
    for rows, what, column in ((first, "source", source), (second, "target", target)):
        if column is None and len(rows.names) > 1:
            names = ", ".join(rows.names)
            raise BadData(f"{rows.source} has several columns: {names}", advice=f"choose one with {{{what}}}")
        sides.append(rows.column(0 if column is None else column))
    table = dict(zip(("source", "target"), sides, strict=True))
    remarks = [*first.remarks, *second.remarks]
    return replace(first, table=table, source=f"{first.source}+{second.source}", remarks=remarks)


def _from_name(name: str, split: str | None, layout: str | None) -> Rows:
    path = Path(name).expanduser()
    if layout in SUFFIXES and path.is_dir() and split is None:
        found = _from_folder(path, layout)
        if found is not None:
            return found
    if path.is_file():
        if split is not None:
            raise BadData(f"{path.name} is a single file, without splits such as {split!r}", advice="leave out {split}")
        content = read_file(path, layout)
        return Rows(source=path.name, folder=path.parent, **{**content, "table": _flat(content["table"])})
    if path.is_dir():
        loose = sorted(file.name for file in path.iterdir() if file.suffix in (".tsv", ".csv", ".txt"))
        if loose:  # the datasets library would read the first row of a file without a header as one
            raise BadData(f"{name} is a directory; name one file in it, such as {path / loose[0]}")
        if (path / CONFIG).is_file():
            raise BadData(f"{name} is the directory of a model", advice="name a file of data")
        refuse_outside_data(path)
        return _from_datasets(_load(str(path), split), path.name, split)
    if looks_like_a_file(name):
        raise BadData(f"there is no file {name}")
    return _from_datasets(_load(name, split), name, split)


def _from_folder(folder: Path, layout: str) -> Rows | None:
    """A folder with a list of its files, or with a subfolder for each class; None if it is neither."""
    for name in LISTS:
        if (folder / name).is_file():
            return _from_name(str(folder / name), None, None)
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES[layout])
    depths = {len(file.relative_to(folder).parts) for file in files}
    if depths == {1}:
        return Rows({"file": [file.name for file in files]}, folder.name, folder=folder)
    if depths != {2}:
        return None
    table = {"file": [str(file.relative_to(folder)) for file in files], "label": [file.parent.name for file in files]}
    return Rows(table, folder.name, folder=folder)


@dataclass(frozen=True, eq=False)
class StoredFile:
    """An image or a sound in a data set, read when it is needed."""

    data: Any
    column: str
    row: int

    def read(self) -> tuple[bytes | None, str | None]:
        """Its content, or else the path of its file."""
        stored = self.data[self.row][self.column]
        return stored["bytes"], stored["path"]


def _load(name: str, split: str | None) -> Any:
    """A hub id, "id:configuration", or a directory, read by the datasets library; code in it is never run."""
    import datasets

    folder = Path(name)
    path, _, configuration = (name, "", "") if folder.is_dir() else name.partition(":")
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(name)
        return datasets.load_dataset(path, configuration or None, split=split)
    except Exception as error:  # datasets raises anything from ValueError to httpx errors
        where = f" (split {split})" if split else ""
        if isinstance(error, ConnectionError) and not folder.is_dir():
            why = "there is no such file here, and the hub cannot be reached to look for a data set of that name"
            raise BadData(f"{name}{where}: {why}", advice="check the name") from error
        missing = "" if folder.is_dir() else "there is no such file here, and "
        raise BadData(f"{name}{where}: {missing}it cannot be loaded as a data set: {first_line(error)}") from error


def _from_datasets(data: Any, source: str, split: str | None) -> Rows:
    import datasets

    if isinstance(data, (datasets.IterableDataset, datasets.IterableDatasetDict)):
        raise BadData("a streaming data set has no length; load it without streaming")
    remarks = []
    if isinstance(data, datasets.DatasetDict):
        chosen = split or next((name for name in SPLITS if name in data), next(iter(data), ""))
        if chosen not in data:
            raise BadData(f"{source}: {unknown('split', chosen, data)}")
        if split is None and len(data) > 1:
            remarks.append(f"split {chosen!r} of {source} (it has {', '.join(data)})")
        data, split = data[chosen], chosen
    classes = {n: f.names for n, f in data.features.items() if isinstance(f, datasets.ClassLabel)}
    lists = tuple(getattr(datasets, n) for n in ("List", "LargeList", "Sequence") if hasattr(datasets, n))
    inside = {n: f.feature for n, f in data.features.items() if isinstance(f, lists)}
    classes |= {n: f.names for n, f in inside.items() if isinstance(f, datasets.ClassLabel)}
    plain = (datasets.Value, datasets.ClassLabel, datasets.Translation, dict, *lists)
    names = [n for n, feature in data.features.items() if isinstance(feature, plain)]
    try:
        data = data.with_format(None)  # all columns, as plain values
        table = {name: list(data[name]) for name in names}
        for media in (datasets.Image, datasets.Audio):  # read when they are needed, and not decoded here
            for name in [n for n, feature in data.features.items() if isinstance(feature, media)]:
                stored = data.select_columns([name]).cast_column(name, media(decode=False))
                table[name] = [StoredFile(stored, name, i) for i in range(len(data))]
    except Exception as error:  # damaged files make the library raise errors of many kinds
        raise BadData(f"{source}: its rows cannot be read: {first_line(error)}") from error
    return Rows(_flat(table), source, split or str(data.split or "") or None, classes=classes, remarks=remarks)


def _from_dicts(data: Sequence[Mapping[str, Any]]) -> Rows:
    names = list(data[0]) if len(data) else []
    for i, row in enumerate(data):
        for name in names:
            if name not in row:
                raise BadData(f"data, example {i}: there is no {name!r}, which example 0 has")
    return Rows(_flat({str(name): [row[name] for row in data] for name in names}))


def _from_frame(data: Any) -> Rows:
    """A pandas.DataFrame; rows are named by its index. A missing value (nan, NA, NaT) is None."""
    names = [str(name) for name in data.columns]
    if len(set(names)) < len(names):
        raise BadData(f"the data frame has two columns of the same name: {', '.join(names)}")
    there = data.notna().to_numpy().T
    columns = [data.iloc[:, place].tolist() for place in range(len(names))]
    table = {
        name: [value if known else None for value, known in zip(values, kept, strict=True)]
        for name, values, kept in zip(names, columns, there, strict=True)
    }
    return Rows(_flat(table), unit="row", numbers=data.index.tolist())


def _flat(table: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Columns of {"en": ..., "fr": ...} become the columns en and fr."""
    flat: dict[str, list[Any]] = {}
    for name, values in table.items():
        if values and all(isinstance(value, Mapping) for value in values):
            flat.update({key: [value.get(key) for value in values] for key in values[0]})
        else:
            flat[name] = values
    return flat


def refuse_outside_data(folder: Path) -> None:
    """Refuse a directory whose files refer to data outside it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = (Path(place) / "state.json").write_text('{"_data_files": [{"filename": "../a.arrow"}]}')
    ...     refuse_outside_data(Path(place))
    Traceback (most recent call last):
    headcount.errors.BadData: state.json refers to '../a.arrow', outside its directory; name the data file itself
    """
    for name in ("state.json", "dataset_dict.json"):
        for file in (folder / name, *sorted(folder.glob(f"*/{name}"))):
            _refuse_outside_paths(_json(file), file.name)
    for name in CARDS:
        _refuse_outside_paths(_card(folder / name), name)


def _refuse_outside_paths(content: Any, file: str) -> None:
    for word in _words(content):
        parts = PurePosixPath(word).parts
        if "://" in word or "::" in word or word.startswith(("/", "~")) or ".." in parts:
            raise BadData(f"{file} refers to {word!r}, outside its directory; name the data file itself")


def _words(content: Any) -> Iterator[str]:
    """Every text in parsed JSON or YAML, each part visited once: in YAML a part can contain itself."""
    seen, left = set[int](), [content]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, (dict, list)) and id(part) not in seen:
            seen.add(id(part))
            left += [*part, *part.values()] if isinstance(part, dict) else part


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"{file} cannot be read: {error}") from None


def _card(file: Path) -> Any:
    """What a card says about which files are data, parsed as the datasets library parses it."""
    import yaml
    from huggingface_hub import DatasetCard

    if not file.is_file():
        return None
    try:
        if file.suffix == ".md":
            content = DatasetCard.load(file).data.to_dict()
        else:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except Exception as error:  # a malformed card makes its parsers raise errors of many kinds
        raise BadData(f"{file} cannot be read: {first_line(error)}") from None
    return content.get("configs") if isinstance(content, dict) else content
