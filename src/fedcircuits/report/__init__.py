"""Reports: one self-contained HTML page about a model.

`page.py` renders the page, `scores.py` computes held-out scores, `figures.py` draws with
matplotlib, `about_federation.py` describes clients, messages and contributions. Nothing here is
imported before a report is asked for.
"""

from fedcircuits.report.page import write_report

__all__ = ["write_report"]
