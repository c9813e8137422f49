//! Tests of the AMQP crate: conversations, protocol violations, round trips, interop, mutated bytes.

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
