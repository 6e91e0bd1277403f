"""What runs at a client, beside its table: one file for each kind of request.

`client.py` takes a request, finds the method marked `@handles(VERB)` and returns its reply. Such
methods stand there, in `rows/aligning.py` (ids, keys, the label sent or taken) and in `label/` (its
tilt, its boosted trees, scores); `state.py` says what they share. `rows/` describes the table and
keeps which rows are aligned; other files cluster, fit jobs, take part in rounds, answer queries.
Nothing here sends a table or knows which rule is running.
"""
