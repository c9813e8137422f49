//! The broker process: kills, protocol violations, injected faults, slow peers, and a third-party client.

mod broker_process;
mod byte_exact_messages;
mod connection_limits;
mod credit_model;
mod disk_full;
mod drain;
mod fe2o3_client;
mod fixture;
mod injected_faults;
mod management_nodes;
mod protection;
mod protocol_violations;
mod raw_peer;
mod session_filter;
mod slow_peers;
mod transactions;
