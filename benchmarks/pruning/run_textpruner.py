"""TextPruner on one job of token ids: run by textpruner.py in an environment of its own, without headcount.

python run_textpruner.py JOB MODEL OUT
"""

import json
import sys
from pathlib import Path

import torch
from textpruner import GeneralConfig, TransformerPruner, TransformerPruningConfig
from transformers import AutoModelForSequenceClassification


def main(job, model, out):
    job, out = json.loads(Path(job).read_text()), Path(out)
    torch.set_num_threads(job["threads"])
    for ratio, (heads, neurons) in job["sizes"].items():
        file = out / f"{float(ratio):g}.json"
        if file.exists() and json.loads(file.read_text())["fingerprint"] == job["fingerprint"]:
            continue
        found = pruned(job, model, heads, neurons, out / "cache")
        scored = len(job["score"]["labels"])
        content = {"sizes": [heads, neurons], "scored": scored, "fingerprint": job["fingerprint"], **found}
        whole = file.with_suffix(".part")
        whole.write_text(json.dumps(content))
        whole.replace(file)  # a file that is there is whole
        print(f"# {file}: {found['right']:.4f} of the test examples are right", flush=True)


def pruned(job, directory, heads, neurons, cache):
    """The masks that TextPruner chose, and what its model predicts for every test example."""
    model = AutoModelForSequenceClassification.from_pretrained(directory, torch_dtype=torch.float32).eval()
    config = TransformerPruningConfig(
        target_num_of_heads=heads,
        target_ffn_size=neurons,
        pruning_method="iterative",
        n_iters=job["iterations"],
        head_even_masking=False,
        ffn_even_masking=True,
    )
    pruner = TransformerPruner(model, config, GeneralConfig(use_device="cpu", output_dir=str(cache)))
    pruner.prune(dataloader=batches(job["score"], job["batch"]), save_model=False, rewrite_cache=True)
    test = job["test"]
    lengths = [len(ids) for ids in test["features"]["input_ids"]]
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    predictions = [0] * len(order)
    with torch.no_grad():
        for start in range(0, len(order), job["batch"]):
            indices = order[start : start + job["batch"]]
            inputs = batch(test, indices)
            for index, choice in zip(indices, pruner.model(**inputs).logits.argmax(-1).tolist(), strict=True):
                predictions[index] = choice
    return {
        "heads": pruner.head_mask.int().tolist(),
        "neurons": pruner.ffn_mask.int().tolist(),
        "predictions": predictions,
        "right": sum(a == b for a, b in zip(predictions, test["labels"], strict=True)) / len(predictions),
    }


def batches(data, size):
    return [
        batch(data, range(start, min(start + size, len(data["labels"]))))
        for start in range(0, len(data["labels"]), size)
    ]


def batch(data, indices):
    """Inputs and labels of these examples, padded to the longest."""
    features = {name: [values[i] for i in indices] for name, values in data["features"].items()}
    features.setdefault("attention_mask", [[1] * len(ids) for ids in features["input_ids"]])
    longest = max(map(len, features["input_ids"]))
    inputs = {}
    for name, rows in features.items():
        pad = data["pad"] if name == "input_ids" else 0
        inputs[name] = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    return {**inputs, "labels": torch.tensor([data["labels"][i] for i in indices])}


if __name__ == "__main__":
    main(*sys.argv[1:])
