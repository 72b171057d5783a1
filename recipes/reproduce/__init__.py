"""M19's tables and figures, computed here and put beside the published ones: `python -m recipes.reproduce`."""
