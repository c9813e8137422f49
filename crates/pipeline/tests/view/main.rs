//! Events to read models on a real mongod. The expectation is a fold in plain Rust that shares no code with the pipeline.

mod builds;
mod exactly_once;
mod expected_fold;
mod failpoints;
mod fixture;
mod fold;
mod gap_healing;
mod generations;
mod hostile_fold;
mod hostile_values;
mod memory_fold;
mod model_validation;
mod orphaned_transactions;
mod parked_aggregates;
mod paused_models;
mod primary_failover;
mod projection_example;
mod read_models;
mod unknown_commits;
mod upcast;
mod verify;
