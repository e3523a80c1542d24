"""What should become true: each controller makes one kind of record tell the truth.

The contract: a reconcile gets a name, reads the world, makes it a little truer and returns. It is
level-triggered (never asks what happened), idempotent, short, and reads, decides and commits in one
`def`. Controllers never import each other: they meet in the records.
"""
