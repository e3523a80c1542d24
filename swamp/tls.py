"""TLS for both ends: certificates from PEM files, and one clear line where they do not do.

Nothing older than TLS 1.2 is spoken. A client trusts the machine's authorities, or only the ones in
the file that it was given.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from datastore.errors import SwampError


class TlsError(SwampError):
    """A certificate, a key or a list of authorities cannot be used."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What a server speaks with these PEM files; TlsError says what is wrong with them. Blocks."""
    _readable("--tls-cert", certificate, "CERTIFICATE")
    _readable("--tls-key", key, "PRIVATE KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that was offered HTTP/2 could not upgrade to a WebSocket.
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password of ours, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"--tls-key {key} is not the key of --tls-cert {certificate}"
        else:
            problem = (
                f"--tls-cert {certificate} and --tls-key {key} cannot be used"
                f" ({error.reason or error}): expected a certificate chain and its key without a"
                " passphrase, both PEM"
            )
        raise TlsError(problem) from None
    return context


def client_context(authorities: Path | None) -> ssl.SSLContext:
    """What a client speaks that trusts `authorities`, a PEM file; None: the machine's. Blocks."""
    if authorities is None:
        return ssl.create_default_context()
    _readable("--ca-cert", authorities, "CERTIFICATE")
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        raise TlsError(f"--ca-cert {authorities} holds no usable certificate: {error}") from None


def untrusted(shown: str, error: ssl.SSLCertVerificationError) -> str:
    """One line for a server whose certificate does not do."""
    return (
        f"the certificate of {shown} is not trusted ({error.verify_message}): give the authority"
        " that signed it by --ca-cert, and the name that stands in it as the host"
    )


def _readable(option: str, path: Path, block: str) -> None:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise TlsError(f"{option} {path}: {error.strerror or error}") from None
    if f"{block}-----".encode() not in text:
        raise TlsError(f"{option} {path} is no PEM file with a {block}")
