"""load_task: kinds guessed from the model, limits and labels taken from it."""

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertForNextSentencePrediction

from headcount.errors import BadData, HeadcountError
from headcount.tasks import BaseTask, Classification, LanguageModeling, Task, Translation, load_task
from headcount.tasks.registry import KINDS, find_kind, guess_kind
from tiny_models import bert, gpt, marian, masked_bert

ROWS = [{"text": "a fine dog", "label": "good"}, {"text": "the dull cat sleeps", "label": "bad"}]
BART = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 30, "encoder_attention_heads": 2}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 8}
PAIRS = [{"source": "a dog", "target": "un chien"}, {"source": "the cat", "target": "le chat"}]


def test_the_kind_is_guessed_from_the_models_class(tokenizer, gpt_tokenizer, marian_tokenizer):
    label2id = {"good": 0, "bad": 1}
    task = load_task(None, ROWS, tokenizer, bert(label2id=label2id, id2label={0: "good", 1: "bad"}))
    assert isinstance(task, Classification)
    assert task.labels == [0, 1]  # the model's numbers, not the sorted ones
    assert isinstance(load_task(None, PAIRS, marian_tokenizer, marian()), Translation)
    causal = load_task(None, ROWS, gpt_tokenizer, gpt(), text="text")
    masked = load_task(None, ROWS, tokenizer, masked_bert(), text="text")
    assert isinstance(causal, LanguageModeling)
    assert isinstance(masked, LanguageModeling)
    assert (causal.masked, masked.masked) == (False, True)


def test_a_subclass_is_what_it_inherits_from(marian_tokenizer):
    class Own(type(marian())):
        pass

    assert isinstance(load_task(None, PAIRS, marian_tokenizer, Own(marian().config)), Translation)


@pytest.mark.parametrize("kind", ["lm", "language", "causal", "Language_Modeling", "text-generation"])
def test_aliases(gpt_tokenizer, kind):
    task = load_task(kind, ROWS, gpt_tokenizer, text="text", metric="loss")
    assert isinstance(task, LanguageModeling)
    assert task.metric.name == "loss"


def test_a_kind_that_cannot_be_told(tokenizer):
    bare = BertForNextSentencePrediction(
        BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=30)
    )
    for kind in (None, *(kind.name for kind in KINDS)):  # whatever is asked for: there is no task for it
        with pytest.raises(HeadcountError, match=r"BertForNextSentencePrediction.*docs/tasks.md"):
            load_task(kind, ROWS, tokenizer, bare)
    with pytest.raises(HeadcountError, match=r"without a model.*kind=.*classification, tagging"):
        load_task(None, ROWS, tokenizer)
    with pytest.raises(HeadcountError, match=r"'clasification'.*'classification'"):
        load_task("clasification", ROWS, tokenizer)


def test_every_kind_is_found_by_its_names_and_its_models():
    names = [name for kind in KINDS for name in (kind.name, *kind.aliases)]
    assert len(names) == len(set(names))
    assert all(
        find_kind(name.upper().replace("-", "_")) is kind for kind in KINDS for name in (kind.name, *kind.aliases)
    )
    models = {"classification": bert(), "translation": marian(), "masked": masked_bert(), "causal": gpt()}
    assert {name: find_kind(None, model).name for name, model in models.items()} == {name: name for name in models}
    assert guess_kind(BartForConditionalGeneration(BartConfig(**BART))) == "translation"  # not masked


@pytest.mark.parametrize(
    ("build", "kind", "made_for"),
    [
        (bert, "translation", "classification"),
        (bert, "language", "classification"),
        (marian, "classification", "translation"),
        (marian, "causal", "translation"),
        (gpt, "masked", "causal"),
        (gpt, "classification", "causal"),
        (masked_bert, "causal", "masked"),
    ],
)
def test_a_task_that_the_class_is_not_made_for_is_refused(tokenizer, build, kind, made_for):
    with pytest.raises(HeadcountError, match=rf"not made for {kind}, but for .*{made_for}.*kind="):
        load_task(kind, ROWS, tokenizer, build())


