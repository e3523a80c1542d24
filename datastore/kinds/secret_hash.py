"""What is stored of a token's secret, and what shows that somebody has it; apart from the records,
which no worker needs. Pure."""

from __future__ import annotations

import hashlib
import hmac


def secret_hash(secret: str) -> str:
    """What is stored of a token's secret: SHA-256 of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def proof_of(stored_hash: str, said: str) -> str:
    """What shows that whoever says this has the secret. It is good for that text alone, and tells
    nothing of the secret."""
    said_bytes = f"dial/{said}".encode("utf-8", "replace")
    return hmac.new(stored_hash.encode(), said_bytes, "sha256").hexdigest()
