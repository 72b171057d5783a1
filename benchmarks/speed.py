"""M19's table 4 again: a BERT-base layout, half of its heads really removed, examples per second before and after.

    python benchmarks/speed.py                     # batch sizes 1, 4, 16, 64, length 128
    python benchmarks/speed.py --compile --batch 1,4
    python benchmarks/speed.py --fused             # query, key and value as one product: is that faster?
    python benchmarks/speed.py --groups            # a Llama layout with uneven key-value groups

Weights are random: speed does not depend on them. Both models are measured alternately; by default on one thread by the
process's own CPU time, so that others who use the machine slow both alike or not at all.
"""

from __future__ import annotations

import argparse
import json
import random

import torch
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from headcount import anatomy, benchmark, remove
from headcount.bench import interleaved
from headcount.bench.timing import fixed_threads, median, repeated

PUBLISHED = {1: (17.0, 17.3), 4: (67.3, 69.1), 16: (114.0, 134.0), 64: (124.7, 146.6)}  # M19, table 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="cpu", choices=("cpu", "wall"))
    parser.add_argument("--share", type=float, default=0.5, help="of the heads to remove")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--json", help="write the numbers to this file too")
    options = parser.parse_args()
    if options.fused:
        fused(options)
        return
    batches = [int(batch) for batch in options.batch.split(",")]
    model = llama() if options.groups else bert()
    heads = anatomy(model).heads
    pruned = remove(model, random.Random(0).sample(heads, round(options.share * len(heads))))
    result = benchmark(
        [model, pruned], batches=batches, lengths=[options.length], rounds=options.rounds, warmup=1,
        threads=options.threads, clock=options.clock, compile=options.compile,
    )  # fmt: skip
    counts = [len(site.kept) for site in anatomy(pruned).sites]
    print(f"heads left: {counts}; length {options.length}, {options.threads} threads, {options.clock} clock, "
          f"medians of {options.rounds} alternating rounds{', compiled' if options.compile else ''}")  # fmt: skip
    for what, rows in (("examples/s", result.rows), ("decoded tokens/s", result.decoding)):
        for row in rows:
            reached = (row.speedup - 1) / (row.limit - 1)
            before, after = PUBLISHED.get(row.batch, (None, None))
            compared = f"; M19 {before} -> {after} ({after / before - 1:+.1%})" if before and not options.groups else ""
            print(f"batch {row.batch:2}: {row.original:6.2f} -> {row.pruned:6.2f} {what}, {row.speedup - 1:+.1%} "
                  f"(95% {row.low - 1:+.1%} to {row.high - 1:+.1%}), limit {row.limit - 1:+.1%}, "
                  f"{reached:.0%} of it{compared}")  # fmt: skip
    print(result.verdict)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result.to_dict(), file, indent=2)


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig()).eval()


def llama() -> LlamaForCausalLM:
    """A small Llama: 12 layers of 16 heads, four of which share a key-value head."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=8000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12,
                         num_attention_heads=16, num_key_value_heads=4)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def fused(options: argparse.Namespace) -> None:
    """One BERT-base attention, six heads left: three products for query, key and value, or one."""
    hidden, heads, size, length = 768, 6, 64, options.length
    weights = [torch.randn(heads * size, hidden) for _ in range(3)]
    biases = [torch.randn(heads * size) for _ in range(3)]
    weight, bias = torch.cat(weights), torch.cat(biases)
    with fixed_threads(options.threads), torch.inference_mode():
        for batch in (int(batch) for batch in options.batch.split(",")):
            x = torch.randn(batch, length, hidden)

            def apart(x: torch.Tensor = x) -> torch.Tensor:
                q, k, v = (F.linear(x, w, b).view(*x.shape[:2], heads, size).transpose(1, 2)
                           for w, b in zip(weights, biases, strict=True))  # fmt: skip
                return F.scaled_dot_product_attention(q, k, v)

            def together(x: torch.Tensor = x) -> torch.Tensor:
                qkv = F.linear(x, weight, bias).view(*x.shape[:2], 3 * heads, size).transpose(1, 2)
                return F.scaled_dot_product_attention(*qkv.chunk(3, dim=1))

            runs = [repeated(work, options.clock, lambda: None, 3) for work in (apart, together)]
            seconds = interleaved(runs, max(options.rounds, 25))
            ratio = median(seconds[0] / seconds[1])
            print(
                f"batch {batch:2}: fused is {ratio.value:.3f} times as fast (95% {ratio.low:.3f} to {ratio.high:.3f})"
            )


if __name__ == "__main__":
    main()
