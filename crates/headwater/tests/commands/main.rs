//! The commands of an operator: the built binary, a real MongoDB and the real broker.

mod audit;
mod build_info;
mod check;
mod checkpoint;
mod completions;
mod config;
mod delivery_limit;
mod error_pages;
mod exit_codes;
mod explain;
mod fixture;
mod guarantees_page;
mod migration;
mod model_tests;
mod other_cluster;
mod parked;
mod pipes_and_environment;
mod read_model;
mod recipes;
mod replay;
mod sequences;
mod step_down;
mod topology;
mod verify;
