//! One test binary: two machines talking, hostile peers, round trips, other implementations' bytes, fuzz bodies.

mod attach;
mod fe2o3_interop;
mod fixture;
mod generators;
mod handshake;
mod mutated_bytes;
mod protocol_violations;
mod python_sdk_vectors;
mod random_conversations;
mod roundtrip;
mod settlement;
mod transfer;
