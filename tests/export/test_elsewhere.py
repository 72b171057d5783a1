"""Pruned directories in other people's packages, each in an environment of its own (slow)."""

from __future__ import annotations

import importlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import torch

import elsewhere
import zoo
from headcount import HeadcountError, evaluate, remove, save
from headcount.structure import whole_anatomy
from headcount.tasks import LikeliestEnding
from headcount.tasks.text import word_tokenizer
from tiny_models import byte_tokenizer, llama_like

WORDS = "one two three four five six seven"

UNEVEN = ["decoder.0.0", "decoder.0.1", "decoder.0.2", "decoder_ffn.1.0-9", *(f"decoder.1.{i}" for i in range(8))]
PEFT = """
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({path!r}, trust_remote_code=True)
tuned = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
ids = torch.tensor([[5, 6, 7, 8]])
optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=1.0)
for _ in range(2):
    tuned(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
tuned.save_pretrained({path!r} + "-adapter")
fresh = AutoModelForCausalLM.from_pretrained({path!r}, trust_remote_code=True)
again = PeftModel.from_pretrained(fresh, {path!r} + "-adapter")
with torch.no_grad():
    print((again.eval()(ids).logits - tuned.eval()(ids).logits).abs().max().item())
    print((again(ids).logits - model.get_input_embeddings().weight.new_zeros(())).abs().max().item() > 0)
"""
HARNESS = """
import json
import headcount.export.lm_evaluation
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
found = []
for kind, arguments in {models!r}:
    result = simple_evaluate(model=kind, model_args=arguments, tasks=["likely"], batch_size=2,
                             task_manager=TaskManager(include_path={tasks!r}, include_defaults=False))
    found.append(result["results"]["likely"]["word_perplexity,none"])
print("FOUND", json.dumps(found))
"""
CHOICES = """
import json
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
result = simple_evaluate(model="hf", model_args={model!r}, tasks=["endings"], batch_size=2, log_samples=True,
                         task_manager=TaskManager(include_path={tasks!r}, include_defaults=False))
scores = [result["results"]["endings"][f"{{name}},none"] for name in ("acc", "acc_norm", "acc_bytes")]
likelihoods = [[one[0] for one in row["filtered_resps"]]
               for row in sorted(result["samples"]["endings"], key=lambda row: row["doc_id"])]
print("FOUND", json.dumps([scores, likelihoods]))
"""
ENDINGS = """task: endings
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: text
doc_to_choice: endings
doc_to_target: label
metric_list:
  - metric: acc
  - metric: acc_norm
  - metric: acc_bytes
"""
TASK = """task: likely
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list:
  - metric: word_perplexity
"""

SERVER = """
import os, sys
import transformers, xllamacpp
from headcount import export_gguf, load
path, file = {path!r}, {file!r}
export_gguf(load(path), file, transformers.AutoTokenizer.from_pretrained(path), dtype="f32")
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = file, 128, 1, False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
print("READY", server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
"""
UNIFORM = [f"decoder.{layer}.{index}" for layer in range(3) for index in (0, 1)]
RAGGED = ["decoder.0.0", "decoder.0.1", "decoder_ffn.1.0-49"]
PATIENCE = 240  # seconds that a server may take to start


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def asked(address, facts, process, patience=PATIENCE):
    """What a server on this machine answers; it is asked until it does, or has ended."""
    request = urllib.request.Request(address, json.dumps(facts).encode(), {"content-type": "application/json"})
    end = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(request, timeout=patience) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(1)


def settings(home):
    return {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(elsewhere.SOURCE)}


