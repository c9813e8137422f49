//! What pods write for themselves in the database they agree in: never captured, and no name for a read model there.

use pipeline::checkpoint::{COLLECTION as CHECKPOINTS, PIPELINES};
use pipeline::publish::{claim_check, rejected};

use crate::{pods, step_down};

pub(crate) const COORDINATION_COLLECTIONS: [&str; 8] = [
    lease::mongo::COLLECTION,
    CHECKPOINTS,
    PIPELINES,
    claim_check::COLLECTION,
    rejected::COLLECTION,
    step_down::COLLECTION,
    pods::PODS,
    pods::TERMS,
];
