"""`save` and `load`: the layout that `save_pretrained` users expect, and a model that works everywhere."""

from __future__ import annotations

import json
import os

import pytest
import torch
import transformers
from transformers import AutoTokenizer, Trainer, TrainingArguments, pipeline

import zoo
from headcount import HeadcountError, anatomy, load, remove, save
from oracle import off_by, run

HEADS = ["encoder.0.1", "encoder.1.0", "encoder.1.1", "encoder.1.2", "encoder.1.3", "encoder.2.2"]


@pytest.fixture(scope="module")
def classifier():
    return remove(zoo.build("bert", "BertForSequenceClassification"), HEADS)


@pytest.fixture(scope="module")
def writer():
    """A generator with uneven groups and an emptied first layer."""
    heads = [*(f"decoder.0.{index}" for index in range(8)), "decoder.1.0", "decoder.1.3", "decoder.1.4"]
    model = zoo.build_generator("llama")
    model.generation_config.max_new_tokens = 4
    model.generation_config.repetition_penalty = 1.5
    return remove(model, heads)


def files(directory):
    return sorted(path.name for path in directory.iterdir())


# -------------------------------------------------------------------------------------------------------------- layout


def test_what_is_written(classifier, writer, tokenizer, tmp_path):
    written = ["README.md", "config.json", "model.safetensors", "modeling_headcount.py"]
    assert files(save(classifier, tmp_path / "bert")) == written
    others = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert files(save(writer, tmp_path / "llama", tokenizer=tokenizer)) == sorted([*written, *others])
    assert files(tmp_path) == ["bert", "llama"]


def test_the_configuration_names_the_heads_left(classifier, tmp_path):
    content = json.loads((save(classifier, tmp_path / "model") / "config.json").read_text())
    assert content["architectures"] == ["BertForSequenceClassification"]
    assert content["num_attention_heads"] == 4  # not uniform: what the model was
    assert content["headcount"]["sites"] == {
        "encoder.0": {"kept": [0, 2, 3], "of": 4, "group": 1},
        "encoder.1": {"kept": [], "of": 4, "group": 1},
        "encoder.2": {"kept": [0, 1, 3], "of": 4, "group": 1},
    }


def test_an_unpruned_model_is_saved_as_ever(tmp_path):
    model = zoo.build("bert", "BertForSequenceClassification")
    path = save(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    assert json.loads((path / "config.json").read_text()) == json.loads((tmp_path / "theirs/config.json").read_text())
    assert (path / "model.safetensors").read_bytes() == (tmp_path / "theirs/model.safetensors").read_bytes()
    batch = zoo.inputs("bert")
    assert torch.equal(run(load(tmp_path / "theirs"), batch), run(model, batch))


def test_sharded_round_trip(classifier, tmp_path):
    path = save(classifier, tmp_path / "model", max_shard_size="10KB")
    shards = [name for name in files(path) if name.endswith(".safetensors")]
    assert len(shards) > 2
    assert "model.safetensors.index.json" in files(path)
    batch = zoo.inputs("bert")
    assert torch.equal(run(load(path), batch), run(classifier, batch))


def test_a_smaller_save_leaves_no_old_shards(classifier, tmp_path):
    save(zoo.build("bert"), tmp_path / "model", max_shard_size="10KB")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"old")
    (tmp_path / "model" / "README.md").write_text("my notes")
    (tmp_path / "model" / "runs").mkdir()
    (tmp_path / "model" / "runs" / "log").write_text("my log")
    path = save(classifier, tmp_path / "model")
    assert files(path) == ["README.md", "config.json", "model.safetensors", "modeling_headcount.py", "runs"]
    assert (path / "README.md").read_text() == "my notes"
    assert (path / "runs" / "log").read_text() == "my log"
    assert files(tmp_path) == ["model"]
    assert torch.equal(run(load(path), zoo.inputs("bert")), run(classifier, zoo.inputs("bert")))


def test_saved_twice_and_loaded_twice_is_the_same(writer, tmp_path):
    once = save(writer, tmp_path / "once")
    twice = save(load(once), tmp_path / "twice")
    for name in set(files(once)) - {"README.md"}:  # which tells where the model came from
        assert (once / name).read_bytes() == (twice / name).read_bytes()
    back = save(load(twice), twice)  # over the checkpoint it came from
    assert torch.equal(run(load(back), zoo.inputs("llama")), run(writer, zoo.inputs("llama")))


def test_a_link_to_a_directory_stays_a_link(classifier, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save(classifier, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real").config.headcount == classifier.config.headcount


# ------------------------------------------------------------------------------------------- tokenizer and generation


def test_tokenizer_and_generation_settings_are_kept(writer, tokenizer, tmp_path):
    first = save(writer, tmp_path / "first", tokenizer=tokenizer)
    loaded = load(first)
    assert loaded.generation_config.repetition_penalty == 1.5
    assert loaded.generation_config.max_new_tokens == 4
    second = save(remove(loaded, "decoder.2.0"), tmp_path / "second")  # no tokenizer named: that of the first
    assert files(second) == files(first)
    words = AutoTokenizer.from_pretrained(second)
    assert words("w5 w6")["input_ids"] == tokenizer("w5 w6")["input_ids"]
    assert load(second).generation_config.repetition_penalty == 1.5


def test_generation_settings_in_an_older_configuration(tmp_path):
    path = save(zoo.build_generator("bart"), tmp_path / "model")
    (path / "generation_config.json").unlink()
    content = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**content, "num_beams": 3, "length_penalty": 0.7}))
    loaded = load(path)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(path)
    assert loaded.generation_config.num_beams == theirs.generation_config.num_beams == 3
    assert loaded.generation_config.length_penalty == 0.7


