//! Capture on real mongods: every write is captured once and in order, whatever happens to the source.

mod documents_source;
mod dropped_collection;
mod event_stream;
mod fixture;
mod history_lost;
mod primary_failover;
mod sharded_documents;
mod sharded_events;
mod snapshot_scan;
mod snapshot_sweep;
mod source_checks;
mod split_events;
mod start_position;
