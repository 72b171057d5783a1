"""Pruned models in plain transformers: one fixed file and `auto_map`, for every family, and nothing run unasked."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForSequenceClassification, Trainer, TrainingArguments, pipeline

import zoo
from headcount import HeadcountError, anatomy, load, remove, save
from headcount.structure import whole_anatomy
from headcount.surgery.other_libraries import CODE, MODELING
from oracle import off_by, run

CASES = [(name, cls) for name, family in zoo.ZOO.items() for cls in family.classes[:2]]
CASES.remove(("clip", "CLIPTextModelWithProjection"))  # no Auto class builds it
BLOCKED = """import sys
class Absent:
    def find_spec(self, name, *rest):
        if name == "headcount":
            raise ModuleNotFoundError("No module named 'headcount'")
sys.meta_path.insert(0, Absent())
from transformers import AutoModel
AutoModel.from_pretrained({path!r}, trust_remote_code=True)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """transformers copies the file to a cache before it imports it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])


def ragged(model):
    """Without a head at the first site, any head at the last, and some neurons of the first layer."""
    sites = whole_anatomy(model).sites
    heads = [site for site in sites if site.unit == "head"]
    gone = dict.fromkeys([str(heads[0].heads[1]), *(str(head) for head in heads[-1].heads)])
    gone |= {f"{site.name}.0-2": None for site in [site for site in sites if site.unit == "neuron"][:1]}
    return remove(model, list(gone))


def auto_class(path, cls):
    """The Auto class that builds a class, as config.json says."""
    found = json.loads((path / "config.json").read_text())["auto_map"]
    return next((getattr(transformers, auto) for auto, where in found.items() if where == f"{MODELING}.{cls}"), None)


@pytest.mark.parametrize(("name", "cls"), CASES)
def test_auto_classes_load_every_family(name, cls, tmp_path):
    smaller = ragged(zoo.build(name, cls))
    path = save(smaller, tmp_path / "small")
    assert (path / f"{MODELING}.py").read_text() == CODE
    auto = auto_class(path, cls)
    assert auto is not None
    plain = auto.from_pretrained(path, trust_remote_code=True).eval()
    assert off_by(run(plain, zoo.inputs(name)), run(smaller, zoo.inputs(name))) <= 1e-6
    assert whole_anatomy(plain).heads == whole_anatomy(smaller).heads
    assert isinstance(plain, getattr(transformers, cls))


@pytest.mark.parametrize("name", [name for name, family in zoo.ZOO.items() if family.generator])
def test_auto_loaded_generators_generate_the_same(name, tmp_path):
    cls = zoo.ZOO[name].generator
    smaller = ragged(zoo.build(name, cls))
    path = save(smaller, tmp_path / "small")
    plain = auto_class(path, cls).from_pretrained(path, trust_remote_code=True).eval()
    assert torch.equal(zoo.generate(plain, name), zoo.generate(smaller, name))


def test_a_bare_model_loads_from_a_classifier_and_a_new_head_can_be_put_on_it(tmp_path):
    smaller = ragged(zoo.build("bert", "BertForSequenceClassification"))
    path = save(smaller, tmp_path / "small")
    bare = AutoModel.from_pretrained(path, trust_remote_code=True).eval()
    assert off_by(run(bare, zoo.inputs("bert")), run(smaller.bert, zoo.inputs("bert"))) <= 1e-6
    path = save(bare, tmp_path / "bare")
    fresh = AutoModelForSequenceClassification.from_pretrained(path, trust_remote_code=True, num_labels=5)
    assert fresh.classifier.out_features == 5
    assert anatomy(fresh).heads == anatomy(smaller).heads


def test_what_the_trainer_saves_loads_too(tmp_path):
    smaller = ragged(zoo.build("bert", "BertForSequenceClassification"))
    plain = AutoModelForSequenceClassification.from_pretrained(save(smaller, tmp_path / "a"), trust_remote_code=True)
    rows = [{"input_ids": list(range(4, 10)), "attention_mask": [1] * 6, "labels": n % 3} for n in range(4)]
    for number, model in enumerate((smaller, plain, load(tmp_path / "a"))):
        settings = TrainingArguments(str(tmp_path / f"t{number}"), max_steps=1, report_to=[], use_cpu=True)
        trainer = Trainer(model, settings, train_dataset=rows)
        trainer.train()
        trainer.save_model(str(tmp_path / f"tuned{number}"))
        again = AutoModelForSequenceClassification.from_pretrained(tmp_path / f"tuned{number}", trust_remote_code=True)
        model.eval()
        assert torch.equal(run(again.eval(), zoo.inputs("bert")), run(model, zoo.inputs("bert")))
        assert torch.equal(run(load(tmp_path / f"tuned{number}"), zoo.inputs("bert")), run(model, zoo.inputs("bert")))


def test_pipelines_take_it(tmp_path, tokenizer):
    smaller = ragged(zoo.build("llama", "LlamaForCausalLM"))
    path = save(smaller, tmp_path / "small", tokenizer=tokenizer)
    speak = pipeline("text-generation", model=str(path), trust_remote_code=True, device="cpu")
    told = speak("w5 w6 w7", max_new_tokens=5, do_sample=False, return_full_text=False)[0]["generated_text"]
    ids = tokenizer("w5 w6 w7", return_tensors="pt")
    assert told == tokenizer.decode(smaller.generate(**ids, max_new_tokens=5, do_sample=False)[0, 3:])


def test_copies_and_pickles_stay_portable():
    smaller = ragged(zoo.build("bert"))
    for other in (copy.deepcopy(smaller), pickle.loads(pickle.dumps(smaller))):
        assert type(other) is type(smaller)
        assert torch.equal(run(other, zoo.inputs("bert")), run(smaller, zoo.inputs("bert")))
    assert run(smaller, zoo.inputs("bert")).shape
    outputs = smaller(**zoo.inputs("bert"), output_hidden_states=True)
    assert len(outputs.hidden_states) == zoo.LAYERS + 1


def test_whole_models_and_uniform_cuts_need_none_of_it(tmp_path):
    whole = save(zoo.build("llama"), tmp_path / "whole")
    gone = [f"decoder.{layer}.{index}" for layer in range(zoo.LAYERS) for index in (0, 1, 6, 7)]
    uniform = save(remove(zoo.build("llama"), gone), tmp_path / "uniform")
    for path in (whole, uniform):
        assert not (path / f"{MODELING}.py").exists()
        assert "auto_map" not in json.loads((path / "config.json").read_text())
        AutoModel.from_pretrained(path)
    ragged_again = save(ragged(load(uniform)), uniform)  # replaces it, and back again
    assert (ragged_again / f"{MODELING}.py").exists()
    assert not (save(load(whole), uniform) / f"{MODELING}.py").exists()


@pytest.mark.parametrize("change", [{"version": 9}, {"sites": {"encoder.0": {"kept": [7], "of": 4, "group": 1}}}])
def test_a_damaged_record_is_refused(change, tmp_path):
    path = save(ragged(zoo.build("bert")), tmp_path / "small")
    config = json.loads((path / "config.json").read_text())
    config["headcount"] |= change
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadcountError, match=r"config\.json"):
        AutoModel.from_pretrained(path, trust_remote_code=True)


def test_a_class_without_these_layers_is_refused(tmp_path):
    path = save(ragged(zoo.build("bart", "BartForConditionalGeneration")), tmp_path / "small")
    with pytest.raises(HeadcountError, match=r"encoder\.0"):
        transformers.AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)


def test_load_never_runs_the_file_and_neither_does_transformers_unasked(tmp_path):
    path = save(ragged(zoo.build("bert")), tmp_path / "small")
    mark = tmp_path / "mark"
    (path / f"{MODELING}.py").write_text(f"open({str(mark)!r}, 'w').close()\n{CODE}")
    load(path)
    with pytest.raises(RuntimeError, match="mismatch"):
        AutoModel.from_pretrained(path)
    assert not mark.exists()
    AutoModel.from_pretrained(path, trust_remote_code=True)  # the user said so himself
    assert mark.exists()


def test_without_headcount_the_error_says_what_to_install(tmp_path):
    path = save(ragged(zoo.build("bert")), tmp_path / "small")
    code = BLOCKED.format(path=str(path))
    environment = {"HF_HOME": str(tmp_path / "home"), "PATH": "", "OMP_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert told.returncode == 1
    assert "pip install headcount" in told.stderr
