//! The path of one event: capture, checkpoint, publish, session, view.
//!
//! Terms: an *event* is one change in the source; a *message* is that event on Service Bus. A *term* is one leadership; a leader whose term is over
//! is *deposed*. The *checkpoint* is the token up to which Service Bus has acknowledged every event. A *position* is an epoch and a resume token; it
//! orders all events.

pub mod audit;
pub mod capture;
pub mod checkpoint;
pub mod consumer;
pub mod counters;
pub mod envelope;
pub mod erasure;
mod error_chain;
pub mod error_policy;
pub mod event;
pub mod failpoints;
pub mod generation;
mod input_limits;
pub mod pause;
pub mod producer;
pub mod publish;
pub mod retry;
pub mod sequence;
pub mod session;
pub mod signing;
pub mod source;
pub mod source_walk;
pub mod stored;
pub mod trace;
pub mod verify;
pub mod view;
