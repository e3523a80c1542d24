"""The secret of a token `<name>.<secret>`: what is stored of it, how it is compared. Pure."""

from __future__ import annotations

import hashlib
import hmac


def secret_hash(secret: str) -> str:
    """What is stored of a token's secret: SHA-256 of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def is_secret(secret: str, stored_hash: str) -> bool:
    """Whether that is the secret, in a time that tells nothing about how near it is."""
    return hmac.compare_digest(stored_hash.encode(), secret_hash(secret).encode())
