//! One test binary: two machines talking, hostile peers, round trips, other implementations' bytes, fuzz bodies.

mod attach;
mod conversation;
mod handshake;
mod hostile;
mod house;
mod settle;
mod transfer;
