//! The broker's decisions: entities, messages, locks, sessions. No I/O, no clock, no randomness of its own.

mod alterations;
mod backlog;
mod description;
mod duplicates;
mod error;
mod expires;
mod id;
mod name;
mod record;
