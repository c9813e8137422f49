//! The collections that pods write in the coordination database. They are never captured, and a read model there cannot use their names.

use pipeline::audit::COLLECTION as AUDITS;
use pipeline::checkpoint::{COLLECTION as CHECKPOINTS, PIPELINES};
use pipeline::erasure::ERASURE_KEYS;
use pipeline::generation::GENERATIONS;
use pipeline::session::POD_RUNS;
use pipeline::{publish::rejected, stored::claim_check};

use crate::generations::EARLIER_RECORDS;
use crate::{delivery_limit, operator_log, pauses, pods, step_down_requests, verification};

pub(crate) const COORDINATION_COLLECTIONS: [&str; 17] = [
    lease::mongo::COLLECTION,
    CHECKPOINTS,
    PIPELINES,
    claim_check::COLLECTION,
    rejected::COLLECTION,
    step_down_requests::COLLECTION,
    pods::PODS,
    pods::TERMS,
    POD_RUNS,
    delivery_limit::COLLECTION,
    EARLIER_RECORDS,
    GENERATIONS,
    AUDITS,
    operator_log::COLLECTION,
    pauses::COLLECTION,
    ERASURE_KEYS,
    verification::COLLECTION,
];
