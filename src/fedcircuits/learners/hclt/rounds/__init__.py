"""The learner as a client of a federation uses it: training in rounds with other clients.

`in_rounds.py`, `tilt_in_rounds.py`: rows split, sums over rows go to the server and back (rule
`joint`). `branch.py`: columns split, this client's branch of a latent tree that all share.
"""
