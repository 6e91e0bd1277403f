"""Settings of Ray in environment variables: loopback only, tokens, TLS.

Nothing here imports Ray: its processes read these variables when they start.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedcircuits.errors import FederationError

# Files of a folder of certificates.
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "node.crt", "node.key"
# Names of sockets, 84 bytes below this folder, must fit into 107.
LONGEST_FOLDER = 22
CONNECT = 10.0  # seconds for a machine to take a connection


def variables(
    local: bool,
    token: str | os.PathLike[str] | None = None,
    tls: str | os.PathLike[str] | None = None,
) -> dict[str, str]:
    """Return the variables to set before Ray starts or connects.

    Args:
        local: whether a cluster on this machine alone is started. It gets a token of its own unless
            the environment names one: other users of the machine reach loopback as well.
        token: file with the token of the cluster.
        tls: folder with `ca.crt`, `node.crt` and `node.key`.
    """
    found = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if local:
        # This is the switch that keeps the ports of all platforms on 127.0.0.1.
        found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        found["RAY_AUTH_MODE"] = os.environ.get("RAY_AUTH_MODE", "token")
        named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
        if token is None and not named:
            found["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    else:
        found["RAY_gcs_server_port_wait_time_s"] = "3"  # times that Ray tries to connect
    if token is not None:
        path = Path(token).absolute()
        if not path.is_file():
            raise FederationError(f"no file with the token of the cluster at {path}")
        found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    if tls is not None:
        folder = Path(tls).absolute()
        for name in (AUTHORITY, CERTIFICATE, KEY):
            if not (folder / name).is_file():
                raise FederationError(f"certificates: no {name} in {folder}")
        found |= {
            "RAY_USE_TLS": "1",
            "RAY_TLS_CA_CERT": str(folder / AUTHORITY),
            "RAY_TLS_SERVER_CERT": str(folder / CERTIFICATE),
            "RAY_TLS_SERVER_KEY": str(folder / KEY),
        }
    return found


@dataclass
class Environment:
    """Environment variables that are set now and restored later."""

    before: dict[str, str | None] = field(default_factory=dict)

    def set(self, found: Mapping[str, str]) -> None:
        """Set the variables and keep what they were."""
        self.before = {name: os.environ.get(name) for name in found}
        os.environ.update(found)

    def restore(self) -> None:
        """Restore the values of before."""
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.before = {}


def private_folder() -> Path:
    """Make a folder for sockets, logs and spilled objects that only this user can enter.

    Ray makes the folder it is given writable for everybody, so it is one inside a private one.
    """
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > LONGEST_FOLDER and Path("/tmp").is_dir():
        parent = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="fc-ray-", dir=parent)) / "r"
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that `private_folder` made, with its contents and its parent."""
    shutil.rmtree(folder.parent, ignore_errors=True)


def check_address(address: str) -> None:
    """Raise at once where Ray would try for minutes: no cluster there, or TLS on one side."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise FederationError(
            f"the address of a cluster is host:port or auto, found {address!r}; this program runs "
            "on one of its nodes (ray:// addresses are not for this)"
        )
    try:
        with socket.create_connection((host, int(port)), CONNECT) as plain:
            if os.environ.get("RAY_USE_TLS") == "1":
                _shake_hands(plain, host, address)
            elif _answers_tls(plain):
                raise FederationError(
                    f"the Ray cluster at {address} encrypts: give its certificates, "
                    "engine_options={'tls': FOLDER}"
                )
    except OSError as error:
        raise FederationError(f"no Ray cluster answers at {address}: {error}") from None


def _shake_hands(plain: socket.socket, host: str, address: str) -> None:
    """Check the certificate of the other side, and that it encrypts at all."""
    try:
        context = ssl.create_default_context(cafile=os.environ.get("RAY_TLS_CA_CERT"))
        context.load_cert_chain(
            os.environ.get("RAY_TLS_SERVER_CERT", ""), os.environ.get("RAY_TLS_SERVER_KEY")
        )
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        raise FederationError(
            f"the certificate of the Ray cluster at {address} is not one of our authority for "
            f"that host: {error.verify_message}"
        ) from None
    except (ssl.SSLError, ConnectionError) as error:
        raise FederationError(
            f"no encrypted connection to the Ray cluster at {address} ({error}): does it encrypt?"
        ) from None


def _answers_tls(plain: socket.socket) -> bool:
    """Whether the other side uses TLS; nothing is sent over it, so nothing is verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it answered in TLS, that it wants our certificate
    except OSError:
        return False
