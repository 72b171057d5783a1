"""Language modelling: the loss of the model itself, blocks, and masking that never changes."""

import math

import pytest
import torch

from headcount.errors import BadData
from headcount.tasks import LanguageModeling, metrics
from headcount.tasks.text import word_tokenizer
from tiny_models import bert, gpt, marian, masked_bert

TEXTS = ["a dog runs", "the fine cat sleeps", "film", "", "a dull film runs the dog a cat sleeps fine"]
ROWS = [{"text": text} for text in TEXTS]
MANY = word_tokenizer(" ".join(f"w{i}" for i in range(200)))
LONG = [{"text": " ".join(f"w{(7 * i + j) % 200}" for j in range(40))} for i in range(30)]


def test_the_causal_loss_is_the_models_own(gpt_tokenizer):
    task, model = LanguageModeling(ROWS, gpt_tokenizer), gpt()
    remarks = task.check(model)
    assert "2 of 5 texts are too short to predict anything and were left out" in remarks
    assert [task.places[i] for i in range(3)] == ["data, example 0", "data, example 1", "data, example 4"]
    batch = task.batch([0, 1, 2])
    with torch.no_grad():
        outputs = task.outputs(model, batch)
    losses = task.losses(outputs, batch)
    statistics = task.statistics(outputs, batch)
    total = 0.0
    for i in range(3):
        ids = torch.tensor([task.features["input_ids"][i]])
        own = model(ids, labels=ids).loss.item()
        assert losses[i].item() == pytest.approx(own, rel=1e-4)
        total += own * (ids.shape[1] - 1)
    tokens = sum(len(text.split()) - 1 for text in TEXTS if " " in text)
    sums = statistics.sum(0).numpy()
    assert sums[0] == tokens
    assert task.metric.of_sums(sums) == pytest.approx(math.exp(total / tokens), rel=1e-4)
    right = sum(
        int((outputs[i, : len(ids) - 1].argmax(-1) == torch.tensor(ids[1:])).sum())
        for i, ids in enumerate(task.features["input_ids"])
    )
    assert metrics.accuracy(sums) == right / tokens


def test_long_texts_are_split_and_nothing_is_lost(gpt_tokenizer):
    task = LanguageModeling(ROWS, gpt_tokenizer, block=4)
    assert max(task.lengths) == 4
    pieces = [gpt_tokenizer.decode(ids) for ids in task.features["input_ids"]]
    assert " ".join(pieces[2:]) == TEXTS[4][: len(" ".join(pieces[2:]))]
    remarks = [remark for remark in task.check(gpt()) if "longer than 4 tokens" in remark]
    assert len(remarks) == 1
    assert "4 texts became 6 pieces" in remarks[0]


def test_the_masked_loss_is_the_models_own():
    task, model = LanguageModeling(LONG, MANY), masked_bert(vocab_size=210, max_position_embeddings=64)
    task.check(model)
    batch = task.batch(range(10))
    with torch.no_grad():
        outputs = task.outputs(model, batch)
        own = model(**batch.inputs, labels=batch.labels).loss
    assert metrics.loss(task.statistics(outputs, batch).sum(0).numpy()) == pytest.approx(own.item(), rel=1e-5)


def test_masking_is_fixed_by_seed_and_text_alone():
    whole = LanguageModeling(LONG, MANY)
    again = LanguageModeling(list(reversed(LONG)), MANY)
    assert whole.features["input_ids"] == again.features["input_ids"][::-1]
    assert whole.labels == again.labels[::-1]
    other = LanguageModeling(LONG, MANY, seed=1)
    assert whole.features["input_ids"] != other.features["input_ids"]
    assert whole.keys() == other.keys()  # the same texts
    assert whole.signature() != other.signature()


def test_fifteen_percent_are_hidden_as_bert_was_trained():
    task = LanguageModeling(LONG * 1, MANY)
    hidden = masked = kept = 0
    for ids, labels, original in zip(task.features["input_ids"], task.labels, task.content, strict=True):
        for token, label, before in zip(ids, labels, original, strict=True):
            if label == -100:
                assert token == before
            else:
                assert label == before
                assert before not in MANY.all_special_ids
                hidden += 1
                masked += token == MANY.mask_token_id
                kept += token == before
    assert hidden == 30 * 6  # 15% of 40 words
    assert 0.7 < masked / hidden < 0.9
    assert 0.03 < kept / hidden < 0.2


def test_masked_pieces_all_have_their_ends():
    task = LanguageModeling(LONG, MANY, block=12)
    assert len(task) == 30 * 4
    ends = {(piece[0], piece[-1]) for piece in task.content}
    assert ends == {(MANY.cls_token_id, MANY.sep_token_id)}


def test_the_wrong_kind_of_model_is_refused(tokenizer, gpt_tokenizer):
    with pytest.raises(BadData, match=r"GPT2LMHeadModel .*causal .*not .*masked .*masked="):
        LanguageModeling(LONG, MANY).check(gpt(vocab_size=210, n_positions=64))
    with pytest.raises(BadData, match=r"BertForMaskedLM .*masked .*not .*causal .*masked="):
        LanguageModeling(ROWS, gpt_tokenizer).check(masked_bert())
    with pytest.raises(BadData, match=r"mask token.*masked="):
        LanguageModeling(ROWS, gpt_tokenizer, masked=True)
    for other in (bert(), marian()):  # a classifier, an encoder-decoder
        with pytest.raises(BadData, match=f"{type(other).__name__} .*masked"):
            LanguageModeling(ROWS, tokenizer).check(other)
    with pytest.raises(BadData, match=r"\bexamples\b"):
        LanguageModeling([{"text": " "}], gpt_tokenizer)