def test_a_class_of_your_own_is_trusted(tokenizer):
    class Mine(torch.nn.Module):
        def forward(self, input_ids, attention_mask=None):
            raise NotImplementedError

    assert find_kind("classification", Mine()).name == "classification"
    with pytest.raises(HeadcountError, match="Mine"):
        find_kind(None, Mine())


def test_beams_that_would_have_no_effect_are_refused(gpt_tokenizer, marian_tokenizer):
    with pytest.raises(BadData, match=r"4 beams.*beams="):
        load_task(None, ROWS, gpt_tokenizer, gpt(), text="text", beams=4)
    with pytest.raises(BadData, match=r"loss.*4 beams"):
        load_task(None, PAIRS, marian_tokenizer, marian(), metric="loss", beams=4)
    assert load_task(None, PAIRS, marian_tokenizer, marian(), beams=4).beams == 4


def test_a_regression_model_is_named_before_a_column_is_guessed(tokenizer):
    rows = [{"genre": "main-news", "sentence": f"a dog {'runs ' * i}", "score": i / 2} for i in range(12)]
    model = bert(num_labels=1)
    with pytest.raises(
        HeadcountError, match=r"not made for classification, but for regression; change kind="
    ) as refused:
        load_task("classification", rows, tokenizer, model)
    assert "genre" not in str(refused.value)
    with pytest.raises(BadData, match=r"multi_label_classification.*docs/tasks\.md"):
        Classification([{"text": "a dog", "label": 0}], tokenizer).check(
            bert(problem_type="multi_label_classification")
        )


def test_texts_are_cut_to_the_models_positions(tokenizer):
    rows = [{"text": "a dog " * 20, "label": 0}, {"text": "a cat", "label": 1}]
    model = bert()
    task = load_task("classification", rows, tokenizer, model)
    assert max(task.lengths) == 16
    assert "1 of 2 texts truncated to 16 tokens" in task.check(model)
    task.outputs(model, task.batch([0, 1]))
    assert max(load_task("classification", rows, tokenizer, model, max_length=5).lengths) == 5


def test_limit_split_and_metric_are_passed_on(tokenizer, tmp_path):
    rows = [{"text": f"a dog {'runs ' * (i % 3)}", "label": i % 2} for i in range(30)]
    task = load_task("classification", rows, tokenizer, limit=10, seed=4, metric="matthews")
    assert len(task) == 10
    assert task.metric.name == "matthews"
    assert "10 of 30 rows of data: a random sample (seed 4)" in task.remarks
    (tmp_path / "a.en").write_text("a dog\nthe cat\n")
    (tmp_path / "a.fr").write_text("un chien\nle chat\n")
    task = load_task("translation", tmp_path / "a.en", tokenizer, target_data=tmp_path / "a.fr", limit=1, beams=2)
    assert (len(task), task.beams) == (1, 2)
    assert task.signature()["data"] == "a.en+a.fr"


def test_columns_that_mean_nothing_are_refused(tokenizer):
    with pytest.raises(BadData, match=r"classification .*source.*'a'.*text=…, pair=…, label=…"):
        load_task("classification", ROWS, tokenizer, source="a")
    with pytest.raises(BadData, match=r"translation .*label.*'a'.*target_data="):
        load_task("translation", PAIRS, tokenizer, label="a")


def test_a_model_that_does_not_fit_is_refused_at_once(tokenizer):
    with pytest.raises(BadData, match=r"example 0, column 'label': .*'good'.*0 to 2"):
        load_task("classification", ROWS, tokenizer, bert(num_labels=3))


def test_all_tasks_keep_the_protocol(tokenizer, gpt_tokenizer, marian_tokenizer):
    asked = [name for name in vars(Task) if not name.startswith("_")] + ["metric", "generates"]
    tasks = [
        load_task("classification", ROWS, tokenizer),
        load_task("translation", PAIRS, marian_tokenizer),
        load_task("language", ROWS, gpt_tokenizer, text="text"),
    ]
    for task in tasks:
        assert isinstance(task, BaseTask)
        assert all(hasattr(task, name) for name in asked)
        assert len(task.lengths) == len(task) == len(task.keys()) == 2
        batch = task.batch([1])
        assert all(isinstance(x, torch.Tensor) and len(x) == 1 for x in batch.inputs.values())
