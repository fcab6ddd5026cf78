"""How records become rows: compact msgpack arrays whose field names are kept once per store.

Everything read back is treated as hostile: types and lengths are checked by msgspec, and nothing
but plain data can come out.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from gputop_train.model import (
    EXPOSED_LABELS,
    LABELS,
    GpmSample,
    GpuSample,
    HostSample,
    Loader,
    MemorySample,
    ProcSample,
    Site,
)

T = TypeVar("T")

#: Field names by record, in the order they are written.
Layout = dict[str, list[str]]

_encode = msgspec.msgpack.Encoder().encode
_ints = msgspec.msgpack.Decoder(list[int])
_int_map = msgspec.msgpack.Decoder(dict[int, int])
_pair_map = msgspec.msgpack.Decoder(dict[int, tuple[int, int]])
_values = msgspec.msgpack.Decoder(list[Any])

#: Records stored as a body, with the fields that have columns of their own.
_RECORDS: dict[type[Any], tuple[str, ...]] = {
    Site: ("rank", "id"),
    Loader: ("rank", "id"),
    MemorySample: ("rank", "t_ns", "allocated"),
    GpuSample: ("uuid", "t_ns"),
    GpmSample: ("uuid", "t_ns"),
    HostSample: ("t_ns",),
    ProcSample: ("t_ns", "pid"),
}


def current_layout() -> Layout:
    """The field order this version writes."""
    layout = {"labels": list(LABELS), "exposed": list(EXPOSED_LABELS)}
    for model, keys in _RECORDS.items():
        layout[model.__name__] = [
            field.name for field in dataclasses.fields(model) if field.name not in keys
        ]
    return layout


class RecordCodec(Generic[T]):
    """Packs and unpacks the body of one kind of record."""

    def __init__(self, model: type[T], names: Sequence[str]) -> None:
        known = set(typing.get_type_hints(model))
        self._model = model
        self._names = tuple(names)
        self._pick = _picker([name if name in known else None for name in names])

    def encode(self, record: T) -> bytes:
        """The record's fields without those kept in columns."""
        fields = self._pick(record)
        try:
            return _encode(fields)
        except UnicodeEncodeError:
            return _encode(well_formed(fields))

    def decode(self, body: bytes, **keys: Any) -> T:
        """Rebuilds a record.

        Args:
            body: What ``encode`` gave.
            **keys: The fields kept in columns.

        Raises:
            msgspec.MsgspecError: If the body is not what it should be.
        """
        fields = dict(zip(self._names, _values.decode(body), strict=False))
        fields.update(keys)
        return msgspec.convert(fields, self._model)


def well_formed(value: Any) -> Any:
    r"""The same plain data in text that UTF-8 can hold.

    On Linux a file name or an argument is bytes: what of them is no UTF-8 is half a surrogate pair
    in Python's strings (PEP 383), which no encoder takes. It becomes an escape such as ``\udce9``.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {well_formed(key): well_formed(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [well_formed(part) for part in value]
    return value


def to_json(value: object) -> str:
    """Anything plain as JSON, whatever its text holds."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(well_formed(msgspec.to_builtins(value))).decode()


def _picker(names: Sequence[str | None]) -> Callable[[Any], tuple[Any, ...]]:
    """Reads several attributes at once; ``None`` stands for one this version does not have."""
    if None not in names and len(names) > 1:
        pick: Callable[[Any], tuple[Any, ...]] = attrgetter(*typing.cast("list[str]", names))
        return pick
    return lambda record: tuple(None if name is None else getattr(record, name) for name in names)


class Codecs:
    """All codecs of one store, built from the layout it was written with."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = current_layout() if layout is None else layout
        self.site = RecordCodec(Site, self.layout["Site"])
        self.loader = RecordCodec(Loader, self.layout["Loader"])
        self.memory = RecordCodec(MemorySample, self.layout["MemorySample"])
        self.gpu = RecordCodec(GpuSample, self.layout["GpuSample"])
        self.gpm = RecordCodec(GpmSample, self.layout["GpmSample"])
        self.host = RecordCodec(HostSample, self.layout["HostSample"])
        self.proc = RecordCodec(ProcSample, self.layout["ProcSample"])
        self._labels = tuple(self.layout["labels"])
        self._label_at = {label: index for index, label in enumerate(self._labels)}
        self._other = self._label_at["other"]
        self._exposed = tuple(self.layout["exposed"])
        self._exposed_at = {label: index for index, label in enumerate(self._exposed)}

    @classmethod
    def from_json(cls, text: str) -> Codecs:
        """Codecs for the layout kept in a store.

        Raises:
            msgspec.MsgspecError: If the text is not a layout.
            KeyError: If a record is missing from it.
        """
        return cls(msgspec.json.decode(text, type=Layout))

    def to_json(self) -> str:
        """The layout as text, for the store's ``meta``."""
        return msgspec.json.encode(self.layout).decode()

    def encode_labels(self, labels: Mapping[str, int]) -> bytes:
        """Nanoseconds by label as an array; time under a label the store lacks counts as other."""
        if tuple(labels) == self._labels:  # as this version makes them: thousands a second
            return _encode(list(labels.values()))
        values = [0] * len(self._labels)
        for label, ns in labels.items():
            values[self._label_at.get(label, self._other)] += ns
        return _encode(values)

    def decode_labels(self, body: bytes) -> dict[str, int]:
        """The inverse of ``encode_labels``; every label of the model is present.

        Raises:
            ValueError: If the body is not such an array (``msgspec.MsgspecError`` is one).
        """
        values = _ints.decode(body)
        if len(values) != len(self._labels):
            raise ValueError("a step with the wrong number of labels")
        if self._labels == LABELS:
            return dict(zip(LABELS, values, strict=True))
        labels = dict.fromkeys(LABELS, 0)
        for label, ns in zip(self._labels, values, strict=True):
            labels[label if label in labels else "other"] += ns
        return labels

    def encode_exposed(self, exposed: Mapping[str, Any] | None) -> bytes | None:
        """Exposed idle by label; labels the store lacks are left out, as not measured."""
        if exposed is None:
            return None
        at = self._exposed_at
        return _encode({at[label]: value for label, value in exposed.items() if label in at})

    def decode_exposed(self, body: bytes | None) -> dict[str, int] | None:
        """The inverse of ``encode_exposed`` for one step.

        Raises:
            ValueError: If the body is not such a map.
        """
        return None if body is None else self._named(_int_map.decode(body))

    def decode_exposed_sums(self, body: bytes | None) -> dict[str, tuple[int, int]] | None:
        """The inverse of ``encode_exposed`` for a rollup.

        Raises:
            ValueError: If the body is not such a map.
        """
        return None if body is None else self._named(_pair_map.decode(body))

    def _named(self, values: dict[int, T]) -> dict[str, T]:
        if any(not 0 <= index < len(self._exposed) for index in values):
            raise ValueError("exposed idle under an unknown label")
        named = {self._exposed[index]: value for index, value in values.items()}
        return {label: value for label, value in named.items() if label in EXPOSED_LABELS}
