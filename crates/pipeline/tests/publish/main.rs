//! The publisher with a real broker and a real mongod.

mod drain_and_stop;
mod fixture;
mod message_content;
mod ordering;
mod oversize_and_rejected;
mod pauses;
mod refused_messages;
