//! Soaks of a whole cluster: writers insert events, a [nemesis](testkit::nemesis) injects faults, a [checker](testkit::checker) compares.
//!
//! `producer_soak`(run) covers the pipeline up to the topic: the subscription holds every acknowledged write once, in order per session.
//! [`consumer_soak`] covers the whole pipeline: the read models equal a fold of the source despite all faults.
//! [`stop_soak`] covers the whole pipeline while leaders get SIGTERM: they stop in time, and nothing is published or applied twice.
//! [`rollout_soak`] covers restarts of all pods, one after the other. [`deploy_soak`] covers read models that change under load. [`audit_soak`] covers messages that Service Bus acknowledged and lost: after the audit the read models equal a fold of the source.
//! [`chaos`] covers everything at once: all faults, rollouts, rebuilds and operators, with a timeline and a plan that shrinks.
//! [`pipelines_soak`] covers many pipelines in the same pods, two of them bad.
//! [`rebuild_soak`] covers a read model that is built anew under load. [`verify_soak`] covers `read-model verify`: it finds nothing in read models that are right.
//! [`detect_in_producer`], [`detect_in_consumer`], [`detect_in_chaos`] and [`detect_in_broker`] plant a failpoint in the pods or the broker and look for the seed that shows its violation: a check that cannot fail proves nothing.

mod args;
pub mod audit_soak;
pub mod chaos;
pub mod consumer_soak;
mod defect_detection;
pub mod deploy_soak;
mod drain;
mod late_republisher;
mod pause_watch;
pub mod pipelines_soak;
mod producer_soak;
pub mod rebuild_soak;
pub mod rollout_soak;
pub mod soak_read_models;
mod soak_violation;
pub mod stop_soak;
mod subscription_reader;
pub mod verify_soak;

pub use args::{RoundSummary, SoakArgs};
pub use defect_detection::{
    NotDetected, detect_in_broker, detect_in_chaos, detect_in_consumer, detect_in_producer, expected_broker_violation,
    expected_violation,
};
pub use drain::RunEnd;
pub use pipeline::failpoints::Failpoint;
pub use producer_soak::{ProducerSoakOptions, ProducerSoakResult, run};
pub use soak_violation::SoakViolation;
pub use subscription_reader::{ReaderErrors, SubscriptionReader};
