"""Rows from every kind of data, and one clear sentence for everything that is wrong with it."""

import csv
import json

import datasets
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import BadData
from headcount.tasks import Rows, find_text
from headcount.tasks.columns import find_label, find_translation
from headcount.tasks.rows import aligned

TEXTS = ["a fine film", 'it "works"', "dull , and long", "naïve 'quotes'", "fine"]
LABELS = ["1", "1", "0", "1", "0"]


def write(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    return path


@pytest.fixture
def files(tmp_path):
    """The same rows in every format, with names for the columns where the format has them."""
    rows = [{"text": t, "label": label} for t, label in zip(TEXTS, LABELS, strict=True)]
    pairs = list(zip(TEXTS, LABELS, strict=True))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *pairs])
    write(tmp_path / "a.tsv", "\ufefftext\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label in pairs))
    write(tmp_path / "a.txt", "text\tlabel\r\n" + "".join(f"{t}\t{label}\r\n" for t, label in pairs))
    write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    return tmp_path


def test_a_data_set_that_shows_only_some_columns_has_them_all(tmp_path):
    shown = datasets.Dataset.from_list([{"text": "a fine film", "label": 1}]).with_format("torch", columns=["label"])
    shown.save_to_disk(tmp_path / "saved")
    for rows in (Rows.of(shown), Rows.of(tmp_path / "saved")):
        assert rows.column("text") == ["a fine film"]
        assert rows.column("label") == [1]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a.jsonl", "a.parquet", "saved", "folder"])
def test_every_format_gives_the_same_rows(files, name):
    rows = Rows.of(files / name)
    assert rows.names == ["text", "label"]
    assert rows.column("text") == TEXTS
    assert rows.column(1) == LABELS
    assert not rows.remarks


def test_data_in_memory():
    dicts = [{"text": t, "label": label} for t, label in zip(TEXTS, LABELS, strict=True)]
    for data in (dicts, datasets.Dataset.from_list(dicts)):
        assert Rows.of(data).table == {"text": TEXTS, "label": LABELS}
    both = datasets.DatasetDict(train=datasets.Dataset.from_list(dicts), test=datasets.Dataset.from_list(dicts[:2]))
    rows = Rows.of(both)
    assert (len(rows), rows.split) == (2, "test")
    assert rows.remarks == ["split 'test' of data (it has train, test)"]
    assert len(Rows.of(both, "train")) == 5
    with pytest.raises(BadData, match=r"'tset'.*'test'"):
        Rows.of(both, "tset")


def test_nested_translations_become_columns():
    rows = Rows.of([{"id": "1", "translation": {"en": "a dog", "fr": "un chien"}}])
    assert rows.table == {"id": ["1"], "en": ["a dog"], "fr": ["un chien"]}
    assert find_translation(rows, "en", "fr") == ("en", "fr", [])


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("a fine film\t1\na dull one\t0\nanother\t1\n", False),
        ("sentence\tlabel\na dull one\t0\nanother\t1\n", True),
        ("opinion\tverdict\na dull one\tbad\nanother\tgood\nthird\tbad\n", True),
        ("a dull one\tbad\nanother\tgood\nthird\tbad\n", False),
        ("gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tThe sailors rided.\n", False),
        ("text\n1\t2\n", None),
    ],
)
def test_headers_are_recognised(tmp_path, content, header):
    path = write(tmp_path / "x.tsv", content)
    if header is None:
        with pytest.raises(BadData, match=r"x\.tsv, line 2: 2 columns.*\b1$"):
            Rows.of(path)
        return
    rows = Rows.of(path)
    assert len(rows) == content.count("\n") - header
    assert rows.remarks == {
        "sentence": [],
        "opinion": ["the first line of x.tsv is read as a header"],
    }.get(content.split("\t")[0], ["x.tsv has no header: its columns are counted from 0"])
    assert rows.place(0) == f"x.tsv, line {2 if header else 1}"


