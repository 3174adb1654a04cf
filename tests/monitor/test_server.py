# SPDX-License-Identifier: GPL-2.0-only
"""The exporter's server: the format that a scrape accepts, TLS, passwords, many clients; and the configuration files."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import lines
import pytest
from nsight_monitor import exporter, native, server, snapshots, web_config
from nsight_monitor.histogram import N_BUCKETS, Histogram
from nsight_monitor.web_config import WebConfig
from nsight_record.errors import Usage

from conftest import skip_or_fail

HANGS_S = 120
WINDOW = "20261122T184906Z-8612-1.nsight"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"


def window(*slow: dict[str, object]) -> str:
    return json.dumps({"window": {"name": WINDOW, "slow": slow}}) + "\n"


def slow(ns: int, stage: str = "tcp-socket-read") -> dict[str, object]:
    return {"stage": stage, "group": 0, "ns": ns, "monotonic_ns": 1, "realtime_ns": 1_700_000_000_500_000_000}


#: 50 reads of up to 1,024 ns, 10 of up to 1,048,576 ns; one of the latter, of 1 ms, is in a window.
TEXT = [
    lines.header(),
    lines.snapshot(10, lines.histogram("tcp-socket-read", 0, 5_000_000, b10=50, b20=10)),
    window(slow(1_000_000)),
]


def collector(*more: str, native_too: bool = False) -> exporter.Collector:
    if exporter.prometheus_client is None:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    header, states = snapshots.read([*TEXT, *more])
    found = exporter.Collector(header, native_too)
    for line in states:
        found.update(line)
    return found


def served(config: WebConfig | None = None) -> int:
    return server.serve(collector().answer, ("127.0.0.1", 0), config or WebConfig())


def test_the_bucket_of_a_slow_latency_carries_its_window_in_openmetrics_only() -> None:
    body, kind = collector().answer(OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    found = [row for row in body.decode().splitlines() if " # " in row and not row.startswith("#")]
    of = 'nsight_stage_latency_seconds_bucket{le="0.001048576",stage="tcp-socket-read"}'
    assert found == [f'{of} 60.0 # {{window="{WINDOW}"}} 0.001 1700000000.5']
    assert body.decode().endswith("# EOF\n")
    assert f'{{stage="tcp-socket-read",window="{WINDOW}"}}' in body.decode()
    plain, kind = collector().answer("text/plain")
    assert kind.startswith("text/plain")
    assert " # {" not in plain.decode()


@pytest.mark.parametrize(
    ("ns", "le"),
    [
        (1, "2.56e-07"),
        (256, "2.56e-07"),
        (257, "5.12e-07"),
        (1 << 35, "34.359738368"),
        ((1 << 35) + 1, "+Inf"),
    ],
)
def test_an_exemplar_is_in_the_bucket_of_its_value(ns: int, le: str) -> None:
    h = Histogram((1,) * N_BUCKETS, 0)
    buckets = exporter.cumulative(h, {exporter.bucket_of(ns): "x"})  # type: ignore[dict-item]
    assert [b[0] for b in buckets if len(b) == 3] == [le]


def test_a_newer_window_takes_the_place_of_the_one_before_in_its_bucket() -> None:
    newer = window(slow(1_000_001)).replace(WINDOW, "20261122T184906Z-8612-2.nsight")
    body, _ = collector(newer).answer(OPENMETRICS)
    assert body.decode().count('window="20261122T184906Z-8612-2.nsight"} 0.001000001') == 1
    assert f'window="{WINDOW}"' not in body.decode()
    assert "nsight_flight_windows_total 2.0" in body.decode()


def test_exemplars_of_groups_that_ended_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MOST_EXEMPLARS", 1)
    later = lines.snapshot(20, lines.histogram("ip-start", 70, 1, b20=1))
    body, _ = collector(later, window(slow(1_000_001, "ip-start") | {"group": 70})).answer(OPENMETRICS)
    assert f'window="{WINDOW}"}} 0.001000001' in body.decode()


def test_native_histograms_have_every_latency_in_sparse_buckets() -> None:
    """Bucket 10 becomes the bucket of up to 2**-20 s, bucket 20 the one of up to 2**-10 s; nine between them are empty."""
    if native.descriptor_pb2 is None:
        skip_or_fail("prometheus", "protobuf is not installed")
    assert collector().answer(PROTOBUF)[1].startswith("text/plain")  # not unless requested
    body, kind = collector(native_too=True).answer(PROTOBUF)
    assert kind == native.CONTENT_TYPE
    assert body == collector(native_too=True).answer(PROTOBUF.replace(";", "; "))[0]
    family, length = native.family_class()(), body[0] & 0x7F | body[1] << 7
    family.ParseFromString(body[2 : 2 + length])
    (metric,) = family.metric
    h = metric.histogram
    assert (family.name, family.type, h.schema) == ("nsight_stage_latency_seconds", 4, 0)
    assert (h.sample_count, h.sample_sum) == (60, 0.005)
    assert [(s.offset, s.length) for s in h.positive_span] == [(-20, 11)]
    assert list(h.positive_delta) == [50, -50, 0, 0, 0, 0, 0, 0, 0, 0, 10]
    (exemplar,) = [b.exemplar for b in h.bucket if b.HasField("exemplar")]
    assert (exemplar.label[0].value, exemplar.value) == (WINDOW, 0.001)


def hashed(password: bytes) -> str:
    data = ctypes.create_string_buffer(32768)
    made = web_config._libcrypt().crypt_r(password, b"$2y$04$abcdefghijklmnopqrstu.", data)
    return str(made.decode())


def status(url: str, user: str = "", context: ssl.SSLContext | None = None) -> int:
    request = urllib.request.Request(url)
    if user:
        request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=HANGS_S, context=context) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


def test_only_a_user_with_the_right_password_gets_metrics() -> None:
    config = WebConfig(users={"ann": hashed(b"secret"), "bob": hashed(b"other")})
    url = f"http://127.0.0.1:{served(config)}"
    assert status(f"{url}/metrics", "ann:secret") == 200
    assert status(f"{url}/metrics", "ann:secret") == 200  # the password check is cached
    for wrong in ("", "ann:other", "ann:", "bob:secret", "eve:secret", "ann", "ann:secret\0"):
        assert status(f"{url}/metrics", wrong) == 401, wrong
        assert status(f"{url}/", wrong) == 401, wrong


def basic(pair: str) -> str:
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def test_who_guesses_passwords_holds_up_nobody_who_knows_one() -> None:
    config = WebConfig(users={"ann": hashed(b"secret")})
    assert config.admits(basic("ann:secret"))
    admitted: list[bool] = []
    asking = threading.Thread(target=lambda: admitted.append(config.admits(basic("ann:secret"))), daemon=True)
    with config._lock:  # as while bcrypt runs for another client
        asking.start()
        asking.join(10)
        assert admitted == [True]


def test_a_user_that_does_not_exist_costs_as_much_as_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []

    def noted(password: bytes, hashed: str) -> bool:
        costs.append(hashed[4:6])
        return False

    monkeypatch.setattr(web_config, "matches", noted)
    config = WebConfig(users={"ann": "$2y$04$" + "a" * 53, "bob": "$2y$12$" + "b" * 53})
    assert not config.admits(basic("eve:secret")) and not config.admits(basic("bob:secret"))
    assert costs == ["12", "12"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with cert.pem and key.pem of 127.0.0.1."""
    directory = tmp_path_factory.mktemp("tls")
    if not shutil.which("openssl"):
        pytest.fail("openssl is not installed")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=nsight", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    return directory


