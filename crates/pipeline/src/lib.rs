//! The walk of one event: capture, checkpoint, publish, session, view.
//!
//! Words, as everywhere in this house: an *event* is one change in the source, a *message* that event on the bus. A *term*
//! is one leadership; a *deposed* leader is one whose term is over. The *checkpoint* is the token up to which the unbroken
//! prefix of events is acknowledged by the bus. A *position* says where an event stands: epoch, then resume token.

pub mod capture;
pub mod checkpoint;
pub mod consumer;
pub mod envelope;
mod error_chain;
pub mod event;
pub mod failpoints;
pub mod producer;
pub mod publish;
pub mod retry;
pub mod session;
pub mod source;
pub mod trace;
pub mod view;
