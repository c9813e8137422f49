//! Sessions and the consumer with a real broker and a real mongod.

mod attempt_marks;
mod delivery;
mod failpoints;
mod fixture;
mod lock_loss;
mod poison_events;
mod session_release;
mod shutdown;
mod signatures;
mod special_messages;
