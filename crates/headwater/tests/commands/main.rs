//! The operator's commands as a person meets them: the built program, a real MongoDB, the real broker.

mod check;
mod checkpoint;
mod completions;
mod config;
mod errors;
mod exit_codes;
mod house;
mod parked;
mod recipes;
mod shell;
mod step_down;
mod topology;
