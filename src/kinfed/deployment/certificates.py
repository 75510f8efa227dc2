"""Certificates and keys for a trial deployment: a certificate authority, the server's certificate, a key pair per node.

For a trial, because one person makes all of them here. In a consortium every site makes its own node key, keeps the private
half, and sends the public half to whoever runs the SuperLink.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kinfed.errors import InputError

ALWAYS = ("localhost", "127.0.0.1")
"""Names under which the server may be reached without being asked for: a trial starts on one machine."""

_PRIVATE = 0o600
_PUBLIC = 0o644


@dataclass(frozen=True)
class Certificates:
    """Where the files are.

    Attributes
    ----------
    authority : path
        Certificate of the authority: everybody who connects needs it.
    server_certificate, server_key : path
        For the SuperLink.
    node_keys : tuple of path
        Private keys of the nodes; the public halves lie beside them and end in ``.pub``.
    """

    authority: Path
    server_certificate: Path
    server_key: Path
    node_keys: tuple[Path, ...]

    @property
    def public_keys(self) -> tuple[Path, ...]:
        """Public halves of the node keys, which the SuperLink registers."""
        return tuple(key.with_name(f"{key.name}.pub") for key in self.node_keys)


def write_certificates(folder: Path, hosts: Sequence[str] = (), nodes: int = 3, days: int = 365) -> Certificates:
    """Write ``ca.crt``, ``server.pem``, ``server.key`` and ``node-1``, ``node-1.pub``, ... into a folder.

    The key of the authority is written nowhere: it signs the server's certificate and is forgotten. All keys are on the
    curve P-384, as Flower asks for. Nothing is overwritten.

    Parameters
    ----------
    folder : path
    hosts : sequence of str
        Names and addresses of the server beside localhost and 127.0.0.1.
    nodes : int
        Number of node keys.
    days : int
        How long the certificates are valid.
    """
    if nodes < 1:
        raise InputError(f"the number of nodes must be at least 1, got {nodes}")
    if days < 1:
        raise InputError(f"the number of days must be at least 1, got {days}")
    names = [_general_name(host) for host in dict.fromkeys((*ALWAYS, *hosts))]
    files = Certificates(
        folder / "ca.crt",
        folder / "server.pem",
        folder / "server.key",
        tuple(folder / f"node-{number + 1}" for number in range(nodes)),
    )
    refuse_existing([files.authority, files.server_certificate, files.server_key, *files.node_keys, *files.public_keys])
    until = timedelta(days=days)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = _authority(authority_key, until)
    server = _server(server_key, authority_key, authority, names, until)
    _write(files.authority, authority.public_bytes(Encoding.PEM), _PUBLIC)
    _write(files.server_certificate, server.public_bytes(Encoding.PEM), _PUBLIC)
    _write(files.server_key, server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), _PRIVATE)
    for path, public in zip(files.node_keys, files.public_keys, strict=True):
        key = ec.generate_private_key(ec.SECP384R1())
        _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), _PRIVATE)
        text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        _write(public, text + f" {path.name}\n".encode(), _PUBLIC)
    return files


def refuse_existing(paths: Sequence[Path]) -> None:
    """Raise if any of the files is there already; keys that others rely on must not change under them."""
    for path in paths:
        if path.exists() or path.is_symlink():
            raise InputError(f"{path} exists already and is not overwritten; give another folder, or remove it yourself")


def _general_name(host: str) -> x509.GeneralName:
    address: IPv4Address | IPv6Address
    try:
        address = ip_address(host)
    except ValueError:
        try:
            return x509.DNSName(host.encode("idna").decode("ascii"))
        except UnicodeError:
            raise InputError(f"{host!r} is neither the name of a host nor an IP address") from None
    return x509.IPAddress(address)


def _authority(key: ec.EllipticCurvePrivateKey, until: timedelta) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kinfed trial authority")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        _draft(name, name, key.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA384())
    )


def _server(
    key: ec.EllipticCurvePrivateKey,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    names: Sequence[x509.GeneralName],
    until: timedelta,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kinfed server")])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _draft(name, authority.subject, key.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: timedelta
) -> x509.CertificateBuilder:
    # Clocks of different sites differ: the certificate is valid an hour before it was made.
    start = datetime.now(UTC) - timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + until)
    )


def _key_usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    # The mode is set as the file is made, so a private key is never readable by others; an existing file is refused.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
