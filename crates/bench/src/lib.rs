//! Questions asked with a clock: benches and soaks, and the contest they share with the lease's tests.

pub mod amqp_client;
pub mod broker_kills;
pub mod broker_load;
pub mod broker_process;
pub mod broker_scaling;
pub mod contest;
pub mod latency;
pub mod pod_process;
pub mod race;
pub mod raw_transactions;
pub mod soak;
