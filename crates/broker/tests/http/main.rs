//! The HTTP API over the real core, with a journal in memory.

mod administration;
mod fake_backend;
mod http_connection;
mod test_hooks;
