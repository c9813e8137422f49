//! The operator's commands as a person meets them: the built program, a real MongoDB, the real broker.

mod check;
mod house;
mod parked;
mod recipes;
mod step_down;
mod topology;
