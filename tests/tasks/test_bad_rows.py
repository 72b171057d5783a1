"""Data that a task cannot use is refused by file, line and column, before anything runs."""

import json

import numpy as np
import pytest
from scipy.io import wavfile

import every_task
from headcount import load_task
from headcount.cli.model_loading import load_model
from headcount.errors import BadData, HeadcountError


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    made = {}

    def load(kind):
        if kind not in made:
            made[kind] = load_model(str(every_task.every_task(kind, tmp_path_factory.mktemp(kind), size=2)[0]))
        return made[kind]

    return load


def rows(*several):
    return "\n".join(json.dumps(row) for row in several)


SQUAD = {"context": "a dog runs", "qas": [{"question": "who", "id": "q7"}]}
BAD = {
    "a word without a tag": ("tagging", "bad.tsv", "a\tO\n\ndog\n", r"bad\.tsv, line 3: 1 column;"),
    "an unknown tag": ("tagging", "bad.tsv", "a\tO\n\ndog\tO\ncat\tB-car\n", r"line 4, column 'tags'.*'B-car'"),
    "tags missing": ("tagging", "bad.jsonl", rows({"tokens": ["a", "dog"], "tags": ["O"]}),
                     r"bad\.jsonl, line 1, column 'tags': 1 tag for 2 words"),
    "an empty sentence": ("tagging", "bad.jsonl", rows({"tokens": [], "tags": []}), r"line 1, column 'tokens'.*empty"),
    "SQuAD without answers": (
        "answering", "bad.json", json.dumps({"data": [{"paragraphs": [SQUAD]}]}), r"bad\.json.*answers",
    ),
    "an answer from elsewhere": (
        "answering", "bad.jsonl", rows({"question": "who", "context": "a dog runs", "answers": ["cat"]}),
        r"bad\.jsonl, line 1, column 'answers'.*'cat' is not in the context",
    ),
    "questions alone": ("answering", "bad.tsv", "text\tlabel\na dog\tfine\na cat\tdull\n", r"bad\.tsv: .*label=…"),
    "words alone": ("tagging", "bad.jsonl", rows({"tokens": ["a", "dog"]}), r"bad\.jsonl: .*label=…"),
    "texts for choices": ("choice", "bad.txt", "a dog\na cat\n", r"bad\.txt, line 1.*choices=…"),
    "a choice that is none": (
        "choice", "bad.jsonl", rows({"question": "a", "choices": ["dog", "cat"], "label": 2}),
        r"line 1, column 'label': 2 is none of the 2 choices",
    ),
    "a single choice": ("choice", "bad.jsonl", rows({"question": "a", "choices": ["dog"], "label": 0}),
                        r"line 1, column 'choices'.*at least two"),
    "a score that is no number": (
        "regression", "bad.tsv", "sentence\tscore\na dog\t3\na cat\tmuch\n", r"line 3, column 'score': .*'much'",
    ),
    "single texts to embed": ("embedding", "bad.txt", "a dog\na cat\n", r"bad\.txt.*pair.*labels"),
    "a sound that is not there": (
        "speech", "bad.tsv", "file\ttext\nnone.wav\ta dog\n", r"line 2, column 'file'.*none\.wav",
    ),
    "a transcript without words": (
        "speech", "bad.tsv", "file\ttext\nhere.wav\t...\n", r"line 2, column 'text'.*no words",
    ),
    "a rate of its own": ("speech", "bad.tsv", "file\ttext\nslow.wav\ta\n", r"line 2, column 'file': 8000 samples"),
    "a long recording": ("speech", "bad.tsv", "file\ttext\nlong.wav\ta\n", r"line 2, column 'file'.*1 seconds"),
    "not a recording": ("speech", "bad.tsv", "file\ttext\nbad.tsv\ta\n", r"line 2, column 'file': not a wav"),
    "not an image": ("images", "bad.tsv", "image\tlabel\nbad.tsv\tdark\n", r"line 2, column 'image': not an image"),
    "a class that is none": ("images", "bad.tsv", "image\tlabel\none.png\tgrey\n", r"line 2, column 'label'.*'grey'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_refused_by_their_place(loaded, tmp_path, case):
    import PIL.Image

    kind, name, text, message = BAD[case]
    for file, rate, length in (("here.wav", 16000, 800), ("slow.wav", 8000, 800), ("long.wav", 16000, 17000)):
        wavfile.write(tmp_path / file, rate, np.zeros(length, np.int16))
    PIL.Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    (tmp_path / name).write_text(text)
    model, reader = loaded(kind)
    with pytest.raises(BadData, match=message):
        load_task(None, tmp_path / name, reader, model)


def test_a_model_for_something_else_is_refused(loaded, tmp_path):
    (tmp_path / "data.tsv").write_text("sentence1\tsentence2\tscore\na dog\ta cat\t3\n")
    model, reader = loaded("classification")
    with pytest.raises(HeadcountError, match=r"BertForSequenceClassification.*regression.*classification"):
        load_task("regression", tmp_path / "data.tsv", reader, model)
    with pytest.raises(HeadcountError, match=r"BertForSequenceClassification.*embedding.*classification"):
        load_task("embedding", tmp_path / "data.tsv", reader, model)
    with pytest.raises(HeadcountError, match="model"):
        load_task("embedding", tmp_path / "data.tsv", reader, labels="none")
    with pytest.raises(HeadcountError, match=r"'nothing'.*data, none"):
        load_task("embedding", tmp_path / "data.tsv", reader, model, labels="nothing")
