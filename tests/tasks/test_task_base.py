"""Batches, padding, and what every task shares."""

import numpy as np
import pytest
import torch

from headcount.errors import BadData
from headcount.structure import position_limit
from headcount.tasks import BaseTask, Batch, Metric, Rows
from headcount.tasks.text import word_tokenizer
from tiny_models import bert, gpt, marian

METRIC = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0])


def make(**changes):
    settings = {"labels": [1, 0, 1], "metric": METRIC, "pad": 9, **changes}
    return BaseTask({"input_ids": [[5, 6, 7], [8], [5, 6]]}, **settings)


def test_a_batch_is_padded_to_its_own_longest_only():
    batch = make().batch([1, 2])
    assert batch.inputs["input_ids"].tolist() == [[8, 9], [5, 6]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 0], [1, 1]]
    assert batch.labels.tolist() == [0, 1]
    assert batch.indices == (1, 2)


def test_repeat_stacks_whole_copies():
    batch = make(labels=[[1, 2, 3], [4], [5, 6]]).batch([0, 1]).repeat(3)
    assert len(batch) == 6
    assert batch.indices == (0, 1, 0, 1, 0, 1)
    assert torch.equal(batch.inputs["input_ids"][2:4], batch.inputs["input_ids"][:2])
    assert batch.labels[4].tolist() == [1, 2, 3]
    assert batch.labels[5].tolist() == [4, -100, -100]


def test_to_moves_everything():
    batch = Batch({"input_ids": torch.ones(1, 2)}, torch.ones(1), (0,)).to("meta")
    assert batch.inputs["input_ids"].device.type == batch.labels.device.type == "meta"
    assert Batch({}, None, ()).to("meta").labels is None


def test_a_subset_keeps_examples_keys_and_places():
    task = make(places=["dev.tsv, line 1", "dev.tsv, line 2", "dev.tsv, line 3"])
    part = task.subset([2, 0])
    assert len(part) == 2
    assert part.batch([0]).inputs["input_ids"].tolist() == [[5, 6]]
    assert part.keys() == [task.keys()[2], task.keys()[0]]
    assert part.places == ["dev.tsv, line 3", "dev.tsv, line 1"]
    assert part.signature()["fingerprint"] != task.signature()["fingerprint"]
    assert len(task) == 3
    with pytest.raises(BadData, match=r"\bexamples\b"):
        task.subset([])


def test_rows_and_a_tokenizer_say_what_every_task_has_to_say_of_them():
    """The order counts: a sweep hashes the signature as it stands, to find what it has kept."""
    rows = Rows({"a": ["x", "y", "z"]}, "dev.tsv", "dev", "line", [2, 5, 9], remarks=["a header"])
    about = {"rows": rows, "columns": {"text": "a"}, "remarks": ["cut"], "settings": {"beams": 3}}
    task = make(**about, tokenizer=word_tokenizer("x y z", "gpt"))
    expected = {"data": "dev.tsv", "split": "dev", "text": "a", "tokenizer": type(task.tokenizer).__name__, "beams": 3}
    assert list(task.signature().items())[-5:] == list(expected.items())
    assert task.places == ["dev.tsv, line 2", "dev.tsv, line 5", "dev.tsv, line 9"]
    assert task.remarks[:2] == ["a header", "cut"]
    assert "</s>" in task.remarks[2]  # GPT-2 has no pad token
    assert task.pad == task.tokenizer.eos_token_id != 9
    alone = make(**about)
    assert alone.remarks == ["a header", "cut"]
    assert alone.pad == 9
    assert not hasattr(alone, "tokenizer")
    assert rows.remarks == ["a header"]


def test_keys_find_the_same_input_whatever_its_label():
    assert make().keys() == make(labels=[0, 0, 0]).keys()
    assert make().signature()["fingerprint"] != make(labels=[0, 0, 0]).signature()["fingerprint"]
    assert len(set(make().keys())) == 3


def test_a_nan_is_named_by_its_example():
    task = make(places=["a.tsv, line 4", "a.tsv, line 5", "a.tsv, line 9"])
    batch = task.batch([0, 2])
    with pytest.raises(BadData, match=r"a\.tsv, line 9.* nan"):
        task.columns(batch, torch.ones(2), torch.tensor([0.5, torch.nan]))
    stacked = task.columns(batch, torch.ones(2), torch.tensor([[1, 2], [3, 4]]))
    assert stacked.dtype == torch.float64
    assert stacked.tolist() == [[1, 1, 2], [1, 3, 4]]


def test_all_zero_token_types_are_left_out():
    ids = {"input_ids": [[1, 2], [3]]}
    assert "token_type_ids" not in BaseTask({**ids, "token_type_ids": [[0, 0], [0]]}, metric=METRIC).features
    assert "token_type_ids" in BaseTask({**ids, "token_type_ids": [[0, 1], [0]]}, metric=METRIC).features


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused():
    with pytest.raises(BadData, match=r"example 1 .*\b8\b.*\b8\b"):
        make().check(bert(vocab_size=8))


def test_texts_beyond_the_models_positions_are_refused():
    with pytest.raises(BadData, match=r"\b2 positions .*\b1 text .*example 0: 3 tokens.*\b2 tokens.*max_length="):
        make().check(bert(max_position_embeddings=2))


def test_an_input_that_the_model_does_not_take_is_refused():
    task = BaseTask({"input_ids": [[1]], "nonsense": [[1]]}, metric=METRIC)
    with pytest.raises(BadData, match=r"'nonsense'.* BertForSequenceClassification"):
        task.check(_strict(bert()))


def _strict(model):
    model.forward = lambda input_ids, attention_mask=None: None
    return model


@pytest.mark.parametrize(("model", "expected"), [(bert(), 16), (gpt(), 16), (marian(), 64)])
def test_positions_of_ordinary_models(model, expected):
    assert position_limit(model) == expected


def test_positions_of_roberta_begin_after_the_padding_index():
    from transformers import RobertaConfig, RobertaModel, T5Config, T5Model

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    roberta = RobertaModel(RobertaConfig(vocab_size=20, max_position_embeddings=14, pad_token_id=1, **sizes)).eval()
    limit = position_limit(roberta)
    assert limit == 12
    roberta(torch.full((1, limit), 5))
    with pytest.raises((IndexError, RuntimeError)):
        roberta(torch.full((1, limit + 1), 5))
    t5 = T5Model(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    assert position_limit(t5) is None


def test_signatures_are_plain_json():
    import json

    signature = make(settings={"data": "dev.tsv"}).signature()
    assert json.loads(json.dumps(signature)) == signature
    assert signature["n"] == 3
    assert signature["metric"] == "accuracy"
    assert np.isscalar(signature["fingerprint"])
