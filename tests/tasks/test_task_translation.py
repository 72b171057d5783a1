"""Translation: decoding, scores against sacrebleu, and the decoder inputs of every family."""

import pytest
import sacrebleu
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from headcount.errors import BadData
from headcount.tasks import Translation, metrics
from headcount.tasks.statistics import TextScorer
from headcount.tasks.translation import decoder_inputs, language_token, languages_set
from tiny_models import bert, marian

PAIRS = [
    ("a dog runs", "un chien court bien"),
    ("the cat", "le chat"),
    ("a fine cat sleeps the", "un chat dort bien le chien"),
    ("dog", "chien"),
    ("the dull film runs a dog a cat", "le film court mal"),
]
ROWS = [{"en": a, "fr": b} for a, b in PAIRS]
NAMES = {"source": "en", "target": "fr"}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 30}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 32,
}


def families():
    torch.manual_seed(0)
    t5 = T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, **IDS)
    return {
        "marian": marian(),
        "bart": BartForConditionalGeneration(BartConfig(decoder_start_token_id=2, **BART, **IDS)).eval(),
        "mbart": MBartForConditionalGeneration(MBartConfig(**BART, **IDS)).eval(),
        "m2m100": M2M100ForConditionalGeneration(M2M100Config(decoder_start_token_id=2, **BART, **IDS)).eval(),
        "pegasus": PegasusForConditionalGeneration(PegasusConfig(decoder_start_token_id=0, **BART, **IDS)).eval(),
        "t5": T5ForConditionalGeneration(t5).eval(),
    }


@pytest.fixture(scope="module")
def models():
    return families()


@pytest.mark.parametrize("family", ["marian", "bart", "mbart", "m2m100", "pegasus", "t5"])
def test_the_reference_is_predicted_as_the_model_itself_does(models, marian_tokenizer, family):
    model = models[family]
    task = Translation(ROWS, marian_tokenizer, **NAMES, metric="loss")
    task.check(model)
    batch = task.batch(range(5))
    with torch.no_grad():
        ours = task.outputs(model, batch)
        theirs = model(**batch.inputs, labels=batch.labels)
    torch.testing.assert_close(ours, theirs.logits)
    # The mean over all tokens is the model's own loss, the sums give it exactly.
    sums = task.statistics(ours, batch).sum(0).numpy()
    assert task.metric.of_sums(sums) == pytest.approx(theirs.loss.item(), rel=1e-5)
    assert metrics.perplexity(sums) == pytest.approx(theirs.loss.exp().item(), rel=1e-4)
    assert sums[0] == sum(len(b.split()) + 1 for _, b in PAIRS)


def test_losses_are_means_over_an_examples_own_tokens(marian_tokenizer):
    model, task = marian(), Translation(ROWS, marian_tokenizer, **NAMES, metric="perplexity")
    batch = task.batch([0, 3])
    losses = task.losses(task.outputs(model, batch), batch)
    for i, index in enumerate((0, 3)):
        alone = task.batch([index])
        own = model(**alone.inputs, labels=alone.labels).loss
        assert losses[i].item() == pytest.approx(own.item(), rel=1e-4)
    losses.sum().backward()
    assert not task.generates


@pytest.mark.parametrize("metric", ["bleu", "chrf", "exact_match"])
def test_scores_of_decoded_texts_are_sacrebleus(marian_tokenizer, metric):
    task = Translation(ROWS, marian_tokenizer, **NAMES, metric=metric)
    texts = ["un chien court", "le chat", "un chat dort bien mal le", "", "le film court mal mal"]
    ids = [marian_tokenizer(text).input_ids for text in texts]
    outputs = torch.tensor([row + [0] * (9 - len(row)) for row in ids])
    sums = task.statistics(outputs, task.batch(range(5))).sum(0).numpy()
    references = [[b for _, b in PAIRS]]
    expected = {
        "bleu": sacrebleu.corpus_bleu(texts, references).score,
        "chrf": sacrebleu.corpus_chrf(texts, references).score,
        "exact_match": 0.2,
    }
    assert float(task.metric.of_sums(sums)) == pytest.approx(expected[metric], rel=1e-13, abs=0)
    assert task.generates
    assert ("version:" in task.metric.signature) == (metric != "exact_match")
    assert task.signature()["metric_signature"] == task.metric.signature