def test_tokenizer_of_a_model_from_the_hub_cache(classifier, tokenizer, tmp_path, monkeypatch):
    cache = tmp_path / "cache" / "models--someone--model"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    tokenizer.save_pretrained(snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("headcount.surgery.saving.try_to_load_from_cache", cached_in(tmp_path / "cache"))
    monkeypatch.setattr(classifier.config, "_name_or_path", "someone/model")
    assert "tokenizer.json" in files(save(classifier, tmp_path / "model"))
    monkeypatch.setattr(classifier.config, "_name_or_path", "no/such/model at all")
    assert "tokenizer.json" not in files(save(classifier, tmp_path / "other"))


def cached_in(cache):
    from huggingface_hub import try_to_load_from_cache

    return lambda name, file: try_to_load_from_cache(name, file, cache_dir=cache)


# ------------------------------------------------------------------------------------------------------------- loading


def test_loading_options(classifier, tmp_path):
    path = save(classifier, tmp_path / "model")
    assert load(path, attn_implementation="eager").config._attn_implementation == "eager"
    half = load(path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert load(str(path), device_map="cpu").device.type == "cpu"
    again = load(save(half, tmp_path / "half"))
    assert again.dtype == torch.bfloat16
    assert off_by(run(again, zoo.inputs("bert")).float(), run(classifier, zoo.inputs("bert"))) <= 0.1


def test_a_loaded_model_is_ready(classifier, tmp_path):
    loaded = load(save(classifier, tmp_path / "model"))
    assert isinstance(loaded, transformers.BertForSequenceClassification)
    assert not loaded.training
    assert anatomy(loaded).heads == anatomy(classifier).heads
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in loaded.parameters())
    assert all(parameter.data_ptr() % 64 == 0 for parameter in loaded.parameters())
    again = remove(loaded, "encoder.0.3")
    assert [str(head) for head in anatomy(again).site("encoder.0").heads] == ["encoder.0.0", "encoder.0.2"]


def test_text_classification_pipeline(classifier, tokenizer, tmp_path):
    path = save(classifier, tmp_path / "model", tokenizer=tokenizer)
    classify = pipeline("text-classification", model=load(path), tokenizer=AutoTokenizer.from_pretrained(path))
    (answer,) = classify("w5 w6 w7", top_k=1)
    batch = {"input_ids": torch.tensor([[5, 6, 7]])}
    scores = run(classifier, batch).softmax(-1)
    assert answer["label"] == f"LABEL_{scores.argmax()}"
    assert answer["score"] == pytest.approx(scores.max().item(), abs=1e-5)


def test_text_generation_pipeline(writer, tokenizer, tmp_path):
    path = save(writer, tmp_path / "model", tokenizer=tokenizer)
    write = pipeline("text-generation", model=load(path), tokenizer=AutoTokenizer.from_pretrained(path))
    (answer,) = write("w5 w6 w7", do_sample=False, return_full_text=False)
    expected = writer.generate(torch.tensor([[5, 6, 7]]), do_sample=False)[0, 3:]
    assert answer["generated_text"] == tokenizer.decode(expected, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_trainer(name, classifier, writer, tmp_path):
    model = load(save({"bert": classifier, "llama": writer}[name], tmp_path / "model"))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    ids = torch.randint(4, zoo.VOCAB, (8, 6))
    labels = ids if name == "llama" else torch.randint(0, zoo.LABELS, (8,))
    data = [{"input_ids": ids[row], "labels": labels[row]} for row in range(8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
        save_strategy="no", learning_rate=1e-3, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    trainer.save_model(str(tmp_path / "trained"))
    assert any(not torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    again = load(tmp_path / "trained")
    assert anatomy(again).heads == anatomy(model).heads
    batch = {"input_ids": ids}
    assert torch.equal(run(again, batch), run(model.eval(), batch))


# ------------------------------------------------------------------------------------------------- places to save to


def test_places_that_cannot_be_replaced(classifier, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(HeadcountError, match="file is a file"):
        save(classifier, tmp_path / "file")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_text("mine")
    with pytest.raises(HeadcountError, match=r"photos.* no model"):
        save(classifier, tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos")
    with pytest.raises(HeadcountError, match="current directory"):
        save(classifier, ".")
    assert files(tmp_path) == ["file", "photos"]
    assert os.listdir(tmp_path / "photos") == ["me.jpg"]
    with pytest.raises(HeadcountError, match="Linear"):
        save(torch.nn.Linear(2, 2), tmp_path / "new")
    with pytest.raises(HeadcountError, match="below"):
        save(classifier, tmp_path / "file" / "below")
