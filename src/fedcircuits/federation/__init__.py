"""Section 3 of the paper: one circuit from tables that stay where they are.

No transport and no learner is named here: engines carry the messages, clients bring their learners.
"""
