//! Sessions and the consumer with a real broker and a real mongod.

mod defects;
mod drains;
mod fairness;
mod flows;
mod house;
mod locks;
mod odd;
mod poison;
