//! The admin server over a real socket.

mod fixture;
mod hostile_peers;
mod http_routes;
mod https;
mod metrics;
mod operator_actions;
mod pipelines;
mod stalled_loops;
