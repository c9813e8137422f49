//! AMQP 1.0 without I/O: codec, and connection, session and link state machines for both sides.

pub mod codec;
pub mod condition;
pub mod frame;
pub mod message;
pub mod performative;
pub mod sasl;
mod symbol;
pub mod value;

pub use message::Message;
pub use performative::{Attach, DeliveryState, Error, Role, Source, Target};
pub use symbol::Symbol;
pub use value::{Array, Described, ElementType, Map, Value};
