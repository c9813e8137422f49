//! A model of the lease protocol, explored exhaustively within stated bounds.
//!
//! Calls the production code for every decision (`lease::decide`, `lease::record::LeaseStatement::apply`): the checker verifies
//! the code that runs. The model adds only the environment: pods that pause, crash and drift; statements that are lost or
//! arrive late; a store that fails over and loses writes that no majority had; server clocks that jump; an operator who deletes
//! the lease; and a checkpoint with its fence.
//!
//! Reading order: [`state`] (one state), [`action`] and [`enabled`] (the possible steps), [`step`] (what each step does),
//! [`model`] (the invariants), [`scenarios`] (the exhaustive runs), [`defect_scenario`] (defects that the checker must find).
//! [`canonical`] and [`prune_superseded`] merge states that behave the same; `tests/state_reduction.rs` walks random histories to show that
//! this hides nothing. Liveness is "from every state a pod leads once faults stop" ([`recovery`]), not a fairness argument.

pub mod action;
pub mod action_counts;
pub mod bounds;
pub mod canonical;
pub mod checkpoint;
pub mod compact;
pub mod defect_scenario;
pub mod enabled;
pub mod model;
pub mod normalize;
pub mod pod;
pub mod protocol_defect;
pub mod prune_superseded;
pub mod recovery;
pub mod scenarios;
pub mod state;
pub mod state_field_visitor;
pub mod step;
pub mod store;
pub mod time;
pub mod verify;