def written(directory: Path, text: str) -> Path:
    (directory / "web.yml").write_text(text)
    return directory / "web.yml"


TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: 'key.pem' # beside it\n"


@pytest.mark.tools
def test_tls_and_passwords_are_those_of_the_file(certificate: Path) -> None:
    config = web_config.load(written(certificate, f'{TLS}basic_auth_users:\n  "ann": {hashed(b"secret")}\n'))
    url = f"https://127.0.0.1:{served(config)}/metrics"
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    assert status(url, "ann:secret", trusting) == 200
    assert status(url, "ann:wrong", trusting) == 401
    with pytest.raises(urllib.error.URLError):
        status(url, "ann:secret", ssl.create_default_context())  # the certificate is not trusted
    with pytest.raises((OSError, http.client.HTTPException)):
        status(url.replace("https", "http"), "ann:secret")


@pytest.mark.tools
def test_clients_without_a_certificate_are_refused_where_one_is_needed(certificate: Path) -> None:
    text = f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: cert.pem\n"
    url = f"https://127.0.0.1:{served(web_config.load(written(certificate, text)))}/metrics"
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with pytest.raises((OSError, http.client.HTTPException)):
        status(url, context=context)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    assert status(url, context=context) == 200


@pytest.mark.tools
@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_sends_a_byte_now_and_then_is_closed(
    tls: bool, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a TLS handshake: one byte of a record each time."""
    monkeypatch.setattr(server, "LONGEST_S", 1.0)
    port = served(web_config.load(written(certificate, TLS)) if tls else None)
    said = b"\x16\x03\x01\x40\x00" if tls else b"GET /metrics HTTP/1.1\r\nX: "
    with socket.create_connection(("127.0.0.1", port), HANGS_S) as client:
        client.settimeout(0.2)
        for n in range(int(HANGS_S / 0.2)):
            with contextlib.suppress(TimeoutError):
                try:
                    client.send(said[n : n + 1] or b"x")
                    if not client.recv(1):
                        return
                except (ConnectionError, BrokenPipeError):
                    return
    pytest.fail("it was never closed")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls_server_config:\n  cert_file: no.pem\n  key_file: no.pem\n", "No such file"),
        ("tls_server_config:\n  cert_file: a\n", "needs cert_file and key_file"),
        ("tls_server_config:\n  cert_file: a\n  key_file: b\n  min_version: TLS10\n", "TLS10"),
        ("tls_server_config: {cert_file: a}\n", "line 1"),
        ("tls_server_config:\n  cipher_suites:\n  - A\n", "line 2"),
        ("tls_server_config:\n  curve_preferences: X\n", "curve_preferences is not supported"),
        ("basic_auth_users:\n  ann: secret\n", "no bcrypt hash"),
        ("basic_auth_users:\n  ann: &a x\n", "no plain value"),
        ("basic_auth_users:\n  ann: a\n  ann: b\n", "twice"),
        ("basic_auth_users:\nbasic_auth_users:\n", "twice"),
        ("http_server_config:\n  http2: true\n", "http_server_config is not supported"),
        ("  ann: a\n", "line 1"),
        ("\udc00", "decode"),
    ],
)  # fmt: skip
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "web.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(Usage, match=re.escape(said)) as error:
        web_config.load(path)
    assert error.value.hint


def test_fifty_clients_at_once_get_the_same_and_none_waits_for_one_that_says_nothing() -> None:
    port = served()
    found: list[bytes] = []

    def scrape() -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": OPENMETRICS})
        with urllib.request.urlopen(request, timeout=HANGS_S) as answer:
            found.append(answer.read())

    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    threads = [threading.Thread(target=scrape) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_S)
    assert len(found) == 50 and len(set(found)) == 1
    for s in silent:
        s.close()


def test_connections_beyond_the_limit_are_closed_and_later_ones_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 2 * HANGS_S)  # silent clients stay
    port = served()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(server.MOST_CONNECTIONS)]
    one_more = socket.create_connection(("127.0.0.1", port))
    one_more.settimeout(HANGS_S)
    assert one_more.recv(1) == b""
    for s in (*silent, one_more):
        s.close()
    while True:  # until the server has noticed that the clients left
        try:
            assert status(f"http://127.0.0.1:{port}/") == 200
            break
        except OSError:
            pass


@pytest.fixture
def other_paths() -> Iterator[int]:
    yield served()


@pytest.mark.parametrize(
    ("path", "code"), [("/", 200), ("/metrics?x=1", 200), ("/etc/passwd", 404), ("/metrics/", 404)]
)
def test_there_is_nothing_but_metrics(other_paths: int, path: str, code: int) -> None:
    assert status(f"http://127.0.0.1:{other_paths}{path}") == code
