"""What terms of a report mean, for readers who do not know the field."""

from __future__ import annotations

from collections.abc import Sequence

from fedcircuits.report.section import Section

MEANINGS = {
    "log-density": "how probable the model finds the rows: the mean logarithm of their density "
    "over all columns; higher is better, and only models of the same columns compare",
    "nats": "unit of such logarithms (base e): one nat more is 2.7 times as probable; of mutual "
    "information, how much knowing one column says about another (0: nothing)",
    "AUC": "share of pairs of rows of two classes that the predicted probability puts in the right "
    "order: 1 is perfect, 0.5 is guessing",
    "ROC": "true positives (share of the class that is found) over false positives (share of the "
    "others that is taken for it) as the threshold on the probability moves",
    "calibration": "of rows with a predicted probability of 0.8, 80 % should be of the class: then "
    "points lie on the dotted line; vertical lines are two standard errors",
    "log-loss": "mean of -log p(true class) in nats: 0 is perfect, large where the model was sure "
    "and wrong",
    "root mean square error": "typical distance of the prediction from the truth, in the label's "
    "own unit",
    "mutual information": "how much two columns depend on each other, of whatever shape the "
    "dependence is; zero where they are independent",
    "Algorithm 1": "the way in which the clients' models are put together: products of columns "
    "that different clients hold, sums over groups of rows",
}


def used(sections: Sequence[Section]) -> Section | None:
    """The terms that some sections use, with their meanings; None where there are none."""
    text = "\n".join(map(_text, sections))
    facts = [(term, meaning) for term, meaning in MEANINGS.items() if term in text]
    return Section("Words on this page", "", facts) if facts else None


def _text(section: Section) -> str:
    columns = [] if section.table is None else map(str, section.table.columns)
    titles = [title for title, svg in section.pictures if svg]
    facts = [cell for fact in section.facts for cell in fact]
    return "\n".join((section.title, section.text, *facts, *columns, *titles, *section.lines))
