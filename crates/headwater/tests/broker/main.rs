//! The broker as a process: killed, attacked, made to fail on purpose, and served to a client we did not write.

mod credit;
mod crowd;
mod faults;
mod fe2o3;
mod full;
mod hostile;
mod house;
mod nodes;
mod peer;
mod process;
mod slow;
