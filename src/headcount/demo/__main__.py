"""`python -m headcount.demo`."""

from headcount.demo.walkthrough import walk_through

walk_through("demo-run")
