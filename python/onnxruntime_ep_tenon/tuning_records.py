"""Files of tuning records (proto/tuning.proto): read, merged, and written whole."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .requirements import require

FORM = 1
_SCHEMA = Path(__file__).with_name("tuning.proto")
_HEADER = f"""# proto-file: proto/tuning.proto
# proto-message: tenon.tuning.TuningFile
form: {FORM}
"""
_SCALARS = {"double": 1, "int64": 3, "int32": 5, "string": 9}  # FieldDescriptorProto.Type
_MESSAGE = 11
_RECORD_LINE = re.compile(r"^record[ \t:]*\{", re.M)


@cache
def message_class(name: str = "TuningFile"):
    """A message of the schema, as the installed library knows it."""
    factory = require("google.protobuf.message_factory", "to read tuning records")
    return factory.GetMessageClass(_schema().FindMessageTypeByName(f"tenon.tuning.{name}"))


@cache
def _schema():
    """The schema's messages; of its language only what the file uses is read."""
    descriptors = require("google.protobuf.descriptor_pb2", "to read tuning records")
    pools = require("google.protobuf.descriptor_pool", "to read tuning records")
    file = descriptors.FileDescriptorProto(
        name="tuning.proto", package="tenon.tuning", syntax="proto3"
    )
    text = re.sub(r"//.*", "", _SCHEMA.read_text(encoding="utf-8"))
    for message, body in re.findall(r"message (\w+) \{(.*?)\}", text, re.S):
        described = file.message_type.add(name=message)
        for repeated, kind, called, number in re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", body):
            one = described.field.add(name=called, number=int(number), label=3 if repeated else 1)
            one.type = _SCALARS.get(kind, _MESSAGE)
            if one.type == _MESSAGE:
                one.type_name = f".tenon.tuning.{kind}"
    pool = pools.DescriptorPool()
    pool.Add(file)
    return pool


@dataclass
class TuningRecords:
    """Records by key, each with its own text, so that fields of a newer Tenon stay."""

    by_key: dict[tuple, tuple[object, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def records(self) -> list:
        return [record for record, _ in self.sorted()]

    def sorted(self) -> list[tuple[object, str]]:
        return [self.by_key[key] for key in sorted(self.by_key)]

    def add(self, record, text: str) -> None:
        """Of two records of one key the newer stays, of the same date the one that is added."""
        known = self.by_key.get(_key(record))
        if known is None or record.date >= known[0].date:
            self.by_key[_key(record)] = (record, text)

    def merge(self, other: TuningRecords) -> None:
        for record, text in other.sorted():
            self.add(record, text)
        self.problems += other.problems

    def text(self) -> str:
        return _HEADER + "".join(text for _, text in self.sorted())


def read_records(path: Path) -> TuningRecords:
    """A record that cannot be read is dropped and told of; the next one begins at its line."""
    read = TuningRecords()
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    starts = [match.start() for match in _RECORD_LINE.finditer(text)]
    cuts = sorted({0, *starts, len(text)})
    for begin, end in zip(cuts, cuts[1:], strict=False):
        line = text.count("\n", 0, begin) + 1
        try:
            form = _read_piece(text[begin:end], read)
        except ValueError as error:
            read.problems.append(f"{path}: the record at line {line} was dropped: {error}")
            continue
        if form not in (0, FORM):
            raise ValueError(f"{path} has form {form}, and this version of Tenon reads form {FORM}")
    return read


def write_records(records: TuningRecords, path: Path) -> None:
    """Whole or not at all: readers see the old file or the new one."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=".tenon-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(records.text())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def rows_text(rows) -> str:
    if not rows.last:
        return f"rows > {rows.first - 1}" if rows.first else "all rows"
    return f"{rows.first} rows" if rows.first == rows.last else f"{rows.first} to {rows.last} rows"


def kernel_text(kernel) -> str:
    knobs = ", ".join(f"{knob.name} {knob.value}" for knob in kernel.knob)
    return f"{kernel.candidate}: {kernel.skeleton}" + (f" ({knobs})" if knobs else "")


def as_dict(record) -> dict:
    """For programs: every field, also those at their defaults."""

    def kernel(one) -> dict:
        return {
            "candidate": one.candidate,
            "skeleton": one.skeleton,
            "knobs": {knob.name: knob.value for knob in one.knob},
        }

    machine, versions = record.machine, record.versions
    return {
        "fusion": record.fusion,
        "fingerprint": record.fingerprint,
        "rows": {"first": record.rows.first, "last": record.rows.last},
        "machine": {
            "arch": machine.arch,
            "sm_count": machine.sm_count,
            "clock_mhz": machine.clock_mhz,
            "name": machine.name,
        },
        "versions": {
            "tenon": versions.tenon,
            "driver": versions.driver,
            "library": versions.library,
        },
        "kernel": kernel(record.kernel),
        "microseconds": record.microseconds,
        "untuned": kernel(record.untuned) if record.HasField("untuned") else None,
        "untuned_microseconds": record.untuned_microseconds,
        "date": record.date,
    }


def record_text(record) -> str:
    text_format = require("google.protobuf.text_format", "to write tuning records")
    return text_format.MessageToString(message_class()(record=[record]))


def _read_piece(text: str, into: TuningRecords) -> int:
    """Adds the records of a piece of a file; its form, 0 where it says none."""
    text_format = require("google.protobuf.text_format", "to read tuning records")
    try:
        parsed = text_format.Parse(text, message_class()(), allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ValueError(str(error)) from None
    for record in parsed.record:
        _check(record)
    for record in parsed.record:
        own = text if len(parsed.record) == 1 and text.startswith("record") else ""
        into.add(record, own.rstrip() + "\n" if own else record_text(record))
    return parsed.form


def _check(record) -> None:
    if not re.fullmatch(r"[0-9a-f]{32}", record.fingerprint):
        raise ValueError("the fingerprint is not 32 hexadecimal digits")
    if record.rows.first < 0 or (record.rows.last and record.rows.last < record.rows.first):
        raise ValueError("the range of rows is empty")
    if not record.machine.arch:
        raise ValueError("the machine has no arch")
    if not record.kernel.candidate:
        raise ValueError("a kernel has no candidate")


def _key(record) -> tuple:
    machine, versions = record.machine, record.versions
    return (
        record.fingerprint,
        record.rows.first,
        record.rows.last or 1 << 62,
        machine.arch,
        machine.sm_count,
        machine.clock_mhz,
        versions.tenon,
        versions.driver,
        versions.library,
    )
