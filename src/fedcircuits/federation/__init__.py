"""Section 3 of the paper: one circuit from tables that stay where they are.

    wire/       both sides   messages: what is sent, what it reveals; packing, ids, masks, ledger
    plan/       server       Algorithm 1: subspaces, plan, weights
    client/     client       what a client does for each request
    policy/     client       what the owner of a table allows, and the guard that enforces it
    server/     server       requests, fitted parts, circuit builder
    agreement/  server       the rules: which messages are sent, how fitted parts become one model
    model/      server       the result: gathered or remote circuit, ensemble, storage

Imports go from the lower lines to the upper ones only. No engine and no learner is named here:
engines carry the messages, clients bring their learners.
"""
