"""Events about one variable: as people write them, as sets of encoded values, and on a grid."""

from fedcircuits.schema.events.event import Event, above, as_event, below, between, not_, one_of
from fedcircuits.schema.events.region import CodeSet, Interval, NumberSet, Region

__all__ = [
    "CodeSet",
    "Event",
    "Interval",
    "NumberSet",
    "Region",
    "above",
    "as_event",
    "below",
    "between",
    "not_",
    "one_of",
]
