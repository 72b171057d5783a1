"""Large models: sharded checkpoints are never twice in memory, and layers may be anywhere."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from headcount import Classification, HeadcountError, anatomy, capture, importance, load, masked
from headcount.cli.model_loading import load_model
from headcount.evaluation import evaluate
from headcount.structure import device_of
from headcount.tasks.text import word_tokenizer
from tiny_models import bert

WORDS = "a fine dull film was seen by all of us"

LOAD = """
import sys, threading, time, torch
from pathlib import Path
from headcount import load
def own():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
load(sys.argv[3])  # imports what loading needs
before = most = own()
def watch():
    global most
    while True:
        most = max(most, own())
        time.sleep(0.001)
threading.Thread(target=watch, daemon=True).start()
model = load(sys.argv[1], **eval(sys.argv[2]))
most = max(most, own())
print((most - before) / sum(p.numel() * p.element_size() for p in model.parameters()), model.dtype)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """100 MB in files of 10 MB."""
    directory = tmp_path_factory.mktemp("sharded")
    config = BertConfig(
        hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048, vocab_size=500
    )
    BertForSequenceClassification(config).save_pretrained(directory, max_shard_size="10MB")
    bert().save_pretrained(directory / "tiny")
    assert len(list(directory.glob("*.safetensors"))) > 8
    return directory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "options", ["{}", "dict(dtype=torch.bfloat16)", "dict(dtype=torch.bfloat16, device_map='auto')"]
)
def test_a_sharded_checkpoint_is_never_twice_in_memory(checkpoint, options):
    """Memory of the process's own; pages of the files are the system's, which takes them back when it needs them."""
    answer = subprocess.run(
        [sys.executable, "-c", LOAD, checkpoint, options, checkpoint / "tiny"], capture_output=True, text=True
    )
    share, dtype = answer.stdout.split()
    assert dtype == ("torch.bfloat16" if "bfloat16" in options else "torch.float32")
    assert 0.5 < float(share) < 1.4


@pytest.fixture
def task():
    rows = [{"text": " ".join(WORDS.split()[: 1 + place % 9]), "label": place % 2} for place in range(12)]
    return Classification(rows, word_tokenizer(WORDS))


@pytest.fixture
def away():
    """A model whose weights accelerate keeps elsewhere, and fetches layer by layer as they are needed."""
    from accelerate import cpu_offload

    return cpu_offload(bert(), torch.device("cpu"))


def test_layers_that_are_elsewhere_change_nothing(task, away):
    here = bert()
    assert all(weight.is_meta for weight in away.parameters())
    assert device_of(away).type == "cpu"
    masks = [(), *([head] for head in anatomy(here).heads[:3])]
    assert np.allclose(evaluate(here, task, masks).values, evaluate(away, task, masks).values, atol=1e-6)
    assert np.allclose(importance(here, task).values, importance(away, task).values, atol=1e-6)
    ids = torch.tensor([[5, 6, 7]])
    with masked(away, off=["encoder.0.0"]), capture(away) as seen, torch.no_grad():
        away(ids)
    assert seen.contexts["encoder.0"].shape[:2] == (1, 3)


def test_spread_loads_with_a_device_map(task, checkpoint, tmp_path):
    with pytest.raises(HeadcountError, match="tokenizer"):
        load_model(str(checkpoint), device="spread")
    task.tokenizer.save_pretrained(tmp_path)
    bert().save_pretrained(tmp_path)
    model, _ = load_model(str(tmp_path), device="spread", dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert device_of(model).type == ("cuda" if torch.cuda.is_available() else "cpu")
    plain = load(tmp_path, dtype=torch.bfloat16)
    assert np.array_equal(evaluate(model, task).values, evaluate(plain, task).values)
