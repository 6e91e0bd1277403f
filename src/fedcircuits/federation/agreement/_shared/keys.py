"""Steps of a plan in which clients share public keys, for rules that mask or seal."""

from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import step

KEYS = (step(m.PUBLIC_KEY), step(m.PEERS))
