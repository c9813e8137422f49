//! Questions asked with a clock: benches and soaks, and the contest they share with the lease's tests.

pub mod broker_flat;
pub mod broker_load;
pub mod broker_process;
pub mod contest;
pub mod figures;
pub mod kills;
pub mod peer;
pub mod pod_process;
pub mod race;
pub mod raw_transactions;
pub mod soak;
