"""Certificates for a cluster that encrypts: one authority, one certificate for each machine.

    python -m fedcircuits.engines.ray.certificates FOLDER 10.0.0.1 10.0.0.2 bank.example

makes FOLDER/10.0.0.1 and so on, each with the `ca.crt`, `node.crt` and `node.key` that go to that
machine. The authority's key stays in FOLDER; with it, further machines are added later.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcircuits.engines.ray.settings import AUTHORITY, CERTIFICATE, KEY
from fedcircuits.errors import FederationError, MissingExtraError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise MissingExtraError("making certificates", "ray") from None

AUTHORITY_KEY = "ca.key"
LOOPBACK = ("127.0.0.1", "localhost")


def make_certificates(
    folder: str | os.PathLike[str], hosts: Sequence[str], days: int = 365
) -> dict[str, Path]:
    """Make certificates of machines, and an authority where the folder has none.

    Args:
        folder: of the authority; each machine's files go to a folder of its name below.
        hosts: addresses or names under which machines reach each other.
        days: until certificates end.

    Returns:
        The folder of each machine.
    """
    root = Path(folder)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (root / AUTHORITY).exists() != (root / AUTHORITY_KEY).exists():
        raise FederationError(
            f"{root} holds one of {AUTHORITY} and {AUTHORITY_KEY}: both are needed to add machines"
        )
    if not (root / AUTHORITY).exists():
        _make_authority(root, days)
    signer = _read_key(root / AUTHORITY_KEY)
    authority = x509.load_pem_x509_certificate((root / AUTHORITY).read_bytes())
    made = {}
    for host in hosts:
        own = root / host
        own.mkdir(mode=0o700, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [_name(each) for each in dict.fromkeys((host, *LOOPBACK))]
        )
        # A node serves its peers and calls them, with the same certificate.
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(host, authority.subject, key, days)
            .add_extension(names, critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )
        _write(own / CERTIFICATE, _pem(builder.sign(signer, hashes.SHA256())))
        _write(own / AUTHORITY, _pem(authority))
        _write(own / KEY, _key_bytes(key))
        made[host] = own
    return made


def _make_authority(root: Path, days: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedcircuits cluster authority")])
    certificate = (
        _builder("fedcircuits cluster authority", name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs_certificates(), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(root / AUTHORITY_KEY, _key_bytes(key))
    _write(root / AUTHORITY, _pem(certificate))


def _builder(subject: str, issuer: x509.Name, key: Any, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        # Python 3.13 refuses certificates without the extensions that RFC 5280 asks for.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_bytes(key: Any) -> bytes:
    data: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return data


def _read_key(path: Path) -> Any:
    return serialization.load_pem_private_key(path.read_bytes(), password=None)


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def main() -> None:
    """Make certificates as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m fedcircuits.engines.ray.certificates")
    parser.add_argument("folder", type=Path, help="where the authority is or will be")
    parser.add_argument("hosts", nargs="+", help="addresses or names of the machines")
    parser.add_argument("--days", type=int, default=365, help="until certificates end")
    options = parser.parse_args()
    make_certificates(options.folder, options.hosts, options.days)


if __name__ == "__main__":
    main()
