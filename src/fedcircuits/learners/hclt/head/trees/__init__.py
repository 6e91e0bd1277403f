"""Boosted trees as such: plain arrays that are stored and evaluated, and how they are grown."""
