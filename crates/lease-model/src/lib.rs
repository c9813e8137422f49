//! The lease protocol as a model, explored exhaustively within stated bounds.
//!
//! Calls the production code for every decision (`lease::decide`, `lease::record::LeaseStatement::apply`): what is checked is what
//! runs. The model adds only the world around it: pods that pause, crash and drift, statements that are lost or arrive late, a
//! store that fails over and forgets what no majority had, server clocks that jump, an operator who deletes the lease, and a
//! checkpoint with its fence.
//!
//! Reading order: [`world`] (what there is), [`action`] and [`enabled`] (what can happen), [`step`] (what it does),
//! [`model`] (what must hold), [`cuts`] (which exhaustive pieces are searched), [`planted`] (mistakes the checker must find).
//! [`canon`] and [`forget`] make states that behave alike one state; `tests/reduction.rs` walks random histories to show that
//! this hides nothing. Liveness is "from every state somebody leads once faults stop" ([`recovery`]), not a fairness argument.

pub mod action;
pub mod bounds;
pub mod canon;
pub mod checkpoint;
pub mod cuts;
pub mod defect;
pub mod edit;
pub mod enabled;
pub mod forget;
pub mod model;
pub mod planted;
pub mod pod;
pub mod recovery;
pub mod settle;
pub mod step;
pub mod store;
pub mod stored;
pub mod tally;
pub mod tick;
pub mod verify;
pub mod world;
