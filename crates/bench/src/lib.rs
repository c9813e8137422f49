//! Benches and soaks of the pipeline and the broker.

pub mod amqp_client;
pub mod broker_features;
pub mod broker_kills;
pub mod broker_load;
pub mod broker_scaling;
pub mod broker_security;
pub mod end_to_end;
pub mod latency;
pub mod measurements;
pub mod peers;
pub mod processes;
pub mod raw_transactions;
pub mod soak;
pub mod source_events;
