//! Capture on real mongods: what is written is handed on, once, in order, whatever happens to the source.

mod check;
mod documents;
mod dropped;
mod failover;
mod history;
mod house;
mod scan;
mod sharded;
mod sharded_documents;
mod split;
mod start;
mod stream;
mod sweep;
