"""What the page says of a text is what the engine measures, to the last digit, and what slow versions find."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import zoo
from explored_models import TEXT, build
from headcount import Classification, HeadcountError, UnsupportedModel, anatomy, evaluate, masked
from headcount.cli.model_loading import load_model
from headcount.explore import Inspector, read_examples
from headcount.explore.readings import NEW_TOKENS
from headcount.tasks.text import word_tokenizer

OFF = {"encoder": ["encoder.0.1", "encoder.1"], "decoder": ["decoder.0.1", "decoder.1"]}


def some_off(inspector):
    return OFF["encoder" if "encoder" in inspector.found.kinds else "decoder"]


def test_effects_are_those_of_evaluate(explored):
    inspector = explored.inspector
    told = inspector.effects(explored.text)
    heads = anatomy(explored.model).heads
    losses = evaluate(explored.model, inspector.reading(explored.text), [[], *([head] for head in heads)]).values[
        :, 0, 0
    ]
    assert told["done"]
    assert told["effects"] == {str(head): loss - losses[0] for head, loss in zip(heads, losses[1:], strict=True)}
    assert len({*told["effects"].values()}) > 4


def test_an_answer_is_that_of_evaluate(explored):
    inspector = explored.inspector
    inspector.read(explored.text)
    off = some_off(inspector)
    values = evaluate(explored.model, inspector.reading(explored.text), [[], off], fast=False).values[:, 0]
    for row, units in zip(values, ([], off), strict=True):
        answer = inspector.answer(explored.text, units)
        assert answer["loss"] == row[0]
        shares = [bar["share"] for bar in answer.get("bars", [])][: len(row) - 1 - len(answer.get("steps", []))]
        shares += answer.get("steps", []) + ([answer["score"]] if "score" in answer else [])
        assert shares == row[1:].tolist()
    assert inspector.answer(explored.text) != inspector.answer(explored.text, off)


def test_effects_come_in_pieces_that_are_the_same(explored):
    at_once, inspector = explored.inspector.effects(explored.text)["effects"], explored.inspector
    seen = []
    while not seen or not seen[-1]["done"]:
        seen.append(inspector.effects(explored.text, seconds=0))
        inspector.answer(explored.text, some_off(inspector))  # somebody clicks in between
    assert len(seen) > 3
    assert seen[-1]["effects"] == at_once


def test_the_loss_of_a_classifier_is_that_of_its_task():
    model, tokenizer, _ = build("classifier")
    inspector = Inspector(model, tokenizer)
    read = inspector.read(TEXT)
    shares = [bar["share"] for bar in read["answer"]["bars"]]
    rows = [{"text": TEXT[0], "label": int(np.argmax(shares))}]
    task = Classification(rows, tokenizer, metric="loss")
    masks = [[], ["encoder.0.1", "encoder.1"], ["encoder_ffn.0"]]
    scores = evaluate(model, task, masks, fast=False).scores()
    assert [inspector.answer(TEXT, off)["loss"] for off in masks] == scores.tolist()
    assert read["answer"]["loss"] == pytest.approx(-np.log(max(shares)), abs=1e-6)


def test_a_pair_is_read_as_a_pair():
    model, tokenizer, _ = build("classifier")
    inspector = Inspector(model, tokenizer)
    read = inspector.read(("a dog", "the cat"))
    assert read["tokens"]["encoder"][0] == ["<s>", "a", "dog", "</s>", "the", "cat", "</s>"]
    with torch.inference_mode():
        inputs = tokenizer("a dog", "the cat", return_tensors="pt")
        expected = model(**inputs).logits[0].softmax(-1)
    assert [bar["share"] for bar in read["answer"]["bars"]] == expected.tolist()


def test_a_translation_is_what_decoding_writes():
    model, tokenizer, _ = build("translator")
    inspector = Inspector(model, tokenizer)
    reading = inspector.reading(TEXT)
    differ = 0
    for head in anatomy(model).heads:
        with torch.inference_mode(), masked(model, off=[head]):
            ids = reading.decode(model, reading.batch([0]))[0].tolist()
        written = tokenizer.decode([token for token in ids if token != reading.pad], skip_special_tokens=True)
        answer = inspector.answer(TEXT, [str(head)])
        assert answer["written"] == written
        differ += written != inspector.answer(TEXT)["written"]
    assert differ > 0


def test_a_continuation_is_what_generate_writes():
    model, tokenizer, _ = build("causal")
    inspector = Inspector(model, tokenizer)
    prompt = tokenizer(TEXT[0], return_tensors="pt")["input_ids"]
    outputs = set()
    for off in ([], *([str(head)] for head in anatomy(model).heads), ["decoder.0", "decoder_ffn.1"]):
        inspector.reading(TEXT)
        with masked(model, off=off):
            ids = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        written = tokenizer.decode(ids[0, prompt.shape[1] :])
        assert inspector.answer(TEXT, off)["written"] == written
        outputs.add(written)
    assert len(outputs) > 2


def test_the_loss_of_a_continuation_by_hand():
    model, tokenizer, _ = build("causal")
    inspector = Inspector(model, tokenizer)
    reading = inspector.reading(TEXT)
    prompt, own = reading.prompt, reading.own
    with torch.inference_mode(), masked(model, off=["decoder.1.2"]):
        logits = model(torch.tensor([[*prompt, *own]])).logits[0]
    chosen = F.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)[range(len(own)), own]
    answer = inspector.answer(TEXT, ["decoder.1.2"])
    assert answer["loss"] == pytest.approx(-float(chosen.mean()), abs=1e-5)
    assert answer["steps"] == pytest.approx(chosen.exp().tolist(), abs=1e-5)
    first = {bar["name"]: bar["share"] for bar in answer["bars"]}
    assert first[reading.steps[0]] == pytest.approx(float(chosen[0].exp()), abs=1e-5)


def test_a_masked_model_fills_the_mask_or_the_last_word():
    model, tokenizer, _ = build("masked")
    inspector = Inspector(model, tokenizer)
    given = inspector.read(("a <mask> dog", None))
    assert not given["remarks"]
    hidden = inspector.read(("a fine dog", None))
    assert hidden["tokens"]["encoder"][0] == ["<s>", "a", "fine", "<mask>", "</s>"]
    assert "<mask>" in hidden["remarks"][0]
    with torch.inference_mode():
        logits = model(**tokenizer("a <mask> dog", return_tensors="pt")).logits[0, 2]
    best = max(given["answer"]["bars"], key=lambda bar: bar["share"])
    assert best["name"] == tokenizer.decode([int(logits.argmax())])
    assert best["share"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-6)


def test_attention_is_the_models_own(explored):
    inspector = explored.inspector
    reading, model = inspector.reading(explored.text), explored.model
    kind = inspector.heads[-1].kind
    batch = reading.batch([0])
    model.set_attn_implementation("eager")
    told = inspector.attention(explored.text, str(inspector.heads[-1]))
    inputs = dict(batch.inputs)
    if kind == "cross":
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch.labels)
    with torch.inference_mode():
        output = model(**inputs, output_attentions=True)
    own = output.cross_attentions if kind == "cross" else output.attentions
    expected = own[inspector.heads[-1].layer][0, inspector.heads[-1].index]
    levels = np.frombuffer(base64.b64decode(told["weights"]), "<u2").reshape(told["rows"], told["columns"])
    assert np.abs(levels / 65535 - expected.numpy()).max() < 1e-5
    queries, keys = reading.tokens[kind]
    assert (len(queries), len(keys)) == levels.shape


def test_tags_and_answers_by_hand():
    model, tokenizer, _ = build("tagger")
    told = Inspector(model, tokenizer).answer(TEXT, ["encoder.0.2"])
    with torch.inference_mode(), masked(model, off=["encoder.0.2"]):
        best = model(**tokenizer(TEXT[0], return_tensors="pt")).logits[0].argmax(-1).tolist()[1:-1]  # a token per word
    pairs = zip(TEXT[0].split(), best, strict=True)
    assert told["written"] == " ".join(word + ("", "/B-person", "/I-person")[tag] for word, tag in pairs)
    model, tokenizer, _ = asked = build("answering")
    told = Inspector(model, tokenizer).answer(asked.text)
    inputs = tokenizer(*asked.text, return_tensors="pt")
    with torch.inference_mode():
        output = model(**inputs)
    words, first = asked.text[1].split(), 4  # after <s> who runs </s>
    scores = {
        (start, end): float(output.start_logits[0, first + start] + output.end_logits[0, first + end])
        for start in range(len(words))
        for end in range(start, len(words))
    }
    start, end = max(scores, key=scores.get)
    assert told["written"] == " ".join(words[start : end + 1])
    ends = (output.start_logits[0].softmax(-1)[first + start], output.end_logits[0].softmax(-1)[first + end])
    assert told["steps"] == pytest.approx([float(share) for share in ends], abs=1e-6)


def test_attention_with_heads_off_below_is_another():
    inspector = build("classifier").inspector
    whole = inspector.attention(TEXT, "encoder.1.0")
    assert inspector.attention(TEXT, "encoder.1.0", ["encoder.0"]) != whole
    assert inspector.attention(TEXT, "encoder.1.0", ["encoder.1.3"]) == whole


def test_long_texts_are_cut_with_a_word():
    model, tokenizer, _ = build("causal")
    inspector = Inspector(model, tokenizer, max_length=6)
    read = inspector.read(("dog " * 50, None))
    assert "6 tokens" in read["remarks"][0]
    assert len(inspector.reading(("dog " * 50, None)).prompt) == 6


def test_families_of_all_kinds_can_be_explored():
    """Shared layers, fused projections, grouped queries, relative positions; encoder-decoders that classify."""
    names = {"albert": "AlbertForSequenceClassification", "bart": "BartForSequenceClassification"}
    names |= {"llama": "LlamaForCausalLM", "bloom": "BloomForCausalLM", "t5": "T5ForConditionalGeneration"}
    names |= {"deberta-v2": "DebertaV2ForSequenceClassification", "gpt-neox": "GPTNeoXForCausalLM"}
    for family, name in names.items():
        style = "bert" if "Classification" in name else "marian" if family == "t5" else "gpt"
        tokenizer = word_tokenizer(" ".join(f"w{n}" for n in range(zoo.VOCAB - 5)), style)
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(zoo.EOS)  # which is its unknown word as well
        inspector, text = Inspector(zoo.build(family, name), tokenizer), ("w5 w9 w3 unknown", None)
        read = inspector.read(text)
        head = str(inspector.heads[0])
        assert inspector.answer(text, [head])["loss"] != read["answer"]["loss"], family
        told = inspector.attention(text, str(inspector.heads[-1]))
        queries, keys = read["tokens"][inspector.heads[-1].kind]
        assert (told["rows"], told["columns"]) == (len(queries), len(keys)), family
        assert len(inspector.effects(text)["effects"]) == len(inspector.heads), family


@pytest.mark.parametrize(
    ("kind", "rows", "first"),
    [
        ("classifier", [{"sentence": "a dog", "label": 1}, {"sentence": " ", "label": 0}], ("a dog", None, "LABEL_1")),
        ("classifier", [{"sentence1": "a dog", "sentence2": "a cat"}], ("a dog", "a cat", None)),
        ("score", [{"text": "a dog", "score": 2.5}, {"text": "a cat", "score": 0.5}], ("a dog", None, None)),
        ("translator", [{"en": "a dog", "fr": "un chien"}], ("a dog", None, "un chien")),
        ("translator", [{"en": "a dog"}], ("a dog", None, None)),
        ("causal", [{"text": "a dog"}], ("a dog", None, None)),
        ("tagger", [{"tokens": ["a", "dog"], "tags": ["O", "O"]}], ("a dog", None, None)),
        ("answering", [{"question": "who runs", "context": "a dog runs"}], ("who runs", "a dog runs", None)),
    ],
)
def test_examples_of_every_kind(kind, rows, first):
    model, tokenizer, _ = build(kind)
    examples, _ = read_examples(model, tokenizer, rows)
    assert len(examples) == sum(bool(row.get("sentence", "text").strip()) for row in rows)
    assert (examples[0]["text"], examples[0]["pair"]) == first[:2]
    assert kind == "score" or examples[0]["label"] == first[2]
    assert Inspector(model, tokenizer).read((examples[0]["text"], examples[0]["pair"]))["answer"]


@pytest.mark.parametrize(
    ("kind", "text", "fact"),
    [
        ("causal", ("a dog", "a cat"), "GPT2LMHeadModel"),
        ("translator", ("a dog", "a cat"), "MarianMTModel"),
        ("classifier", ("  ", None), "empty"),
        ("answering", ("who runs", None), "second text"),
        ("tagger", ("a dog", "a cat"), "BertForTokenClassification"),
    ],
)
def test_refusals(kind, text, fact):
    with pytest.raises(HeadcountError, match=fact):
        build(kind).inspector.read(text)


def test_other_models_are_refused_by_name():
    tokenizer = word_tokenizer("a")
    refused = {"ElectraForPreTraining": "electra", "BartModel": "bart", "ViTModel": "vit"}
    for name, family in refused.items():
        with pytest.raises(UnsupportedModel, match=name):
            Inspector(zoo.build(family, name), tokenizer).read(("a", None))


def test_units_that_do_not_exist_are_refused():
    inspector = build("classifier").inspector
    with pytest.raises(HeadcountError, match=r"encoder\.9\.9"):
        inspector.answer(TEXT, ["encoder.9.9"])
    with pytest.raises(HeadcountError, match=r"encoder\.1\.9"):
        inspector.attention(TEXT, "encoder.1.9")
    assert inspector.answer(TEXT)["loss"] == inspector.read(TEXT)["answer"]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("minilm-sst2", "it 's played in the most straight faced fashion , with little humor to lighten things up"),
        ("multi30k-en-fr", "A boy wearing headphones sits on a woman's shoulders."),
    ],
)
def test_real_models(shared, name, text):
    model, tokenizer = load_model(str(shared / "models" / name), "cpu")
    inspector, asked = Inspector(model, tokenizer), (text, None)
    effects = inspector.effects(asked)["effects"]
    assert len(effects) == len(anatomy(model).heads)
    heads = sorted(effects, key=lambda head: abs(effects[head]))[:: len(effects) // 6]
    plain = evaluate(model, inspector.reading(asked), [[], *([head] for head in heads)], fast=False).values[:, 0, 0]
    for head, loss in zip(heads, plain[1:], strict=True):
        assert effects[head] == pytest.approx(loss - plain[0], abs=1e-5)
        assert inspector.answer(asked, [head])["loss"] == pytest.approx(loss, abs=1e-5)  # perhaps by another library
