//! The client against the real broker, in this process, and through networks that fail.

mod bulk;
mod cut;
mod faults;
mod house;
mod rabbitmq;
mod receiving;
mod sending;
mod sessions;
mod tls;
