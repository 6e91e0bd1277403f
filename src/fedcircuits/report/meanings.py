"""What warnings of a fit mean for the user, one line each."""

from __future__ import annotations

# What a warning of a fit means, by words that it holds.
MEANINGS = {
    "has no value in the training rows": "nothing is known of it; leave the column out",
    "is constant in the training rows": "it carries no information; leave the column out",
    "value for value": "one of the two is enough; the other makes the fit slower, not better",
    "almost exactly": "densities become very high near that line; leave one out unless you ask it",
    "rows to learn from": "expect wide errors; probabilities of rare values are guesses",
    "without a value of the label": "the other rows were learned from",
    "every row has a value of its own": "an identifier predicts nothing in new rows",
}


def explained(warning: str) -> str:
    """Return a warning of a fit with what it means for the user, where that is known."""
    for words, meaning in MEANINGS.items():
        if words in warning:
            return f"{warning}: {meaning}"
    return warning
