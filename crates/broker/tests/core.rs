//! The rules of the broker core, one behaviour per file, and random histories checked against a model.

#[path = "core/client_steps.rs"]
mod client_steps;
#[path = "core/delivery.rs"]
mod delivery;
#[path = "core/duplicate_detection.rs"]
mod duplicate_detection;
#[path = "core/entities.rs"]
mod entities;
#[path = "core/expiry.rs"]
mod expiry;
#[path = "core/fixture.rs"]
mod fixture;
#[path = "core/forwarding.rs"]
mod forwarding;
#[path = "core/idle_deletion.rs"]
mod idle_deletion;
#[path = "core/message_locks.rs"]
mod message_locks;
#[path = "core/model.rs"]
mod model;
#[path = "core/model_check.rs"]
mod model_check;
#[path = "core/operator_changes.rs"]
mod operator_changes;
#[path = "core/partitions.rs"]
mod partitions;
#[path = "core/peek_and_deferred.rs"]
mod peek_and_deferred;
#[path = "core/random_histories.rs"]
mod random_histories;
#[path = "core/recovery_and_compaction.rs"]
mod recovery_and_compaction;
#[path = "core/rules.rs"]
mod rules;
#[path = "core/scheduled_messages.rs"]
mod scheduled_messages;
#[path = "core/send_rules.rs"]
mod send_rules;
#[path = "core/sessions.rs"]
mod sessions;
#[path = "core/settlement.rs"]
mod settlement;
#[path = "core/transactions.rs"]
mod transactions;
