//! Keeps the read models of this pod at the generation that the store holds, and, while the pod leads, changes it.
//!
//! All pods apply the stored set; the configuration of a pod is a proposal. Once all live pods have proposed the same for a while, the leader builds what is
//! new and switches it on: see [`pipeline::generation`]. A switch that its leader does not finish is finished by any pod.

mod change;
mod proposal;
mod service;

pub(crate) use change::unbuildable_reason;
pub(crate) use proposal::{EARLIER_RECORDS, ModelProposal};
pub(crate) use service::GenerationService;