@pytest.mark.slow
def test_transformers_serve(tmp_path):
    """A uniform cut is served; the server builds stock classes whatever a directory says, so a ragged one is not."""
    model, words = llama_like("llama"), byte_tokenizer()
    uniform = remove(model, UNIFORM)
    even = save(uniform, tmp_path / "even", tokenizer=words)
    ragged = save(remove(model, RAGGED), tmp_path / "ragged", tokenizer=words)
    python = elsewhere.environment(tmp_path / "environment", "transformers[serving]")
    served = {}
    for path in (even, ragged):
        port, log = free_port(), tmp_path / f"{path.name}.log"
        serve = [python, "-m", "transformers.cli.transformers", "serve", str(path), "--trust-remote-code",
                 "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
        with log.open("w") as stream:
            process = subprocess.Popen(serve, stdout=stream, stderr=stream, env=settings(tmp_path / "home"))
        try:
            facts = {"model": str(path), "prompt": "The quick brown", "max_tokens": 8, "temperature": 0}
            served[path.name] = asked(f"http://127.0.0.1:{port}/v1/completions", facts, process)["choices"][0]["text"]
        except (urllib.error.URLError, ConnectionError):
            served[path.name] = None
        finally:
            process.terminate()
            process.wait(timeout=60)
    ids = words("The quick brown", return_tensors="pt")["input_ids"]
    expected = uniform.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert served["even"] == words.decode(expected, skip_special_tokens=True)
    assert served["ragged"] is None
    assert "MISMATCH" in (tmp_path / "ragged.log").read_text()


@pytest.mark.slow
def test_the_server_of_llama_cpp(tmp_path):
    """A ragged model as GGUF, behind the interface that text-generation servers share."""
    model, words = llama_like("llama"), byte_tokenizer()
    ragged = remove(model, RAGGED)
    path = save(ragged, tmp_path / "ragged", tokenizer=words)
    python = elsewhere.environment(tmp_path / "environment", "gguf", "xllamacpp")
    code = SERVER.format(path=str(path), file=str(tmp_path / "ragged.gguf"))
    with (tmp_path / "log").open("w") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        process = subprocess.Popen([python, "-c", code], **pipes, text=True, env=settings(tmp_path / "home"))
    try:
        ready = next((line for line in process.stdout if line.startswith("READY")), "")
        assert "http://127.0.0.1:" in ready, (tmp_path / "log").read_text()[-1000:]
        ids = words("The quick brown")["input_ids"]
        facts = {"prompt": ids, "n_predict": 8, "temperature": 0, "return_tokens": True}
        found = asked(f"{ready.split()[1]}/completion", facts, process)["tokens"]
    finally:
        process.terminate()
        process.wait(timeout=60)
    expected = ragged.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
    assert len(found) > 3
    assert found == expected[: len(found)]


@pytest.mark.slow
def test_peft(tmp_path):
    path = save(remove(zoo.build("llama", "LlamaForCausalLM"), UNEVEN), tmp_path / "small")
    python = elsewhere.environment(tmp_path / "environment", "peft")
    off, moved = elsewhere.run(python, PEFT.format(path=str(path)), tmp_path / "home").split()[-2:]
    assert float(off) <= 1e-5
    assert moved == "True"


@pytest.mark.slow
def test_the_evaluation_harness(tmp_path):
    tokenizer = word_tokenizer(WORDS)
    model = zoo.build("llama", "LlamaForCausalLM")
    whole = save(model, tmp_path / "whole", tokenizer=tokenizer)
    small = save(remove(model, UNEVEN), tmp_path / "small", tokenizer=tokenizer)
    rows = [{"text": "one two three four five"}, {"text": "six one seven two"}]
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "likely.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    off = ",".join(whole_anatomy(model).written(whole_anatomy(model).check(UNEVEN)))
    models = [
        ("headcount", f"pretrained={small}"),
        ("headcount", f"pretrained={whole},off={off}"),
        ("hf", f"pretrained={small},trust_remote_code=True,device=cpu,dtype=float32"),
        ("headcount", f"pretrained={whole}"),
    ]
    python = elsewhere.environment(tmp_path / "environment", "lm-eval")
    script = HARNESS.format(models=models, tasks=str(tmp_path / "tasks"))
    told = elsewhere.run(python, script, tmp_path / "home")
    pruned, masks, plain, all_heads = json.loads(told[told.index("FOUND") + 5 :].splitlines()[0])
    assert pruned == pytest.approx(masks, rel=1e-4)
    assert pruned == pytest.approx(plain, rel=1e-4)
    assert abs(all_heads / pruned - 1) > 1e-3


@pytest.mark.slow
def test_the_likeliest_ending_is_that_of_the_evaluation_harness(tmp_path):
    words = [*WORDS.split(), "größer", "überall", "été"]  # more bytes than characters
    tokenizer = word_tokenizer(" ".join(words), "gpt")
    model = zoo.build("gpt2", "GPT2LMHeadModel")
    directory = save(model, tmp_path / "model", tokenizer=tokenizer)
    draw = random.Random(0)
    # No beginning starts with another row's: the harness mixes up rows that are equal but for where the ending starts.
    rows = [
        {
            "text": " ".join(draw.choices(words, k=draw.randint(6, 9))),
            "endings": [" ".join(draw.choices(words, k=draw.randint(1, 5))) for _ in range(4)],
            "label": draw.randrange(4),
        }
        for _ in range(60)
    ]
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "endings.yaml").write_text(ENDINGS.format(data=tmp_path / "data.jsonl"))
    python = elsewhere.environment(tmp_path / "environment", "lm-eval")
    script = CHOICES.format(model=f"pretrained={directory},device=cpu,dtype=float32", tasks=str(tmp_path / "tasks"))
    told = elsewhere.run(python, script, tmp_path / "home")
    scores, likelihoods = json.loads(told[told.index("FOUND") + 5 :].splitlines()[0])
    tasks = {per: LikeliestEnding(rows, tokenizer, per=per) for per in ("choice", "character", "byte")}
    assert scores == [evaluate(model, task).score() for task in tasks.values()]
    assert len(set(scores)) > 1  # the three ways differ on this data
    with torch.no_grad():
        ours = tasks["choice"].outputs(model, tasks["choice"].batch(range(len(rows))))
    torch.testing.assert_close(ours, torch.tensor(likelihoods), rtol=0, atol=1e-4)


def test_the_harness_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "headcount.export.lm_evaluation", raising=False)
    with pytest.raises(HeadcountError, match=r"lm_eval.*headcount\[harness\]"):
        importlib.import_module("headcount.export.lm_evaluation")
