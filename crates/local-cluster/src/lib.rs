//! The broker and pods as processes on this machine: programs, configuration files, readiness, signals.
//!
//! `headwater dev`, the test cluster and the benches use it; MongoDB itself comes from the `mongod` crate. It depends on no part of the
//! pipeline or the broker: it knows them only by their command lines and configuration files.

mod access;
mod broker;
mod endpoint;
mod entities;
mod http;
mod managed_process;
mod pod_config;
pub mod process;
pub mod usage;
pub mod wait;

pub use access::{BrokerAccess, BrokerCertificate};
pub use broker::{BrokerOptions, BrokerProcess, Error};
pub use endpoint::{BrokerEndpoint, BrokerStream, connection_string};
pub use entities::{SubscriptionEntity, TopicEntity, emulator_config};
pub use http::send_request;
pub use managed_process::{ManagedProcess, ProcessState, UnexpectedExit};
pub use pod_config::{LeaseTimings, PodConfig, pod_program};
