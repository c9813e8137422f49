//! The store against disks that lose, tear, refuse and lie.

mod crash;
mod defects;
mod faults;
mod mini;
mod room;
mod sim;
mod threads;
mod whole;
