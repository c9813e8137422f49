//! Questions asked with a clock: benches and soaks, and the election test they share with the lease.

pub mod amqp_client;
pub mod broker_kills;
pub mod broker_load;
pub mod broker_process;
pub mod broker_scaling;
pub mod election;
pub mod latency;
pub mod lease_cold_start;
pub mod pod_process;
pub mod raw_transactions;
pub mod soak;
