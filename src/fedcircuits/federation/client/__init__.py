"""What runs at a client, beside its table: one file for each kind of request.

`client.py` takes a request and returns its reply; the other files do the work: describe the table,
align rows, cluster, fit jobs, take part in rounds, answer queries, judge a label, fit its tilt.
Nothing here sends a table or knows which rule is running.
"""
