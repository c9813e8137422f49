//! The broker as a process: killed, attacked, made to fail on purpose, and served to a client we did not write.

mod broker_process;
mod connection_limits;
mod disk_full;
mod drain;
mod fe2o3_client;
mod fixture;
mod injected_faults;
mod management_nodes;
mod protocol_violations;
mod raw_peer;
mod slow_peers;
