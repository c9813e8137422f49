//! Questions asked with a clock: benches and soaks, and the contest they share with the lease's tests.

pub mod contest;
pub mod race;