def test_outputs_are_remembered_by_reference_and_tokens(marian_tokenizer):
    task = Translation(ROWS, marian_tokenizer, **NAMES)
    counted = []
    count = task.scorer.count
    task.scorer.count = lambda texts, targets: counted.extend(texts) or count(texts, targets)
    ids = torch.tensor([marian_tokenizer("le chat").input_ids] * 2)
    first = task.statistics(ids, task.batch([1, 0]))
    longer = torch.cat([ids, torch.zeros_like(ids)], dim=1)
    again = task.subset([1, 0]).statistics(longer, task.batch([0, 1]))
    assert torch.equal(first, again)
    assert counted == ["le chat", "le chat"]  # once for each reference
    assert first[0].tolist() != first[1].tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_decoding_is_generates_own_and_does_not_depend_on_the_batch(marian_tokenizer, beams):
    model, task = marian(), Translation(ROWS, marian_tokenizer, **NAMES, beams=beams, max_new_tokens=12)
    together = task.decode(model, task.batch(range(5)))
    own = model.generate(**task.batch(range(5)).inputs, num_beams=beams, do_sample=False, max_new_tokens=13)
    for i in range(5):
        alone = task.decode(model, task.batch([i]))[0].tolist()
        assert _text(together[i].tolist()) == _text(alone)
        if 2 in own[i, 1:13].tolist():  # it ended by itself, so our limit made no difference
            assert _text(own[i, 1:].tolist()) == _text(alone)
    assert len({tuple(_text(row)) for row in together.tolist()}) > 1


def _text(ids):
    return [token for token in ids if token not in (0, 2)]


@pytest.mark.parametrize("beams", [1, 2])
def test_every_example_has_its_own_limit(marian_tokenizer, beams):
    model = marian()
    # It never ends by itself: its output bias forbids the end.
    model.final_logits_bias[0, 2] = -1e9
    task = Translation(ROWS, marian_tokenizer, **NAMES, beams=beams)
    limits = task.limits(model, range(5))
    assert limits == [26, 25, 29, 23, 34]  # ceil(1.5 x tokens) + 20
    ids = task.decode(model, task.batch(range(5)))
    assert [int((row != 0).sum()) for row in ids] == limits
    alone = task.decode(model, task.batch([3]))[0]
    assert ids[3, : limits[3]].tolist() == alone[: limits[3]].tolist()


def test_limits_stay_within_the_models_positions(marian_tokenizer):
    task = Translation(ROWS, marian_tokenizer, **NAMES)
    model = marian(max_position_embeddings=24)
    assert task.limits(model, [0, 3]) == [23, 23]
    assert task.decode(model, task.batch([0, 3])).shape[1] <= 24


def test_subsets_keep_their_references(marian_tokenizer):
    task = Translation(ROWS, marian_tokenizer, **NAMES).subset([3, 1])
    ids = torch.tensor([marian_tokenizer("chien mal").input_ids, marian_tokenizer("le chat").input_ids])
    statistics = task.statistics(ids, task.batch([0, 1]))
    assert statistics[:, 2].tolist() == [1, 2]  # words that match
    assert task.targets == ["chien", "le chat"]


def test_a_forced_first_token_is_passed_on(marian_tokenizer):
    model = marian()
    task = Translation(ROWS, marian_tokenizer, **NAMES, forced_bos_token_id=9, max_new_tokens=5)
    assert (task.decode(model, task.batch(range(5)))[:, 0] == 9).all()
    assert task.signature()["forced_bos_token_id"] == 9


