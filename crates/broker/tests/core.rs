//! The core's rules, each as a few sentences, and random histories against a model.

#[path = "core/delivery.rs"]
mod delivery;
#[path = "core/duplicates.rs"]
mod duplicates;
#[path = "core/entities.rs"]
mod entities;
#[path = "core/expiry.rs"]
mod expiry;
#[path = "core/history.rs"]
mod history;
#[path = "core/locks.rs"]
mod locks;
#[path = "core/management.rs"]
mod management;
#[path = "core/model.rs"]
mod model;
#[path = "core/pair.rs"]
mod pair;
#[path = "core/partitions.rs"]
mod partitions;
#[path = "core/recovery.rs"]
mod recovery;
#[path = "core/rig.rs"]
mod rig;
#[path = "core/scheduling.rs"]
mod scheduling;
#[path = "core/sending.rs"]
mod sending;
#[path = "core/sessions.rs"]
mod sessions;
#[path = "core/settlement.rs"]
mod settlement;
#[path = "core/steps.rs"]
mod steps;
