"""Heads really gone: remove, save, load."""
