//! The admin server over a real socket.

mod fixture;
mod http_routes;
mod metrics;
mod operator_actions;
mod stalled_loops;
