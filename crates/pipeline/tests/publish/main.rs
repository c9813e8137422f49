//! The publisher with a real broker and a real mongod.

mod ending;
mod house;
mod kept;
mod messages;
mod order;
mod pausing;
mod refusing;
