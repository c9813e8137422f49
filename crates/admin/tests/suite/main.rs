//! A real server, asked over a real socket.

mod house;
mod metrics;
mod paths;
mod wedged;
