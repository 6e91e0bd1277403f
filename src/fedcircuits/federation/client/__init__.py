"""What runs at a client, beside its table: one file for each kind of request.

`client.py` takes a request, finds the method marked `@handles(VERB)` and returns its reply. Such
methods stand there and, for what belongs together, in `aligned_rows.py` (ids, keys, the label),
`tilting.py` (the tilt of the label), `heads.py` (its boosted trees), `coding.py` (a label that is
not sent) and `validation.py` (scores). The other files do the work: describe the table, cluster,
fit jobs, take part in rounds, answer queries.
Nothing here sends a table or knows which rule is running.
"""
