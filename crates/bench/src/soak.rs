//! Soaks of the whole cluster: writers write, a [nemesis](testkit::nemesis) breaks things, a [checker](testkit::checker) keeps the books.
//!
//! [`producer`](run) is the walk as far as the topic: everything acknowledged to a writer comes out of the subscription, in order per session, once.
//! [`consumer`] is the whole walk: the read models equal a fold of the source, whoever fell on the way.
//! [`stops`] is the whole walk too, while leaders are told to end: in order, in time, and nothing is republished or applied twice.
//! [`find_failing_seed`] plants a failpoint in the pods and looks for the seed that shows it: a check that cannot fail proves nothing.

mod args;
pub mod consumer;
mod failpoints;
mod late_republisher;
pub mod models;
mod producer;
pub mod stops;
mod subscription_reader;

pub use args::SoakArgs;
pub use failpoints::{consumer_options_for, find_failing_consumer_seed, find_failing_seed, producer_options_for};
pub use pipeline::failpoints::Failpoint;
pub use producer::{ProducerSoakOptions, ProducerSoakResult, run};
pub use subscription_reader::SubscriptionReader;
