"""Mutated files for everything that reads a file from outside: `python -m benchmarks.fuzz --inputs 100000`."""
