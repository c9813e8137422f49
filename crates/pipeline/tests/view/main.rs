//! Events to read models on a real mongod. What is expected is a fold in plain Rust that shares no code with the pipeline.

mod commits;
mod defects;
mod example;
mod failover;
mod fold;
mod healing;
mod house;
mod models;
mod once;
mod orphans;
mod parking;
mod validation;
