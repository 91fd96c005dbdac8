"""Storage and processes: atomic files, checkpoints, records, provenance, collective operations."""

from samplewise.storage import distributed
from samplewise.storage.checkpoint import MODEL_FILE, Checkpoints, load_state, save_state
from samplewise.storage.disk import (
    PARTIAL,
    alone,
    atomic,
    clear_partial,
    ensure_writable,
    lock,
    open_regular,
    write_json,
    write_tensors,
    write_text,
)
from samplewise.storage.origins import provenance, versions
from samplewise.storage.records import decoding, from_plain, read_json, typed_value

# fmt: off
__all__ = [
    "MODEL_FILE", "PARTIAL", "Checkpoints", "alone", "atomic", "clear_partial", "decoding", "distributed",
    "ensure_writable", "from_plain", "load_state", "lock", "open_regular", "provenance", "read_json", "save_state",
    "typed_value", "versions", "write_json", "write_tensors", "write_text",
]
# fmt: on
