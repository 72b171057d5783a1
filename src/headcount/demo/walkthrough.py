"""Mask and remove, step by step, on a small model made on the spot."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils.logging import disable_progress_bar

from headcount.anatomy import anatomy
from headcount.mask import masked
from headcount.surgery import load, remove, save


def walk_through(out: str) -> float:
    """Show that a masked head and a removed head are the same thing; returns the largest difference seen."""
    say = Console(highlight=False, soft_wrap=True).print
    disable_progress_bar()
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=8, intermediate_size=512, vocab_size=1000
    )
    model = BertForSequenceClassification(config).eval()
    found = anatomy(model)
    say(f"A BERT classifier with random weights: {found}")
    whole = save(model, Path(out) / "whole")
    off = [head for head in found.heads if (head.layer + head.index) % 2 or head.layer == 2]
    texts = torch.randint(5, 1000, (4, 24))
    with torch.no_grad():
        plain = model(texts).logits
        with masked(model, off=off):
            without = model(texts).logits
        smaller = remove(model, off)
        path = save(smaller, Path(out) / "smaller")
        reloaded = load(path)(texts).logits
    difference = (without - reloaded).abs().max().item()
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, smaller))
    say(f"{len(off)} heads masked: logits move by up to {(plain - without).abs().max():.3f}.")
    say(f"The same heads removed, saved and loaded again: {before:,} parameters before, {after:,} after,")
    say(f"and logits that differ from the masked model's by at most {difference:.1e}.")
    say(f"\nLook at both:  headcount inspect {whole}   headcount inspect {path}")
    say(f"Load it:       headcount.load({str(path)!r})")
    return difference
