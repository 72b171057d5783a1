"""The tables, as docs/pruning.md has them."""

from __future__ import annotations

from typing import Any

from benchmarks.pruning.judge import SHARES


def show(results: list[dict[str, Any]]) -> None:
    print_table(results)
    if all(one["versus"] for one in results):
        print_pooled(results)
    if all("promises" in one for one in results):
        print_promises(results)


def print_table(results: list[dict[str, Any]]) -> None:
    head = [f"{one['name']} {share:.0%}" for one in results for share in SHARES]
    print(f"\n| | {' | '.join(head)} |\n|-|{'-|' * len(head)}")
    whole = [_score(one["base"], one) if share == SHARES[0] else "" for one in results for share in SHARES]
    print(f"| unpruned | {' | '.join(whole)} |")
    for row in results[0]["rows"]:
        cells = [_score(one["rows"][row][f"{share:.0%}"], one) for one in results for share in SHARES]
        print(f"| {row} | {' | '.join(cells)} |")


def _score(value: float, result: dict[str, Any]) -> str:
    return f"{value:.1f}" if result["points"] >= 1 else f"{value:.3f}"


def print_pooled(results: list[dict[str, Any]]) -> None:
    print("\nThe default against M19's order, in points (paired bootstrap, 95% interval):")
    for one in results:
        for name, test in one["versus"].items():
            print(
                f"  {one['name']}, {name}: {test['change']:+.2f} [{test['low']:+.2f} {test['high']:+.2f}], "
                f"p {test['p']:.4f}"
            )
    means = [one["versus"]["mean"] for one in results]
    z = sum(test["change"] for test in means) / max(1e-12, sum(test["error"] ** 2 for test in means) ** 0.5)
    print(f"  pooled over {len(means)} data sets and {len(SHARES)} shares: z = {z:+.1f}")


def print_promises(results: list[dict[str, Any]]) -> None:
    print("\nPromises of --max-drop, over random splits, each half testing once:")
    for one in results:
        for each in one["promises"]:
            print(
                f"  {one['name']}, {each['points']:g} points, caution {each['caution']:g}: {each['cut']} of "
                f"{each['runs']} runs cut ({each['mean_share']:.0%} of the heads on average); "
                f"held-out drop within the budget in {each['kept']}, shown to be beyond it in {each['shown_broken']}"
            )
