"""Agreement rules: how clients agree on what belongs together; runs at the server.

A rule has the file of its name; `joint` and `latent` have a second one for each form. Besides:
`auto.py` chooses among them, `planning.py` makes the plan that clients consent to, `newcomer.py` is
a client that joins later.

A rule has two halves: `train` sends messages and returns fitted parts, `glue` is a pure function of
the fitted parts. So a client can leave, and the rest is glued again without training.

To add a rule: a file here with a frozen dataclass of the protocol `Rule` (`base.py`; its fields are
the rule's options), an entry in `RULES` (`by_name.py`), tests that inherit `RuleContract`
(tests/contracts/rule.py). CONTRIBUTING.md has all steps.
"""

from fedcircuits.federation.agreement.anchors import Anchors
from fedcircuits.federation.agreement.auto import refused_ones, with_label_use
from fedcircuits.federation.agreement.base import GluesAgain, Rule
from fedcircuits.federation.agreement.by_name import RULES, make_rule, options_of
from fedcircuits.federation.agreement.em import Em
from fedcircuits.federation.agreement.independent import Independent
from fedcircuits.federation.agreement.joint import Joint
from fedcircuits.federation.agreement.latent import Latent
from fedcircuits.federation.agreement.product import ProductOfClasses

__all__ = [
    "RULES",
    "Anchors",
    "Em",
    "GluesAgain",
    "Independent",
    "Joint",
    "Latent",
    "ProductOfClasses",
    "Rule",
    "make_rule",
    "options_of",
    "refused_ones",
    "with_label_use",
]
