"""Find out which attention heads a Transformer needs, and let the rest go."""