def test_languages_are_set_for_the_tokenizer_and_set_back(marian_tokenizer):
    class Polyglot:
        src_lang, tgt_lang, unk_token_id = "en", None, 3

        def convert_tokens_to_ids(self, token):
            return {"fr_XX": 7}.get(token, 3)

    tokenizer = Polyglot()
    with languages_set(tokenizer, "de", "fr_XX"):
        assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("de", "fr_XX")
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en", None)
    assert language_token(tokenizer, "fr_XX") == 7
    with pytest.raises(BadData, match="'xx'"):
        language_token(tokenizer, "xx")
    with pytest.raises(BadData, match=rf"{type(marian_tokenizer).__name__} .*'fr'"):
        Translation(ROWS, marian_tokenizer, **NAMES, target_language="fr")


def test_the_fallback_shift_is_the_same_as_the_models_own():
    model = marian()
    labels = torch.tensor([[5, 6, 2], [7, 2, -100]])
    own = decoder_inputs(model, labels)

    class Plain:
        config = model.config

    assert torch.equal(decoder_inputs(Plain(), labels), own)
    assert labels.tolist() == [[5, 6, 2], [7, 2, -100]]


def test_what_does_not_fit_is_refused(marian_tokenizer, tmp_path):
    task = Translation(ROWS, marian_tokenizer, **NAMES)
    with pytest.raises(BadData, match=r"BertForSequenceClassification .*encoder-decoder"):
        task.check(bert())
    with pytest.raises(BadData, match=r"\b2, .*\b5$"):
        task.check(marian(eos_token_id=5))
    with pytest.raises(BadData, match=r"token id \d+, .*\b10 tokens"):
        task.check(marian(vocab_size=10))
    with pytest.raises(BadData, match=r"beams .*at least 1, not 0"):
        Translation(ROWS, marian_tokenizer, **NAMES, beams=0)
    with pytest.raises(BadData, match=r"'blue'.*'bleu'"):
        Translation(ROWS, marian_tokenizer, **NAMES, metric="blue")
    (tmp_path / "a.en").write_text("a dog\na cat\n")
    (tmp_path / "a.fr").write_text("un chien\n")
    with pytest.raises(BadData, match=r"a\.en has 2 .*a\.fr has 1\b"):
        Translation(tmp_path / "a.en", marian_tokenizer, target_data=tmp_path / "a.fr")
    long = Translation([{"en": "a", "fr": "le " * 9}], marian_tokenizer, **NAMES, metric="loss")
    with pytest.raises(BadData, match=r"\b10 tokens, .*8 positions; .*8 tokens .*max_length="):
        long.check(marian(max_position_embeddings=8))


def test_bleu_for_languages_without_spaces():
    spaced = TextScorer("bleu", tokenize="char")
    assert spaced.count(["狗跑"], ["狗睡"])[0][:3] == [2, 2, 1]
    assert "tok:char" in spaced.signed(metrics.TRANSLATION["bleu"]).signature


@pytest.mark.slow
def test_the_real_translator_scores_what_its_card_says(shared):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from headcount.tasks import load_task

    folder, data = shared / "models/multi30k-en-fr", shared / "data/multi30k"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options = {"target_data": data / "val.fr", "limit": 300, "seed": None, "max_new_tokens": 60}
    task = load_task(None, data / "val.en", tokenizer, model, **options)
    order = sorted(range(300), key=lambda i: task.lengths[i])
    texts, rows = {}, []
    with torch.no_grad():
        for start in range(0, 300, 60):
            batch = task.batch(order[start : start + 60])
            ids = task.decode(model, batch)
            rows.append(task.statistics(ids, batch))
            texts |= dict(zip(batch.indices, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True))
    score = float(task.metric.of_sums(torch.cat(rows).sum(0).numpy()))
    assert score == pytest.approx(51.04, abs=0.01)
    expected = sacrebleu.corpus_bleu([texts[i] for i in range(300)], [task.targets]).score
    assert score == pytest.approx(expected, rel=1e-13)
