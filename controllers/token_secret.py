"""The secret of a token `<name>.<secret>`: how it is compared with what is stored of it. Pure."""

from __future__ import annotations

import hmac

from datastore.kinds.secret_hash import proof_of, secret_hash


def is_secret(secret: str, stored_hash: str) -> bool:
    """Whether that is the secret, in a time that tells nothing about how near it is."""
    return hmac.compare_digest(stored_hash.encode(), secret_hash(secret).encode())


def is_proof(proof: str, stored_hash: str, said: str) -> bool:
    """Whether that is the proof, in a time that tells nothing about how near it is."""
    expected = proof_of(stored_hash, said).encode()
    return hmac.compare_digest(expected, proof.encode("utf-8", "replace"))
