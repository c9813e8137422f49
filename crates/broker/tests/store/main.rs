//! The store on disks that lose, tear or refuse writes, or report false success.
//!
//! `simulated_disk` is the disk, `mini_core` a small core that is easy to check, `core_on_store` the real core on the same disk.

mod core_on_store;
mod disk_faults;
mod disk_space;
mod mini_core;
mod missing_syncs;
mod power_loss;
mod real_files;
mod simulated_disk;
