//! The broker's decisions: entities, messages, locks, sessions. No I/O, no clock, no randomness of its own.
