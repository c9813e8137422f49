//! The HTTP side as its clients see it, over the real core with a journal in memory.

mod administration;
mod connection;
mod double;
mod hooks;
