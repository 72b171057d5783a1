"""Confidence against V19's definition, computed token by token from the maps that transformers itself returns."""

import numpy as np
import pytest
import torch

import tiny_models
import zoo
from headcount import importance, remove
from headcount.errors import HeadcountError
from headcount.scoring.confidence import confidence
from headcount.structure import anatomy
from headcount.tasks.text import word_tokenizer
from toy_jobs import JOBS, WORDS, classification, translation
from zoo_tasks import CLASS_WITH_LOGITS, ZooTask


def maps_of(output, kind):
    names = {"cross": "cross_attentions", "decoder": "decoder_attentions", "encoder": "encoder_attentions"}
    return getattr(output, names.get(kind, ""), None) or output.attentions


def slow_confidence(model, inputs, end):
    """The mean over tokens of the largest weight to a token that is neither padding nor the end: {head: value}"""
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    text = inputs.get("input_ids")
    mask = inputs.get("attention_mask")
    found = {}
    for site in anatomy(model).sites:
        maps = [maps_of(output, site.kind)[layer] for layer in (site.layer, *site.also_layers)]
        for place, head in enumerate(site.heads):
            largest = []
            for weights in maps:
                for row in range(len(weights)):
                    source = [i for i in range(len(mask[row])) if mask[row, i]] if mask is not None else None
                    source = source and [i for i in source if text[row, i] != end]
                    target = inputs["decoder_input_ids"][row] if "decoder_input_ids" in inputs else None
                    target = None if target is None else [i for i in range(len(target)) if target[i] != end]
                    queries, keys = source, source
                    if target is not None and site.kind in ("decoder", "cross"):
                        queries = target
                        keys = target if site.kind == "decoder" else source
                    for query in range(weights.shape[2]) if queries is None else queries:
                        every = range(weights.shape[3]) if keys is None else keys
                        largest.append(max(float(weights[row, place, query, key]) for key in every))
            found[head] = np.mean(largest)
    return found


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_equals_the_definition_in_every_family(name):
    model = ZooTask.model(name)  # under the family's last kernel, mostly SDPA
    task = ZooTask(name, model, n=3)
    eager = zoo.build(name, CLASS_WITH_LOGITS.get(name, zoo.ZOO[name].classes[1]), attn="eager")
    slow = slow_confidence(eager, task.inputs, zoo.EOS)
    fast = confidence(model, task).mean(0)
    np.testing.assert_allclose(fast, [slow[head] for head in anatomy(model).heads], atol=1e-5)


@pytest.mark.parametrize("job", JOBS)
def test_padding_never_counts(job):
    build, make = JOBS[job]
    model, task = build(), make(n=9)
    alone, together = confidence(model, task, tokens=1), confidence(model, task, tokens=4096)
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_special_tokens_by_choice():
    model, task = JOBS["classifier"][0](), classification(n=6)
    end, special, none = (confidence(model, task, exclude=choice).mean(0) for choice in ("end", "special", "none"))
    assert (none > end).any()
    assert not np.allclose(end, special)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(**task.batch([0]).inputs, output_attentions=True).attentions[1][0]  # <s> words </s>
    one = confidence(model, task.subset([0]), exclude="special")[0, 4:]
    np.testing.assert_allclose(one, weights[:, 1:-1, 1:-1].amax(-1).mean(-1), atol=1e-5)
    with pytest.raises(HeadcountError, match=r"'specials'.*'special'"):
        confidence(model, task, exclude="specials")


def test_long_examples_weigh_more():
    model, task = JOBS["classifier"][0](), classification(n=12)
    values = confidence(model, task)
    lengths = np.array(task.lengths) - 1  # without </s>
    alone = np.stack([confidence(model, task.subset([i]))[0] for i in range(12)])
    assert len(set(task.lengths)) > 1
    np.testing.assert_allclose(values.mean(0), (alone * lengths[:, None]).sum(0) / lengths.sum(), atol=1e-5)


def test_a_pruned_model_and_grouped_heads():
    model = remove(zoo.build("llama", "LlamaForCausalLM"), ["decoder.0.0", "decoder.1.0", "decoder.1.1"])
    whole = ZooTask.model("llama")
    task = ZooTask("llama", model, n=3)
    first = importance(model, task, "confidence")
    every = importance(whole, task, "confidence")
    assert first.heads == anatomy(model).heads
    for head in anatomy(model).sites[0].heads:  # what is left of the first layer attends as before
        assert first[head] == pytest.approx(every[head], abs=1e-5)


def test_an_encoder_without_heads_leaves_the_others():
    model = remove(tiny_models.marian(), [f"encoder.0.{index}" for index in range(4)])
    assert importance(model, translation(n=4), "confidence").raw.shape == (20,)


def test_the_tokenizer_knows_the_end_where_the_configuration_does_not():
    model, task = JOBS["classifier"][0](), classification(n=2)
    assert model.config.eos_token_id is None
    assert task.tokenizer.eos_token_id == word_tokenizer(WORDS).eos_token_id == 2
    assert not np.allclose(confidence(model, task), confidence(model, task, exclude="none"))
