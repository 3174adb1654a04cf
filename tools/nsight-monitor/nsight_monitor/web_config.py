# SPDX-License-Identifier: GPL-2.0-only
"""TLS and passwords of the exporter, from a file in the format of Prometheus's exporters (--web.config.file).

It reads tls_server_config and basic_auth_users, with one value per line. Anything else that YAML allows is
refused, not guessed.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import hashlib
import hmac
import re
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

from nsight_record.errors import Missing, Usage

_MOST = 1 << 20
_SECTION = re.compile(r"([a-z_]+):\s*")
_ENTRY = re.compile(r"[ \t]+(?:\"([^\"\\]+)\"|'([^']+)'|([^\s:'\"#][^:#'\"]*?))\s*:\s+(.+)")
_HASH = re.compile(r"\$2[aby]\$(0[4-9]|1[0-9])\$[./A-Za-z0-9]{53}")
_TLS = {"cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version", "max_version"}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {"NoClientCert": ssl.CERT_NONE, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
            "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL}  # fmt: skip
#: The hash for comparing an unknown user's password, at the same cost as for known users: response times do
#: not show which users exist.
_NOBODYS = "$2y${cost}$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
_CRYPT_DATA = 32768  # struct crypt_data of libcrypt
_KEPT_PASSWORDS = 64
_HINT = "see https://prometheus.io/docs/prometheus/latest/configuration/https/: tls_server_config, basic_auth_users"


def _value(text: str) -> str:
    """A scalar with its quotes, without the comment after it."""
    text = text.strip()
    if m := re.fullmatch(r"\"([^\"\\]*)\"(?:\s+#.*)?|'([^']*)'(?:\s+#.*)?", text):
        return str(m[1] if m[1] is not None else m[2])
    plain = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    if not plain or plain[0] in "[]{}|>&*!%@`\"'":
        raise ValueError(f"{text:.40} is no plain value")
    return plain


def sections(text: str) -> dict[str, dict[str, str]]:
    """Values by section and key. Raises ValueError for YAML that these files do not need.

    >>> sections("basic_auth_users:\\n  ann: $2y$10$x # hers")
    {'basic_auth_users': {'ann': '$2y$10$x'}}
    """
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#") or bare == "---":
            continue
        if m := _SECTION.fullmatch(line):
            if m[1] in found:
                raise ValueError(f"line {number}: {m[1]} is there twice")
            section = found[m[1]] = {}
        elif (m := _ENTRY.fullmatch(line)) and section is not None:
            key = m[1] or m[2] or m[3]
            if key in section:
                raise ValueError(f"line {number}: {key} is there twice")
            section[key] = _value(m[4])
        else:
            raise ValueError(f"line {number} is not a section, nor a value of one: {bare:.40}")
    return found


def _tls(of: dict[str, str], beside: Path) -> ssl.SSLContext:
    if unknown := sorted(of.keys() - _TLS):
        raise ValueError(f"tls_server_config: {unknown[0]} is not supported")
    if not of.get("cert_file") or not of.get("key_file"):
        raise ValueError("tls_server_config: needs cert_file and key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version = _VERSIONS[of.get("min_version", "TLS12")]
        context.maximum_version = _VERSIONS[of.get("max_version", "TLS13")]
        needed = _CLIENTS[of.get("client_auth_type", "NoClientCert")]
    except KeyError as e:
        raise ValueError(f"tls_server_config: {e} is not supported") from None
    context.load_cert_chain(beside / of["cert_file"], beside / of["key_file"], password=lambda: b"")
    if needed != ssl.CERT_NONE:
        if not of.get("client_ca_file"):
            raise ValueError("tls_server_config: client_auth_type needs client_ca_file")
        context.load_verify_locations(beside / of["client_ca_file"])
        context.verify_mode = needed
    return context


def _libcrypt() -> ctypes.CDLL:
    for name in ("libcrypt.so.1", "libcrypt.so.2"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.crypt_r.restype = ctypes.c_char_p
        return library
    raise Missing("basic_auth_users: this system has no libcrypt", "apt install libcrypt1")


def matches(password: bytes, hashed: str, library: ctypes.CDLL | None = None) -> bool:
    """Whether the bcrypt hash fits the password."""
    data = ctypes.create_string_buffer(_CRYPT_DATA)
    made = (library or _libcrypt()).crypt_r(password, hashed.encode(), data)
    return made is not None and hmac.compare_digest(made, hashed.encode())


@dataclass
class WebConfig:
    """``tls``: None: no TLS. ``users``: bcrypt hashes by name; empty: no password is needed."""

    tls: ssl.SSLContext | None = None
    users: dict[str, str] = field(default_factory=dict)
    _known: dict[bytes, bool] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admits(self, authorization: str) -> bool:
        """Whether the header names a user with the right password. bcrypt is slow, so accepted passwords are
        remembered by a hash."""
        if not self.users:
            return True
        kind, _, encoded = authorization.partition(" ")
        try:
            pair = base64.b64decode(encoded.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        user, colon, password = pair.partition(b":")
        if kind.lower() != "basic" or not colon or b"\0" in password or len(pair) > 512:
            return False
        hashed = self.users.get(user.decode("utf-8", "replace"))
        mark = hashlib.sha256(user + b"\0" + (hashed or "").encode() + b"\0" + password).digest()
        if mark in self._known:  # before the lock: guessing delays nobody who knows one
            return True
        with self._lock:  # one at a time: guessing takes at most one core
            cost = max(known[4:6] for known in self.users.values())
            if not matches(password, hashed or _NOBODYS.replace("{cost}", cost)) or hashed is None:
                return False
            if len(self._known) >= _KEPT_PASSWORDS:
                self._known.clear()
            self._known[mark] = True
        return True


def load(path: Path) -> WebConfig:
    """Raises Usage for errors in the file, or in files that it names."""
    try:
        if path.stat().st_size > _MOST:
            raise ValueError("it is too large")
        found = sections(path.read_text("utf-8"))
        if unknown := sorted(found.keys() - {"tls_server_config", "basic_auth_users"}):
            raise ValueError(f"{unknown[0]} is not supported")
        users = found.get("basic_auth_users", {})
        for name, hashed in users.items():
            if not _HASH.fullmatch(hashed):
                raise ValueError(
                    f"basic_auth_users: that of {name:.40} is no bcrypt hash (htpasswd -nB makes one)"
                )
        if users:
            _libcrypt()
        tls = found.get("tls_server_config")
        return WebConfig(_tls(tls, path.parent) if tls is not None else None, users)
    except ssl.SSLError as e:
        raise Usage(f"--web-config {path}: certificate or key: {e.reason or e}", _HINT) from None
    except OSError as e:
        raise Usage(f"--web-config {path}: {e.filename or ''}: {e.strerror}", _HINT) from None
    except ValueError as e:
        raise Usage(f"--web-config {path}: {e}", _HINT) from None
