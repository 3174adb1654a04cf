# SPDX-License-Identifier: GPL-2.0-only
"""Native histograms: Prometheus's protobuf exposition, the only format in which Prometheus accepts them.

Prometheus's native buckets of schema 0 end at powers of two of a second, ours at powers of two of a
nanosecond. A bucket of up to 2**b ns becomes the one of up to 2**(b - 30) s, whose bounds are 6.9 % lower.
Percentiles of a native histogram may be too low by that much. The classic buckets are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .histogram import N_BUCKETS, Histogram

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.internal.encoder import _VarintBytes as varint
except ImportError:  # it is optional
    descriptor_pb2 = None  # type: ignore[assignment]

CONTENT_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_PACKAGE = "io.prometheus.client"
#: The used part of metrics.proto: name, number, type, whether it repeats.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "LabelPair": (("name", 1, "string", False), ("value", 2, "string", False)),
    "Gauge": (("value", 1, "double", False),),
    "Counter": (("value", 1, "double", False), ("created_timestamp", 3, "Timestamp", False)),
    "BucketSpan": (("offset", 1, "sint32", False), ("length", 2, "uint32", False)),
    "Timestamp": (("seconds", 1, "int64", False), ("nanos", 2, "int32", False)),
    "Exemplar": (
        ("label", 1, "LabelPair", True),
        ("value", 2, "double", False),
        ("timestamp", 3, "Timestamp", False),
    ),
    "Bucket": (
        ("cumulative_count", 1, "uint64", False),
        ("upper_bound", 2, "double", False),
        ("exemplar", 3, "Exemplar", False),
    ),
    "Histogram": (
        ("sample_count", 1, "uint64", False),
        ("sample_sum", 2, "double", False),
        ("bucket", 3, "Bucket", True),
        ("schema", 5, "sint32", False),
        ("zero_threshold", 6, "double", False),
        ("zero_count", 7, "uint64", False),
        ("positive_span", 12, "BucketSpan", True),
        ("positive_delta", 13, "sint64", True),
        ("created_timestamp", 15, "Timestamp", False),
    ),
    "Metric": (
        ("label", 1, "LabelPair", True),
        ("gauge", 2, "Gauge", False),
        ("counter", 3, "Counter", False),
        ("histogram", 7, "Histogram", False),
    ),
    "MetricFamily": (
        ("name", 1, "string", False),
        ("help", 2, "string", False),
        ("type", 3, "int32", False),
        ("metric", 4, "Metric", True),
    ),
}
_TYPES = {"counter": 0, "gauge": 1, "histogram": 4}


def family_class() -> Any:
    """MetricFamily, built with the protobuf library."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="nsight/metrics.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in _MESSAGES:
                message.field.add(
                    name=field,
                    number=number,
                    label=label,
                    type=kinds.TYPE_MESSAGE,
                    type_name=f".{_PACKAGE}.{kind}",
                )
            else:
                message.field.add(
                    name=field, number=number, label=label, type=getattr(kinds, f"TYPE_{kind.upper()}")
                )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if not hasattr(pool, "AddSerializedFile") else pool.AddSerializedFile(
        file.SerializeToString()
    )
    found = pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(found)
    return message_factory.MessageFactory(pool).GetPrototype(found)  # Debian 12's


def fill(into: Any, h: Histogram) -> None:
    """Sparse buckets, from the first filled one to the last, as differences."""
    into.sample_count, into.sample_sum = h.count, h.sum_ns / 1e9
    into.schema, into.zero_threshold, into.zero_count = 0, 0.0, 0
    filled = [b for b in range(N_BUCKETS) if h.n[b]]
    first, last = (filled[0], filled[-1]) if filled else (0, -1)
    into.positive_span.add(offset=first - 30, length=last - first + 1)
    before = 0
    for b in range(first, last + 1):
        into.positive_delta.append(h.n[b] - before)
        before = h.n[b]


def exposition(families: Iterable[Any], histograms: Iterable[tuple[dict[str, str], Histogram]]) -> bytes:
    """``families`` are in prometheus_client's form. ``histograms``, with their labels, belong to the one
    family that is a histogram. Its exemplars come with the classic buckets, where Prometheus looks for them.
    """
    make = family_class()
    native = {tuple(sorted(labels.items())): h for labels, h in histograms}
    out = []
    for family in families:
        counter = family.type == "counter"
        message = make(
            name=family.name + "_total" * counter, help=family.documentation, type=_TYPES[family.type]
        )
        if family.type == "histogram":
            _histograms(message, family, native)
        else:
            for sample in family.samples:
                if sample.name.endswith("_created"):  # of the metric before
                    _time(message.metric[-1].counter.created_timestamp, sample.value)
                    continue
                metric = message.metric.add()
                _label(metric, sample.labels)
                (metric.counter if counter else metric.gauge).value = sample.value
        body = message.SerializeToString()
        out += [varint(len(body)), body]
    return b"".join(out)


def _histograms(message: Any, family: Any, native: dict[tuple[tuple[str, str], ...], Histogram]) -> None:
    metrics: dict[tuple[tuple[str, str], ...], Any] = {}
    for sample in family.samples:
        key = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        if key not in metrics:
            metrics[key] = message.metric.add()
            _label(metrics[key], dict(key))
            fill(metrics[key].histogram, native[key])
        if sample.name.endswith("_created"):
            _time(metrics[key].histogram.created_timestamp, sample.value)
        if not sample.name.endswith("_bucket"):
            continue
        bucket = metrics[key].histogram.bucket.add(
            cumulative_count=int(sample.value), upper_bound=float(sample.labels["le"])
        )
        if sample.exemplar:
            _label(bucket.exemplar, sample.exemplar.labels)
            bucket.exemplar.value = sample.exemplar.value
            _time(bucket.exemplar.timestamp, sample.exemplar.timestamp)


def _time(into: Any, seconds: float) -> None:
    into.seconds, into.nanos = int(seconds), int(seconds % 1 * 1e9)


def _label(metric: Any, labels: dict[str, str]) -> None:
    for name, value in sorted(labels.items()):
        metric.label.add(name=name, value=value)
