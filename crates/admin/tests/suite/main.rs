//! A real server, asked over a real socket.

mod house;
mod metrics;
mod operator;
mod paths;
mod wedged;
