"""`fedcircuits serve` as a process: signals, tokens, limits on time, connections that stay open."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from contracts.service import PATIENT, TOKEN, asked, serving
from fedcircuits.cli.app import app

pytestmark = pytest.mark.engine


def test_an_answer_that_takes_too_long_is_given_up(path: Path) -> None:
    with serving(path, "--max-seconds", 1e-4, "--workers", 1) as (told, _):
        header = {"Authorization": f"Bearer {TOKEN}"}
        for _ in range(5):  # slots that were given up come back, or the fifth would hang
            reply = httpx.post(
                f"{told['url']}/sample", json={"n": 10_000}, headers=header, timeout=PATIENT
            )
            assert reply.status_code in (408, 503)
            said = reply.json()["error"]  # given up, or on a busy machine not even begun
            assert "0.0001 s" in said or "not begun within 5e-05 s" in said
        assert httpx.get(f"{told['url']}/health", timeout=PATIENT).status_code in (200, 408)


# --- the process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(path: Path, number: signal.Signals) -> None:
    with serving(path) as (told, process):
        assert httpx.get(f"{told['url']}/health", timeout=PATIENT).status_code == 200
        process.send_signal(number)
        assert process.wait(timeout=PATIENT) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{told['url']}/health", timeout=PATIENT)
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_request_on_its_way_is_answered_before_the_end(path: Path) -> None:
    body = json.dumps({"n": 100}).encode()
    with serving(path) as (told, process), asked(told["url"], "sample", body) as one:
        process.send_signal(signal.SIGTERM)
        one.sendall(body)
        reply = b"".join(iter(lambda: one.recv(65536), b""))
        assert reply.startswith(b"HTTP/1.1 200"), reply[:200]
        assert len(json.loads(reply.partition(b"\r\n\r\n")[2])["rows"]) == 100
        assert process.wait(timeout=PATIENT) == 0


def test_a_token_is_made_where_none_is_given(path: Path) -> None:
    with serving(path, token=None) as (told, _):
        assert len(told["token"]) > 40
        header = {"Authorization": f"Bearer {told['token']}"}
        assert (
            httpx.get(f"{told['url']}/schema", headers=header, timeout=PATIENT).status_code == 200
        )
    with serving(path) as (told, _):
        assert "token" not in told
        assert told["url"].startswith("http://127.0.0.1:")


def test_a_token_from_a_file_and_https(path: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "host.pem", tmp_path / "host.key"
    made = subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
            "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
            "-out", str(certificate),
        ],
        capture_output=True,
        check=False,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("no openssl to make a certificate with")
    token = tmp_path / "token.txt"
    token.write_text("another-token-of-the-team\n")
    token.chmod(0o644)
    options = ("--token-file", token, "--certificate", certificate, "--key", key)
    with serving(path, *options, token=None) as (told, process):
        assert told["url"].startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        header = {"Authorization": "Bearer another-token-of-the-team"}
        reply = httpx.get(f"{told['url']}/schema", headers=header, verify=trusted, timeout=PATIENT)
        assert reply.status_code == 200
        process.terminate()
        assert f"chmod 600 {token}" in process.communicate(timeout=PATIENT)[1].replace("\n", "")


def run(*options: object, token: str = TOKEN) -> str:
    """What a service that cannot start says."""
    done = CliRunner().invoke(app, ["serve", *map(str, options)], env={"FEDCIRCUITS_TOKEN": token})
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    return done.stderr


def test_it_does_not_start_without_what_it_needs(path: Path, tmp_path: Path) -> None:
    assert "cannot read" in run(tmp_path / "none.fc")
    (tmp_path / "bad.fc").write_text("not a model, not a model")
    assert "not a fedcircuits file" in run(tmp_path / "bad.fc")
    assert "16 or more plain characters" in run(path, token="short")
    assert "cannot read the token" in run(path, "--token-file", tmp_path / "none.txt")
    assert "go together" in run(path, "--certificate", path)
    assert "a limit is above 0" in run(path, "--max-rows", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen at 127.0.0.1 port" in run(path, "--port", taken.getsockname()[1])


# --- what strangers and odd requests cannot do ----------------------------------------------------


def test_half_open_connections_do_not_block_others(path: Path) -> None:
    with serving(path) as (told, _):
        port = int(told["url"].rpartition(":")[2])
        held = []
        try:
            for _ in range(300):
                one = socket.create_connection(("127.0.0.1", port), timeout=PATIENT)
                one.sendall(b"POST /log_prob HTTP/1.1\r\nHost: x\r\n")  # the rest never comes
                held.append(one)
            assert httpx.get(f"{told['url']}/health", timeout=PATIENT).status_code == 200
            held[0].settimeout(PATIENT)
            assert held[0].recv(100) == b""  # closed by the service after a few seconds
        finally:
            for one in held:
                one.close()


def send_for_ever(one: socket.socket, data: bytes) -> None:
    while True:
        one.sendall(data)


def test_replies_that_nobody_reads_do_not_hold_a_connection(path: Path) -> None:
    """Open pages asked for again and again by somebody without a token, who takes no reply."""
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200
    with serving(path) as (told, _), socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(2.0)
        one.connect(("127.0.0.1", int(told["url"].rpartition(":")[2])))
        with pytest.raises(TimeoutError):  # nothing more fits between us
            send_for_ever(one, ask)
        one.settimeout(PATIENT)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            send_for_ever(one, ask)  # waits until the service ends the connection, which resets it


def test_a_reply_that_is_read_slowly_arrives(path: Path) -> None:
    """Some kilobytes a second, over longer than a connection may stand still."""
    body = json.dumps({"n": 10_000}).encode()
    with serving(path, "--max-samples", 10_000) as (told, _), socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(PATIENT)
        one.connect(("127.0.0.1", int(told["url"].rpartition(":")[2])))
        head = f"POST /sample HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n"
        one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        found = one.recv(2000)
        for _ in range(14):
            time.sleep(1.0)
            found += one.recv(20_000)
        found += b"".join(iter(lambda: one.recv(65536), b""))
        assert found.startswith(b"HTTP/1.1 200")
        assert len(json.loads(found.partition(b"\r\n\r\n")[2])["rows"]) == 10_000


def test_a_stuck_question_does_not_hold_up_the_end(path: Path) -> None:
    body = json.dumps({"n": 10**8}).encode()
    options = ("--max-samples", 10**9, "--max-seconds", 3600)
    with serving(path, *options) as (told, process), asked(told["url"], "sample", body) as one:
        one.sendall(body)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENT) == 0  # the question would take many minutes
