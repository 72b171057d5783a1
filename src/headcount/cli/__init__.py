"""The command line: `headcount COMMAND`, one file per command, heavy imports inside the commands.

This file imports nothing, so that Ctrl-C and SIGTERM are answered properly from the first millisecond.
"""

__all__ = ["main"]

# These start over; all others resume with --out.
ONE_GO = {"bench", "explore", "export", "inspect", "push", "remove", "report", "view"}


def main() -> None:
    """Run the command in `sys.argv` and exit: 0 done, 1 it could not be done, 2 wrong usage, 130 or 143 stopped."""
    import sys

    signals: list[int] = []  # that told it to stop, other than Ctrl-C
    try:
        import signal

        def stop(number: int, frame: object) -> None:
            signals.append(number)
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        from headcount.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        import signal

        for number in (signal.SIGINT, signal.SIGTERM):  # a second one while Python shuts down has nothing to add
            signal.signal(number, signal.SIG_IGN)
        print(f"headcount: {stopped(sys.argv[1:])}", file=sys.stderr)
        code = 128 + (signals[0] if signals else signal.SIGINT)
    sys.exit(code)


def stopped(words: list[str]) -> str:
    """What to say about a command that was stopped.

    >>> stopped(["ablate", "model", "--data", "dev.tsv", "--out", "run"])
    'stopped; the same command resumes where it stopped'
    >>> stopped(["remove", "model", "--heads", "encoder.3.5", "--out", "smaller"])
    'stopped'
    """
    name = next(iter(words), "")
    keeps = name == "demo" or any(word == "--out" or word.startswith("--out=") for word in words)
    return "stopped; the same command resumes where it stopped" if keeps and name not in ONE_GO else "stopped"
