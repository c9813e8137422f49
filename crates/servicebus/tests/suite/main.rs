//! The client against the real broker, in process and through failing networks.

mod cut_at_any_byte;
mod entra;
mod fixture;
mod network_faults;
mod pipelined_sender;
mod proxies;
mod rabbitmq_interop;
mod receiver;
mod sender;
mod service_profiles;
mod session_receiver;
mod tls;
mod token_expiry;
mod websocket;
