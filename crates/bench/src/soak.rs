//! Soaks of a whole cluster: writers insert events, a [nemesis](testkit::nemesis) injects faults, a [checker](testkit::checker) compares.
//!
//! `producer_soak`(run) covers the pipeline up to the topic: the subscription holds every acknowledged write once, in order per session.
//! [`consumer_soak`] covers the whole pipeline: the read models equal a fold of the source despite all faults.
//! [`stop_soak`] covers the whole pipeline while leaders get SIGTERM: they stop in time, and nothing is published or applied twice.
//! [`rollout_soak`] covers restarts of all pods, one after the other. [`deploy_soak`] covers read models that change under load. [`audit_soak`] covers messages that Service Bus acknowledged and lost: after the audit the read models equal a fold of the source.
//! [`find_failing_seed`] plants a failpoint in the pods and looks for the seed that shows it: a check that cannot fail proves nothing.

mod args;
pub mod audit_soak;
pub mod consumer_soak;
mod defect_detection;
pub mod deploy_soak;
mod late_republisher;
mod producer_soak;
pub mod rollout_soak;
pub mod soak_read_models;
pub mod stop_soak;
mod subscription_reader;

pub use args::{RoundSummary, SoakArgs};
pub use defect_detection::{consumer_options_for, find_failing_consumer_seed, find_failing_seed, producer_options_for};
pub use pipeline::failpoints::Failpoint;
pub use producer_soak::{ProducerSoakOptions, ProducerSoakResult, run};
pub use subscription_reader::SubscriptionReader;
