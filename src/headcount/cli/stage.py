"""Where a demo plays: real commands, shown as they would be typed, run in this process, and never run twice."""

from __future__ import annotations

import contextlib
import io
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.markup import escape

from headcount.cli.console import console
from headcount.errors import RunConflict
from headcount.runs import read_run


class Stage:
    """A directory, a clock, and the runs made so far."""

    def __init__(self, out: Path) -> None:
        self.out, self.runs = out, list[Path]()
        self.started = time.monotonic()

    def title(self, text: str) -> None:
        """What comes next, after the time that has passed."""
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        console.print(f"\n[dim]{minutes}:{seconds:02d}[/dim]  [bold]{text}[/bold]", soft_wrap=True)

    def say(self, text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    def command(self, name: str, *words: object) -> dict[str, Any]:
        """Run a command into a run directory of this name, and give what it found; a finished one is only read."""
        run = self.out / name
        line = [*map(_word, words), "--out", run.as_posix()]
        console.print(f"$ {shown(line)}", style="cyan", soft_wrap=True, markup=False)
        known = read_run(run) if run.exists() else None
        if known is None or not known.get("finished"):
            _run(line)
            known = read_run(run)
        else:
            if "path" in known and not (run / "model" / "config.json").is_file():
                raise RunConflict(f"{run} has lost its model; remove that directory, and the demo makes it anew")
            console.print("(finished before)", style="dim")
        assert known is not None
        self.runs.append(run)
        return known

    def finish(self, *commands: list[Any]) -> None:
        """Write the report, and say what to do next."""
        from headcount.reporting import report

        page = report(self.runs, self.out / "report.html")
        self.title("Done")
        console.print(
            f"Look at [bold]{escape(page.as_posix())}[/bold] in a browser. What you can do next:", soft_wrap=True
        )
        for words in commands:
            self.say(f"  {shown([_word(word) for word in words])}")


def missed(result: dict[str, Any]) -> str:
    """What single ablations found, in words."""
    rows = sorted(result["heads"], key=lambda row: row["change"])
    worst = ", ".join(f"{row['head']} ({100 * row['change']:+.1f})" for row in rows[:3])
    hurt = sum(row["p_holm"] < 0.05 and row["change"] < 0 for row in rows)
    return (
        f"Missed most, in points: {worst}. "
        f"Of {len(rows)} heads, {hurt} {'is missed' if hurt == 1 else 'are missed'} significantly "
        f"on {'its' if hurt == 1 else 'their'} own."
    )


def _word(word: object) -> str:
    return word.as_posix() if isinstance(word, Path) else str(word)


def shown(words: list[str]) -> str:
    """A command as it works when pasted here: by its path where `headcount` alone would not be found."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "headcount" else "headcount"
    found = shutil.which("headcount")
    if found and Path(found).resolve() == Path(program).resolve():
        program = "headcount"
    return shlex.join([program, *words])


def _run(words: list[str]) -> None:
    from headcount.cli.app import app

    with contextlib.redirect_stdout(io.StringIO()):
        code = app([*words, "--json"], standalone_mode=False)
    if code == 130:  # typer's answer to a keyboard interrupt
        raise KeyboardInterrupt
