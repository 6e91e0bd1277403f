"""What a client does about the label: tables that tilt its models, boosted trees, scores.

`tilting.py` fits and uses the tilt, `heads.py` boosts trees on rows of one client and
`heads_across.py` over columns of several, `head_scores.py` scores the heads of others,
`coding.py` uses a label that is not sent, `validation.py` scores rules on validation rows.
"""