cells = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\t\n\r\0"), min_size=1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cells, st.sampled_from(["0", "1"])), min_size=1, max_size=5))
def test_a_tsv_gives_back_every_character(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "x.tsv"
    write(path, "id\ttext\tlabel\n" + "".join(f"7\t{text}\t{label}\n" for text, label in rows))
    read = Rows.of(path)
    assert list(zip(read.column("text"), read.column("label"), strict=True)) == rows


def test_a_csv_may_hold_line_breaks_and_names_the_line_where_a_row_begins(tmp_path):
    path = write(tmp_path / "x.csv", 'text,label\n"two\nlines",1\n\n"with ""quotes"", and comma",0\n')
    rows = Rows.of(path)
    assert rows.column("text") == ["two\nlines", 'with "quotes", and comma']
    assert rows.place(1, "label") == "x.csv, line 5, column 'label'"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", b"a\t1\tx\ty\nb\t0\n", r"train\.tsv, line 2: 2 columns.*4$"),
        ("x.csv", b'text,label\n"open,1\n', r"x\.csv, line 2: .*csv"),
        ("x.csv", b"", r"x\.csv .*empty"),
        ("x.txt", b" \n\n", r"x\.txt .*empty"),
        ("x.tsv", "text\tlabel\nna\xefve\t1\n".encode("latin-1"), r"x\.tsv, line 2: .*UTF-8"),
        ("x.tsv", b"text\tlabel\n", r"x\.tsv: .*no rows"),
        ("x.tsv", b"some\tsome\nother\t1\n", None),
        ("x.tsv", b"text\ttext\tlabel\nsome\tmore\t1\n", r"x\.tsv, line 1: .*'text'"),
        ("x.xlsx", bytes(range(256)), r"x\.xlsx, line 2: .*UTF-8.*workbook"),
        ("x.jsonl", b'{"text": "a"}\n{"text": \n', r"x\.jsonl, line 2: .*JSON.* column 10$"),
        ("x.jsonl", b'{"text": "a"}\n[1]\n', r"x\.jsonl, line 2: .*JSON object"),
        ("x.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', r"x\.jsonl, line 2: .*'label'.*line 1"),
        ("x.parquet", b"nothing like it", r"x\.parquet .*not a parquet file"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    if message is None:
        assert len(Rows.of(tmp_path / name)) == 2  # a repeated name is no header
        return
    with pytest.raises(BadData, match=f"^{message}") as refusal:
        Rows.of(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_other_refusals(tmp_path, monkeypatch):
    with pytest.raises(BadData, match=r"no file .*missing\.tsv"):
        Rows.of(tmp_path / "missing.tsv")
    with pytest.raises(BadData, match=r"\bint\b"):
        Rows.of(3)
    with pytest.raises(BadData, match=r"\brows\b"):
        Rows.of([])
    with pytest.raises(BadData, match=r"example 1: .*'label'.*example 0"):
        Rows.of([{"text": "a", "label": 1}, {"text": "b"}])
    path = write(tmp_path / "x.tsv", "text\tlabel\na\t1\nb\t0\n")
    with pytest.raises(BadData, match=r"x\.tsv .*'test'.*split="):
        Rows.of(path, "test")
    rows = Rows.of(path)
    with pytest.raises(BadData, match=r"x\.tsv: .*'lable'.*'label'"):
        rows.column("lable")
    with pytest.raises(BadData, match=r"x\.tsv .*column 2\b.*\b2, counted from 0"):
        rows.column(2)

    (tmp_path / "model").mkdir()
    write(tmp_path / "model/config.json", "{}")
    with pytest.raises(BadData, match=r"model is the directory of a model"):
        Rows.of(tmp_path / "model")

    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the hub\nlong story")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(BadData, match=r"^someone/data: .*no such file.*the hub cannot be reached"):
        Rows.of("someone/data")


def test_a_hub_id_is_loaded_with_its_configuration_and_split(monkeypatch):
    asked = []

    def load(path, name=None, *, split=None, **others):
        asked.append((path, name, split))
        assert not others  # above all no trust_remote_code
        return datasets.Dataset.from_list([{"sentence": "fine", "label": 1}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    rows = Rows.of("nyu-mll/glue:sst2", "validation[:10]")
    assert asked == [("nyu-mll/glue", "sst2", "validation[:10]")]
    assert (rows.source, rows.split, rows.names) == ("nyu-mll/glue:sst2", "validation[:10]", ["sentence", "label"])


def test_a_limited_choice_is_random_repeatable_and_in_order(tmp_path):
    path = write(tmp_path / "x.tsv", "text\tlabel\n" + "".join(f"text {i}\t{i % 2}\n" for i in range(50)))
    rows = Rows.of(path)
    few = rows.take(10, seed=3)
    numbers = [int(text.split()[1]) for text in few.column("text")]
    assert numbers == sorted(numbers) != list(range(10))
    assert [few.place(i) for i in range(10)] == [f"x.tsv, line {n + 2}" for n in numbers]
    assert rows.take(10, seed=3).table == few.table != rows.take(10, seed=4).table
    assert rows.take(10, seed=None).column("text") == rows.column("text")[:10]
    assert few.remarks == ["10 of 50 rows of x.tsv: a random sample (seed 3)"]
    assert rows.take(99) is rows
    with pytest.raises(BadData, match="at least 1, not 0"):
        rows.take(0)
    memory = Rows.of([{"text": str(i)} for i in range(9)]).take(3, seed=1)
    assert memory.place(0) == f"data, example {memory.column('text')[0]}"


def test_aligned_files_must_be_as_long(tmp_path):
    source, target = write(tmp_path / "val.en", "a dog\na cat\n"), write(tmp_path / "val.fr", "un chien\nun chat")
    rows = aligned(Rows.of(source), Rows.of(target))
    assert rows.table == {"source": ["a dog", "a cat"], "target": ["un chien", "un chat"]}
    write(target, "un chien\n")
    with pytest.raises(BadData, match=r"val\.en has 2 .*val\.fr has 1\b"):
        aligned(Rows.of(source), Rows.of(target))


@pytest.mark.parametrize(
    ("columns", "text", "pair", "label"),
    [
        ("sentence label idx", "sentence", None, "label"),
        ("premise hypothesis label", "premise", "hypothesis", "label"),
        ("Quality #1_ID #2_ID #1_String #2_String", "#1 String", "#2 String", "Quality"),
        ("question sentence label", "question", "sentence", "label"),
    ],
)
def test_well_known_columns_are_guessed(columns, text, pair, label):
    rows = Rows({name.replace("_", " "): ["0", "1"] for name in columns.split()})
    assert find_label(rows, None)[0] == label
    first, second, remarks = find_text(rows, None, None, label)
    assert (first, second) == (text, pair)
    assert remarks[0].startswith("text")


def test_hopeless_guesses_say_what_to_pass():
    with pytest.raises(BadData, match=r"one column.* text .* label"):
        find_label(Rows({"text": ["a"]}), None)
    with pytest.raises(BadData, match=r"among a, b; .*label="):
        find_label(Rows({"a": ["x" * 40] * 2, "b": ["y" * 40] * 2}), None)
    with pytest.raises(BadData, match=r"among a, b; .*text="):
        find_text(Rows({"a": [1], "b": [2]}), None, None)
    with pytest.raises(BadData, match=r"val\.en .*target_data="):
        find_translation(Rows({"text": ["a"]}, "val.en"), None, None)
    with pytest.raises(BadData, match=r"source .*among id, year; .*source="):
        find_translation(Rows({"id": [1], "year": [2]}), None, None)
    two = Rows({"text": ["a"], "id": ["b"]}, "val.fr")
    with pytest.raises(BadData, match=r"val\.fr .*text, id; .*target="):
        aligned(Rows({"text": ["a"]}), two)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "size", "text", "pair", "label", "first"),
    [
        ("sst2/dev.tsv", 872, "0", None, "1", "one long string of cliches"),
        ("sst2/train.tsv", 6920, "0", None, "1", None),
        ("cola/in_domain_dev.tsv", 527, "3", None, "1", "The sailors rode the breeze clear of the rocks."),
        ("cola/in_domain_train.tsv", 8551, "3", None, "1", None),
        ("cola/out_of_domain_dev.tsv", 516, "3", None, "1", None),
        ("mrpc/train.txt", 4076, "#1 String", "#2 String", "Quality", None),
        ("mrpc/test.txt", 1725, "#1 String", "#2 String", "Quality", None),
    ],
)
def test_the_real_files_are_read_right(shared, file, size, text, pair, label, first):
    rows = Rows.of(shared / "data" / file)
    assert len(rows) == size
    assert find_label(rows, None)[0] == label
    assert find_text(rows, None, None, label)[:2] == (text, pair)
    assert set(rows.column(label)) == {"0", "1"}
    if first:
        assert rows.column(text)[0] == first


@pytest.mark.slow
def test_the_real_aligned_files(shared):
    for name, size in (("train", 29000), ("val", 1014), ("test_2017_mscoco", 461)):
        sides = [Rows.of(shared / "data/multi30k" / f"{name}.{language}") for language in ("en", "fr")]
        assert len(aligned(*sides)) == size


def test_a_data_frame_is_data():
    frame = pandas.DataFrame({"text": ["fine", "dull", None], "label": [1, 0, 1]}, index=[10, 20, 30])
    rows = Rows.of(frame)
    assert rows.table == {"text": ["fine", "dull", None], "label": [1, 0, 1]}
    assert rows.place(1, "text") == "data, row 20, column 'text'"
    assert all(type(value) is int for value in rows.table["label"])
    strings = pandas.DataFrame(
        {"text": pandas.array(["fine", pandas.NA], dtype="string"), "score": [0.5, float("nan")]}
    )
    assert Rows.of(strings).table == {"text": ["fine", None], "score": [0.5, None]}
    with pytest.raises(BadData, match="no rows"):
        Rows.of(frame[:0])
    with pytest.raises(BadData, match="two columns"):
        Rows.of(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.parametrize("name", ["dev.csv", "dev.txt", "dev.tsv"])
def test_semicolons_get_a_hint(tmp_path, name):
    rows = Rows.of(write(tmp_path / name, "text;label\na fine film;1\na dull film;0\n"))
    with pytest.raises(BadData, match=r"only one column.*semicolons.*commas or tabs"):
        find_label(rows, None)
    with pytest.raises(BadData, match=r"only one column.*semicolons"):
        find_translation(rows, None, None)


def test_semicolons_get_a_hint_where_commas_in_texts_make_columns(tmp_path):
    with pytest.raises(BadData, match=r"line 2: 2 columns; expected 1.*semicolons"):
        Rows.of(write(tmp_path / "dev.csv", "text;label\na fine, long film;1\na dull film;0\n"))


def test_the_other_text_of_a_pair_is_not_dropped_in_silence():
    rows = Rows({"premise": ["a"], "hypothesis": ["b"], "label": [0]})
    text, pair, remarks = find_text(rows, "hypothesis", None)
    assert (text, pair) == ("hypothesis", None)
    assert "'premise' is left out" in remarks[0]
    assert find_text(rows, "hypothesis", "premise")[2] == []
    assert find_text(Rows({"text": ["a"], "premise": ["b"]}), "premise", None)[2] == []
