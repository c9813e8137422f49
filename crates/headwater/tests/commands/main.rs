//! The operator's commands as a person meets them: the built program, a real MongoDB, the real broker.

mod check;
mod completions;
mod exit_codes;
mod house;
mod parked;
mod recipes;
mod step_down;
mod topology;
