"""`headcount demo`: the whole job told as a story, on real data and offline; one module per story."""

from headcount.demo.story import PACKAGES, STORIES, Story, find_packages

__all__ = ["PACKAGES", "STORIES", "Story", "find_packages"]
