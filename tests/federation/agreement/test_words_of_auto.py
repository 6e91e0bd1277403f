"""The reason that `auto` gives for the rule it takes."""

from __future__ import annotations

import pytest

from fedcircuits.federation.agreement.auto import _best
from fedcircuits.federation.agreement.latent import Latent
from fedcircuits.federation.agreement.product import ProductOfClasses
from fedcircuits.federation.wire import requests as m


@pytest.mark.parametrize(
    ("more", "said", "taken"),
    [
        (0.0, "'latent' has the same log-loss to four places, and the density", "product"),
        (1e-6, "'latent' has the same log-loss to four places, and the density", "product"),
        (1e-3, "'latent' has a lower log-loss by 0.0010 nats only, less than 0.0063", "product"),
        (0.2, "lowest log-loss", "latent"),
    ],
)
def test_a_difference_that_print_would_not_show_is_not_called_one(
    more: float, said: str, taken: str
) -> None:
    rules = {Latent(): (0.5, -3.0), ProductOfClasses(): (0.5 + more, -2.0)}
    scores = {
        rule: m.Judged(log_loss=loss, log_prob=density, n_rows=1000, key="")
        for rule, (loss, density) in rules.items()
    }
    best, why = _best(list(rules), scores, "log-loss")
    assert best.name == taken
    assert why.startswith(said)
    assert "0.0000" not in why
