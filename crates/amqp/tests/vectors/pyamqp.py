"""Writes pyamqp.txt: encodings made by the Python SDK's own AMQP encoder, one `kind name hex` per line.

Run once, with azure-servicebus 7.15.0 installed:  python pyamqp.py > pyamqp.txt
What each name means is said a second time, in Rust, in suite/vectors.rs.
"""
import uuid
from decimal import Decimal

from azure.servicebus._pyamqp import performatives as p
from azure.servicebus._pyamqp._encode import encode_frame, encode_payload, encode_value
from azure.servicebus._pyamqp.endpoints import Source, Target
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.message import BatchMessage, Header, Message, Properties
from azure.servicebus._pyamqp.outcomes import Accepted, Modified, Rejected, Released
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes as T

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def line(kind, name, data):
    print(kind, name, bytes(data).hex())


def value(name, kind, content):
    out = bytearray()
    encode_value(out, {TYPE: kind, VALUE: content})
    line("value", name, out)


def typed(kind, content):
    return {TYPE: kind, VALUE: content}


def frame(name, performative, kind=b"\x00\x00\x00"):
    header, body = encode_frame(performative, kind)
    line("frame", name, header + (body or b""))


def message(name, content):
    line("message", name, encode_payload(bytearray(), content))


for name, kind, content in [
    ("null", T.null, None), ("true", T.boolean, True), ("false", T.boolean, False),
    ("ubyte", T.ubyte, 200), ("ushort", T.ushort, 60000), ("byte", T.byte, -5), ("short", T.short, -3000),
    ("uint0", T.uint, 0), ("uint-small", T.uint, 255), ("uint", T.uint, 4000000000),
    ("ulong0", T.ulong, 0), ("ulong-small", T.ulong, 7), ("ulong", T.ulong, 2**63 + 1),
    ("int-small", T.int, -100), ("int", T.int, -100000), ("long-small", T.long, 100), ("long", T.long, -2**40),
    ("float", T.float, 1.5), ("double", T.double, -2.25), ("timestamp", T.timestamp, 1700000000123),
    ("uuid", T.uuid, ID), ("binary", T.binary, b"\x00\x01\xff"), ("binary-large", T.binary, b"x" * 300),
    ("string", T.string, "grüße"), ("string-large", T.string, "y" * 300), ("symbol", T.symbol, b"amqp:symbol"),
    ("decimal128", T.decimal128, Decimal("3.14")),
    ("list", T.list, [typed(T.uint, 1), typed(T.string, "two"), typed(T.null, None)]), ("list0", T.list, []),
    ("list-large", T.list, [typed(T.binary, b"z" * 200), typed(T.binary, b"z" * 200)]),
    ("map", T.map, [(typed(T.string, "key"), typed(T.long, 5)), (typed(T.symbol, b"sym"), typed(T.boolean, True))]),
    ("array-uuid", T.array, [typed(T.uuid, ID), typed(T.uuid, ID)]),
    ("array-long", T.array, [typed(T.long, n) for n in (1, -1, 2**40)]),
    ("array-string", T.array, [typed(T.string, "a"), typed(T.string, "bc")]), ("array-empty", T.array, []),
    ("described", T.described, (typed(T.ulong, 0x137000000C), typed(T.string, "session"))),
]:
    value(name, kind, content)

frame("empty", None)
frame("open", p.OpenFrame("container", "host", 1048576, 65535, 60000, None, None, None, None, {"product": "py"}))
frame("begin", p.BeginFrame(None, 0, 5000, 5000, 4294967295, None, None, None))
frame("attach-session-receiver", p.AttachFrame(
    "link", 3, True, 0, 1,
    Source("amqps://host/queue", 0, b"session-end", 0, False, filters={"com.microsoft:session-filter": "session"}),
    Target("target", 0), None, False, None, 1048576, None, None, {"com.microsoft:timeout": typed(T.uint, 65000)}))
frame("attach-next-session", p.AttachFrame(
    "link", 0, True, 0, 1, Source("queue", filters={"com.microsoft:session-filter": None}), Target(), None, None, None,
    None, None, None, None))
frame("flow", p.FlowFrame(7, 5000, 9, 5000, 2, 4, 100, None, True, False, None))
frame("transfer", p.TransferFrame(1, 300, b"\x01\x02\x03\x04", 0, False, True, None, None, None, None, None, b"payload"))
frame("disposition-accepted", p.DispositionFrame(True, 5, 9, False, Accepted(), False))
frame("disposition-released", p.DispositionFrame(True, 5, None, True, Released(), None))
frame("disposition-modified", p.DispositionFrame(True, 5, 5, True, Modified(True, False, {"why": typed(T.string, "busy")}), None))
frame("disposition-rejected", p.DispositionFrame(True, 5, 5, True, Rejected(AMQPError(
    b"com.microsoft:dead-letter", "text", {b"DeadLetterReason": typed(T.string, "reason")})), None))
frame("detach", p.DetachFrame(4, True, AMQPError(b"amqp:link:detach-forced", "idle", None)))
frame("end", p.EndFrame(None))
frame("close", p.CloseFrame(AMQPError(b"amqp:connection:forced", "bye", None)))
frame("sasl-init", p.SASLInit(b"ANONYMOUS", b"hello", "host"), b"\x01\x00\x00")
frame("sasl-mechanisms", p.SASLMechanism([b"ANONYMOUS", b"MSSBCBS"]), b"\x01\x00\x00")
frame("sasl-outcome", p.SASLOutcome(0, None), b"\x01\x00\x00")

full = Message(
    Header(True, 4, 60000, False, 2), {"x-opt-lock-token": typed(T.uuid, ID)},
    {"x-opt-partition-key": typed(T.string, "session"), "x-opt-scheduled-enqueue-time": typed(T.timestamp, 1700000000000)},
    Properties("message", b"user", "to", "subject", "reply", 77, b"text/plain", b"gzip", 1800000000000, 1700000000000,
               "session", 3, "reply-session"),
    {"text": "value", "number": typed(T.long, 2**40), "flag": True}, [b"one", b"two"], None, None, {"crc": typed(T.long, 9)})
message("full", full)
message("uuid-id", Message(None, None, None, Properties(message_id=ID), None, [b""], None, None, None))
message("binary-id", Message(None, None, None, Properties(message_id=b"\x01\x02"), None, None, None, {"a": 1}, None))
message("sequence", Message(None, None, None, None, None, None, [[1, "two"], ["three"]], None, None))
inner = bytes(encode_payload(bytearray(), Message(properties=Properties(message_id="a", group_id="s"), data=[b"body"])))
message("batch", BatchMessage(
    message_annotations={"x-opt-partition-key": typed(T.string, "s")}, properties=Properties(message_id="a", group_id="s"),
    data=[inner, inner, inner]))
