//! The audit: real MongoDB and broker, a real consumer, and events that Service Bus never delivers.

mod fixture;
mod healing;
mod resumption;
mod scope;
mod walk;
