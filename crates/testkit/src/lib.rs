//! Real MongoDB clusters, faulty networks, real processes, and waiting for states; and, of these, whole houses that a nemesis
//! breaks while a checker keeps the books.

pub mod checker;
pub mod cluster;
pub mod load;
pub mod nemesis;
pub mod planted;
pub mod process;
pub mod proxy;
pub mod wait;

pub mod mongo;
