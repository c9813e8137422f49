//! One test binary: two machines talking, hostile peers, round trips, other implementations' bytes, fuzz bodies.

mod arbitrary;
mod attach;
mod conversation;
mod fuzzed;
mod handshake;
mod hostile;
mod house;
mod interop;
mod roundtrip;
mod settle;
mod transfer;
mod vectors;
