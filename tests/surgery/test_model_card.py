"""The model card: metadata that the hub's own parser reads, what was removed and measured, and whose words are kept."""

from __future__ import annotations

import re

import pytest
from huggingface_hub import ModelCard

import zoo
from headcount import anatomy, load, remove, save
from headcount.surgery import Evidence

GONE = ["encoder.0.1", "encoder.2.0", "encoder_ffn.1.0-9"]
FINDINGS = ["accuracy 0.92 before, 0.91 after.", "Non-inferior: drop ≤ 2 points."]


def pruned():
    return remove(zoo.build("bert", "BertForSequenceClassification"), GONE)


def test_what_the_hub_reads(tmp_path):
    command = ["prune", str(tmp_path / "mine" / "bert"), "--max-drop", "2"]
    evidence = Evidence(FINDINGS, "accuracy", 0.91, 436, "dev.tsv", command)
    path = save(pruned(), tmp_path / "small", evidence=evidence)
    card = ModelCard.load(path / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.tags == ["headcount", "pruned"]
    result = card.data.eval_results[0]
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 0.91, "dev.tsv")
    assert result.metric_args == {"examples": 436}
    assert card.data.model_name == "small"
    for fact in (*FINDINGS, "2 of its 12 attention heads", "10 of its 144 neurons", "| encoder.0 | 3 of 4 heads |"):
        assert fact in card.text
    assert "AutoModelForSequenceClassification.from_pretrained" in card.text
    assert "trust_remote_code=True" in card.text
    assert "headcount prune bert --max-drop 2" in card.text  # not where it lay on this machine
    assert str(tmp_path) not in card.content
    assert "1905.10650" in card.text
    assert "1905.09418" in card.text


@pytest.mark.parametrize("gone", [GONE, [f"encoder.{layer}.1" for layer in range(zoo.LAYERS)]])
def test_the_code_of_the_card_runs_where_it_was_saved(tmp_path, monkeypatch, gone):
    monkeypatch.chdir(tmp_path)
    model = remove(zoo.build("bert", "BertForSequenceClassification"), gone)
    text = (save(model, "run/model") / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        names: dict = {}
        exec(block, names)
        assert anatomy(names["model"]).heads == anatomy(model).heads
        assert 'run/model"' in block
    monkeypatch.chdir("run")
    assert '"small"' in (save(model, tmp_path / "run/small") / "README.md").read_text()  # no path of this machine


def test_the_base_model_and_its_license_are_carried_on(tmp_path):
    base = save(zoo.build("bert", "BertForSequenceClassification"), tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: mit\nbase_model: somebody/bert\nlanguage: en\n---\nMine.\n")
    card = ModelCard.load(save(remove(load(base), GONE), tmp_path / "a") / "README.md")
    assert (card.data.license, card.data.base_model, card.data.language) == ("mit", "somebody/bert", "en")
    assert "`base` without" in card.text
    again = save(remove(load(tmp_path / "a"), ["encoder.0.0"]), tmp_path / "again")
    assert "`base` without 3 of its 12" in (again / "README.md").read_text()
    model = load(base)
    model.config._name_or_path = "somebody/bert-tiny"
    card = ModelCard.load(save(remove(model, GONE), tmp_path / "b") / "README.md")
    assert card.data.base_model == "somebody/bert-tiny"
    (base / "README.md").write_text("---\n: [broken\n---\n")
    assert ModelCard.load(save(remove(load(base), GONE), tmp_path / "c") / "README.md").data.license is None


def test_a_stock_cut_needs_no_trust(tmp_path):
    gone = [f"decoder.{layer}.{index}" for layer in range(zoo.LAYERS) for index in (0, 1, 6, 7)]
    text = (save(remove(zoo.build("llama", "LlamaForCausalLM"), gone), tmp_path / "s") / "README.md").read_text()
    assert "AutoModelForCausalLM" in text
    assert "trust_remote_code" not in text


def test_your_own_card_is_kept_and_ours_is_replaced(tmp_path):
    path = save(pruned(), tmp_path / "small", evidence=Evidence(FINDINGS))
    assert FINDINGS[1] in (path / "README.md").read_text()
    save(pruned(), path)
    assert FINDINGS[1] not in (path / "README.md").read_text()  # nothing was measured of this one
    (path / "README.md").write_text("My words.\n")
    save(pruned(), path, evidence=Evidence(FINDINGS))
    assert (path / "README.md").read_text() == "My words.\n"
    other = save(pruned(), tmp_path / "other")
    save(zoo.build("bert"), other)  # a whole model: there is nothing to tell, and the old story is not its own
    assert not (other / "README.md").exists()
