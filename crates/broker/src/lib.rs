//! A durable broker that speaks the part of Service Bus that Headwater walks on.

pub mod atom;
pub mod core;
pub mod http;
pub mod journal;
pub mod store;
