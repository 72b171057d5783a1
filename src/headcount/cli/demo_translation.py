"""`headcount demo translation`: train a small encoder-decoder live; which attention does it need, and since when?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.cli.console import progress
from headcount.cli.stage import Stage, missed
from headcount.demo.numbers import FULL, QUICK, train_translator, write_numbers

SIDES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}


def translation(stage: Stage, quick: bool) -> None:
    """The story, step by step; every number comes out of a run directory."""
    out, sizes = stage.out, QUICK if quick else FULL
    model = out / "model"
    data = ["--data", out / "test.en", "--target-data", out / "test.de"]
    exact = [*data, "--metric", "exact_match"]
    scoring = ["--score-data", out / "score.en", "--score-target-data", out / "score.de"]
    stage.title("Numbers in words, English to German")
    counted = write_numbers(out, sizes)
    english, german = (_first_line(out / f"test.{side}") for side in ("en", "de"))
    stage.say(f"{counted['train']:,} to train on, {counted['test']:,} others to test. For example:")
    stage.say(f"  {english}\n  {german}")
    shape = f"{sizes.layers} + {sizes.layers} layers of 4 heads"
    stage.title(f"A small encoder-decoder ({shape}), trained for {sizes.epochs} epochs")
    if model.exists():
        stage.say("(finished before)")
    else:
        with progress("training") as bar:
            train_translator(out, sizes, lambda share, loss: bar(share, f"training, loss {loss:.3f}"))
    score = stage.command("evaluate", "evaluate", model, *exact)["score"]
    stage.say(f"{score:.1%} of the test numbers are translated without any mistake.")

    stage.title("What if a head were gone? Each one turned off, and tested")
    ablated = stage.command("ablate", "ablate", model, *exact)
    stage.say(missed(ablated))

    stage.title("Which kind of attention is needed most? Each kind pruned alone")
    curves = stage.command("curve", "curve", model, *scoring, *exact, "--kinds", "each", "--step", 0.25)
    stage.say(_kinds(curves))

    stage.title("When in training did it become clear which heads matter?")
    checkpoints = [out / "checkpoints" / f"epoch-{epoch:02d}" for epoch in sizes.kept]
    tracked = stage.command(
        "track", "track", *checkpoints, *scoring, *data, "--metric", "chrf", "--step", 0.2 if quick else 0.1
    )
    stage.say(_dynamics(tracked))
    most = min(ablated["heads"], key=lambda row: row["change"])["head"]
    stage.finish(
        ["evaluate", model, *exact, "--off", most],
        ["ablate", model, *exact, "--mode", "all-but-one"],
        ["prune", model, *scoring, *exact, "--heads", "25%", "--out", out / "prune"],
    )


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as stream:
        return stream.readline().strip()


def _kinds(result: dict[str, Any]) -> str:
    """What each kind's curve loses on average; the conclusion is the measurement's, not ours."""
    losses = {
        curve["kind"]: sum(result["base"] - point["score"] for point in curve["points"][1:]) / len(curve["points"][1:])
        for curve in result["curves"]
    }
    order = sorted(losses, key=lambda kind: -losses[kind])
    halves = {
        curve["kind"]: min(curve["points"], key=lambda point: abs(point["pruned"] - 0.5))["score"]
        for curve in result["curves"]
    }
    scores = ", ".join(f"{SIDES[kind]} {halves[kind]:.1%}" for kind in order)
    lost = ", ".join(f"{kind} {100 * losses[kind]:.0f}" for kind in order)
    return (
        f"With half of its heads gone: {scores} right. Points lost on average along the curve: {lost}. "
        f"Measured here, {SIDES[order[0]]} is the most sensitive kind."
    )


def _dynamics(result: dict[str, Any], share: float = 0.4) -> str:
    """What each checkpoint keeps of its own chrF (half-learnt numbers count, too), and when the order settles."""
    said = []
    for one in result["checkpoints"]:
        nearest = min((point["pruned"] for point in one["points"]), key=lambda pruned: abs(pruned - share))
        here = {point["method"]: point["relative"] for point in one["points"] if point["pruned"] == nearest}
        if None not in here.values():  # nothing is kept of nothing
            said.append(f"{one['name']} {here['gradient']:.0%} ({here['random']:.0%})")
    return (
        f"With {share:.0%} of the heads gone, the least important first (or in random order), checkpoints keep of "
        f"their own chrF: {', '.join(said)}. {result['in_words']}"
    )
