"""The examples of the documentation are run as they stand there."""

import re

import numpy as np
import pytest

import tiny_models
from headcount import Scores, save
from headcount.settings import SEARCHES
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences


def test_the_importance_example_runs(repository, tmp_path, monkeypatch):
    page = (repository / "docs/importance.md").read_text(encoding="utf-8")
    heads, every = re.findall(r"```python\n(.*?)```", page, re.S)
    save(tiny_models.bert(pad_token_id=0), tmp_path / "model", tokenizer=word_tokenizer(WORDS))
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{i % 2}\n" for i, text in enumerate(sentences(0, 12))))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(heads, names)
    assert len(names["scores"].order()) == 8
    np.testing.assert_array_equal(Scores.load("scores.json").values, names["scores"].values)
    exec(every, names)
    assert names["scores"].counted() == {"heads": 8, "neurons": 64, "sublayers": 4}


@pytest.mark.parametrize("name", SEARCHES)
def test_every_method_is_described(repository, name):
    assert f"`{name}`" in (repository / "docs/pruning.md").read_text(encoding="utf-8")
