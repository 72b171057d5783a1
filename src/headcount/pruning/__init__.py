"""Pruning: curves, the search for the largest cut within a budget, and what makes up for the heads that went."""
