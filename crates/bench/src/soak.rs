//! Soaks of the whole house: writers write, a [nemesis](testkit::nemesis) breaks things, a [checker](testkit::checker) keeps the books.
//!
//! [`producer`](run) is the walk as far as the topic: everything acknowledged to a writer comes out of the subscription, in order per session, once.
//! [`consumer`] is the whole walk: the read models equal a fold of the source, whoever fell on the way.
//! [`stops`] is the whole walk too, while leaders are told to end: in order, in time, and nothing is said or applied twice.
//! [`find_defect`] plants a defect in the pods and looks for the seed that shows it: a check that cannot fail proves nothing.

mod arguments;
pub mod consumer;
mod defects;
mod drain;
mod echo;
pub mod models;
mod producer;
pub mod stops;

pub use arguments::Arguments;
pub use defects::{find_consumer_defect, find_defect, hunting, hunting_consumers};
pub use drain::Drain;
pub use pipeline::failpoints::Failpoint;
pub use producer::{Options, Outcome, run};
