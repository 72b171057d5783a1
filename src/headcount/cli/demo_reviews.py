"""`headcount demo reviews`: fine-tune a real encoder, find its heads, prune within a budget, prove it, report."""

from __future__ import annotations

from typing import Any

from headcount.cli.console import progress
from headcount.cli.stage import Stage, missed
from headcount.demo.reviews import FULL, QUICK, fine_tune, write_splits


def reviews(stage: Stage, quick: bool) -> None:
    """The story, step by step; every number comes out of a run directory."""
    out, sizes = stage.out, QUICK if quick else FULL
    model, small = out / "model", out / "prune" / "model"
    score, select, test = (out / f"{name}.tsv" for name in ("score", "select", "test"))
    stage.title("Real sentences from film reviews, good or bad")
    counted = write_splits(out, sizes)
    stage.say(
        f"{counted['train']:,} to train on ({counted['score']} of them score heads), {counted['select']:,} to choose "
        f"the cut, {counted['test']:,} to prove it: no sentence is in two of these."
    )
    stage.title("A real pretrained encoder (MiniLM, 6 layers of 12 heads), fine-tuned for one epoch")
    if model.exists():
        stage.say("(finished before)")
    else:
        with progress("fine-tuning") as bar:
            fine_tune(out, sizes, lambda share, loss: bar(share, f"fine-tuning, loss {loss:.3f}"))
    stage.say(f"Saved to {model.as_posix()}.")

    stage.title("What if a head were gone? Each one turned off, and tested")
    ablated = stage.command("ablate", "ablate", model, "--data", select, "--limit", sizes.ablate)
    stage.say(f"Accuracy {ablated['base']:.3f} on {ablated['n']} sentences. {missed(ablated)}")

    stage.title("How important is each head? One backward pass instead of many ablations (Michel et al. 2019)")
    scored = stage.command("importance", "importance", model, "--data", score)
    order = scored["order"]
    stage.say(f"Most important: {', '.join(reversed(order[-3:]))}. Least: {', '.join(order[:3])}.")

    stage.title("More and more heads removed, the least important first, or at random")
    curves = stage.command(
        "curve", "curve", model, "--score-data", score, "--data", select, "--limit", sizes.ablate,
        "--methods", "gradient,random", "--step", "0.2" if quick else "0.1",
    )  # fmt: skip
    stage.say(_curves(curves))

    stage.title(f"The largest cut within {sizes.max_drop} points of accuracy, proved on reviews not yet looked at")
    data = ("--score-data", score, "--data", select, "--test", test)
    pruned = stage.command(
        "prune", "prune", model, *data, "--max-drop", sizes.max_drop, "--caution", sizes.caution,
        *(("--step", "0.1") if quick else ()),
    )  # fmt: skip
    stage.title("Is it faster? Original and pruned in turns, by the time that one thread of the CPU works on them")
    speed = stage.command(
        "bench", "bench", model, small, "--data", test, "--batch", "16" if quick else "1,16",
        "--rounds", 7 if quick else 15, "--device", "cpu", "--threads", 1, "--clock", "cpu",
    )  # fmt: skip
    stage.say(f"The pruned model is {speed['verdict']}")

    stage.title("The result")
    stage.say(pruned["report"])
    stage.finish(
        ["inspect", small],
        ["evaluate", small, "--data", test],
        ["prune", model, *data, "--heads", "50%", "--out", out / "half"],
    )


def _curves(result: dict[str, Any]) -> str:
    said = []
    for share in (0.4, 0.6, 0.8):
        by_method = {
            curve["method"]: min(curve["points"], key=lambda point: abs(point["pruned"] - share))["score"]
            for curve in result["curves"]
        }
        said.append(f"{share:.0%} gone {by_method['gradient']:.3f} ({by_method['random']:.3f} at random)")
    return f"Accuracy, before anything makes up for them: {result['base']:.3f} whole, {', '.join(said)}."
