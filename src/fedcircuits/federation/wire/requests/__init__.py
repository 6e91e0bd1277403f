"""Every message of a federation, by what it is for; nothing else is ever sent.

A file has the requests and replies of one step and, below them, the declaration of each message
(`wire/verbs.py`). To add a message: write request and reply, declare the verb, and write its
handler: a method of the client marked `@handles(VERB)` (`client/client.py` and its parts).
"""

from fedcircuits.federation.wire.message import Failed as Failed
from fedcircuits.federation.wire.message import Message as Message
from fedcircuits.federation.wire.message import encoded as encoded
from fedcircuits.federation.wire.message import encoded_apart as encoded_apart
from fedcircuits.federation.wire.message import model_array as model_array
from fedcircuits.federation.wire.message import model_bytes as model_bytes
from fedcircuits.federation.wire.message import report_of as report_of
from fedcircuits.federation.wire.message import request_name as request_name
from fedcircuits.federation.wire.requests.branch import *  # noqa: F403
from fedcircuits.federation.wire.requests.codes import *  # noqa: F403
from fedcircuits.federation.wire.requests.consent import *  # noqa: F403
from fedcircuits.federation.wire.requests.fit import *  # noqa: F403
from fedcircuits.federation.wire.requests.handshake import *  # noqa: F403
from fedcircuits.federation.wire.requests.head_scores import *  # noqa: F403
from fedcircuits.federation.wire.requests.heads import *  # noqa: F403
from fedcircuits.federation.wire.requests.heads_across import *  # noqa: F403
from fedcircuits.federation.wire.requests.kmeans import *  # noqa: F403
from fedcircuits.federation.wire.requests.labels import *  # noqa: F403
from fedcircuits.federation.wire.requests.query import *  # noqa: F403
from fedcircuits.federation.wire.requests.rounds import *  # noqa: F403
from fedcircuits.federation.wire.requests.rows import *  # noqa: F403
from fedcircuits.federation.wire.requests.tilts import *  # noqa: F403
from fedcircuits.federation.wire.requests.validation import *  # noqa: F403
from fedcircuits.federation.wire.verbs import VERBS as VERBS
from fedcircuits.federation.wire.verbs import reveals_label_of_rows as reveals_label_of_rows
