"""What sharing public keys takes, for the plans of rules that mask or seal."""

from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import step

KEYS = (step(m.PUBLIC_KEY), step(m.PEERS))
