"""A baseline: TextPruner (Yang et al. 2022), in an environment of its own, on the same model and the same tokens.

    python -m benchmarks.pruning.textpruner --env ENV --models DIR --out RESULTS --data sst2 --speedups 1.5,2,2.4,3

TextPruner needs transformers 4, and headcount transformers 5. So this makes a virtual environment in ENV, unless it is
there, with the same torch, transformers 4 and TextPruner; writes a job of token ids for every data set; and has
run_textpruner.py run it there. RESULTS/textpruner then has, for every data set and speed, the units that TextPruner
keeps and what its model predicts for every test example. `python -m benchmarks.pruning --methods textpruner` reads it.

TextPruner's version on PyPI asks for an old numpy by mistake (it compares "3.11" with "3.8" as texts), so it is
installed without its requirements. If the package index does not have it:
`ENV/bin/pip install --no-deps git+https://github.com/airaria/TextPruner`.

As its documentation recommends, TextPruner prunes in iterations (8), heads unevenly and neurons evenly over the layers.
The same share of both is removed, as in the documentation's examples. It scores on as many examples as `prune` does by
default, the same ones.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import torch

from benchmarks.pruning.data import Data, read, typical, where
from benchmarks.pruning.kwon import flops_by_unit
from headcount.errors import HeadcountError
from headcount.files import read_object
from headcount.settings import Pruning
from headcount.structure import anatomy
from headcount.surgery import remove

ITERATIONS, BATCH = 8, 32


def main() -> None:
    options = arguments()
    python = environment(options.env)
    for key in options.data.split(","):
        if where(key, options.models) is None:
            print(f"# {key} is left out: there is no model for it", flush=True)
            continue
        data = read(key, options.models, examples=options.examples, seed=options.seed)
        folder = options.out / "textpruner" / key
        folder.mkdir(parents=True, exist_ok=True)
        sizes = {ratio: targets(data, float(ratio)) for ratio in options.speedups.split(",")}
        (folder / "job.json").write_text(json.dumps(job(data, sizes, options.threads)))
        script = Path(__file__).with_name("run_textpruner.py")
        # -I: without this directory on its path, where `import textpruner` would find this file
        subprocess.run([python, "-I", script, folder / "job.json", data.directory, folder], check=True)


def environment(place: Path) -> Path:
    """The Python of an environment with TextPruner, made if it is not there."""
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        version = torch.__version__.partition("+")[0]
        needed = [f"torch=={version}", "transformers>=4.40,<5", "numpy", "tqdm", "sentencepiece", "protobuf"]
        subprocess.run([*pip, *needed], check=True)
        subprocess.run([*pip, "--no-deps", "textpruner"], check=True)
    return python


def targets(data: Data, ratio: float) -> tuple[int, int]:
    """Heads and neurons per layer, on average, that leave `ratio` times fewer FLOPs: about the same share of both."""
    total, costs = flops_by_unit(data.model, data.score, typical(data.score))
    attention, layers = (anatomy(data.model, units).sites for units in ("heads", "neurons"))
    head, neuron = (sum(costs[site.name] for site in sites) for sites in (attention, layers))  # one more in every layer
    heads, neurons = len(attention[0].kept), len(layers[0].kept)
    room = total / ratio - (total - heads * head - neurons * neuron)
    share = room / (heads * head + neurons * neuron)
    kept = max(1, round(share * heads))
    wide = math.floor((room - kept * head) / neuron)
    if share <= 0 or wide < 1:
        raise HeadcountError(f"{data.name} cannot have {ratio:g} times fewer FLOPs: heads and neurons are not enough")
    return kept, wide


def job(data: Data, sizes: dict[str, tuple[int, int]], threads: int) -> dict[str, Any]:
    """All that run_textpruner.py needs, as plain JSON."""
    content: dict[str, Any] = {"sizes": sizes, "iterations": ITERATIONS, "batch": BATCH, "threads": threads}
    scored = data.score.subset(range(min(len(data.score), Pruning.score_examples)))
    for name, task in (("score", scored), ("test", data.test)):
        content[name] = {"features": task.features, "labels": task.labels, "pad": task.pad}  # type: ignore[attr-defined]
    content["fingerprint"] = {"score": scored.signature()["inputs"], "test": data.test.signature()["inputs"]}
    return content


def written(data: Data, results: Path, ratio: float) -> dict[str, Any] | None:
    """What TextPruner did at one speed, or None if it has not been run; on other data, it is refused."""
    file = results / "textpruner" / data.key / f"{ratio:g}.json"
    found = read_object(file)
    if found is not None and found["fingerprint"]["test"] != data.test.signature()["inputs"]:
        raise HeadcountError(f"{file} was made on other test data; run benchmarks.pruning.textpruner again")
    return found


def rebuild(data: Data, results: Path, ratio: float) -> Any:
    """The model that TextPruner left, made by removing the same units: it changes nothing else."""
    found = written(data, results, ratio)
    if found is None:
        raise HeadcountError(f"TextPruner has not been run on {data.key} at {ratio:g}")
    return remove(data.model, [*off("encoder", found["heads"]), *off("encoder_ffn", found["neurons"])])


def off(kind: str, mask: list[list[int]]) -> list[str]:
    """The units whose mask is 0, by name.

    >>> off("encoder", [[1, 0], [1, 1]])
    ['encoder.0.1']
    """
    return [f"{kind}.{layer}.{i}" for layer, row in enumerate(mask) for i, kept in enumerate(row) if not kept]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="directory of the virtual environment")
    parser.add_argument("--models", type=Path, help="directory with the models mrpc, cola and snli")
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--data", default="sst2,mrpc,cola,snli")
    parser.add_argument("--speedups", default="1.25,1.5,2,2.4,3")
    parser.add_argument("--examples", type=int, default=2048, help="training examples to score on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except HeadcountError as error:
        sys.exit(f"error: {error}")
