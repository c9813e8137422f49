//! The disturbances of a harsh service, one after the other at random times: a node move, a storm of internal errors, a failover.
//!
//! Armed through the same fault injection that tests use (`/$test/faults`).

use std::sync::Arc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{Disturbances, ProfileState};
use crate::http::{FaultKind, FaultOccasion, FaultSpec};

const INTERNAL_ERROR: &str = "amqp:internal-error";
const INTERNAL_ERROR_TEXT: &str = "The service was unable to process the request; please retry the operation.";
const NODE_MOVE_TEXT: &str = "The link is force detached. Details: InnerMessageReceiver was closed.";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    NodeMove,
    InternalErrors,
    Failover,
}

impl Disturbance {
    fn choose(dice: u32) -> Self {
        match dice % 6 {
            0..3 => Self::NodeMove,
            3..5 => Self::InternalErrors,
            _ => Self::Failover,
        }
    }

    /// The faults to arm. A failover has none.
    fn faults(self, seed: u64) -> Vec<FaultSpec> {
        let fault = |kind, at, times, one_in| FaultSpec { at, times, one_in, seed, ..FaultSpec::new(kind) };
        let text = |condition: &str, description: &str| (Some(condition.to_owned()), Some(description.to_owned()));
        match self {
            // The locks of sessions and the links of receivers do not survive a move of the entity to another node.
            Self::NodeMove => {
                let (condition, description) = text("amqp:link:detach-forced", NODE_MOVE_TEXT);
                vec![
                    fault(FaultKind::ExpireSessionLock { session: None }, Some(FaultOccasion::Delivery), 4, 2),
                    fault(FaultKind::DetachLink { condition, description }, Some(FaultOccasion::Delivery), 2, 2),
                ]
            }
            Self::InternalErrors => {
                let (condition, description) = text(INTERNAL_ERROR, INTERNAL_ERROR_TEXT);
                let link = FaultKind::DetachLink { condition: condition.clone(), description: description.clone() };
                let connection = FaultKind::CloseConnection { condition, description };
                vec![
                    fault(link.clone(), Some(FaultOccasion::Send), 4, 3),
                    fault(link, Some(FaultOccasion::Settlement), 2, 3),
                    fault(connection, Some(FaultOccasion::Send), 1, 5),
                ]
            }
            Self::Failover => vec![],
        }
    }
}

/// Disturbs until `shutdown`. `arm` arms one fault.
pub(crate) async fn run_disturbances<F: Future<Output = ()>>(
    state: Arc<ProfileState>,
    arm: impl Fn(FaultSpec) -> F,
    shutdown: CancellationToken,
) {
    let Some(Disturbances { seed, interval, failover }) = state.profile.disturbances.clone() else { return };
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        let pause = interval.mul_f64(0.5 + random.random::<f64>());
        // cancel-safe: nothing is in progress
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.cancelled() => return,
        }
        let disturbance = Disturbance::choose(random.random());
        info!(?disturbance, "profile disturbs the clients");
        for fault in disturbance.faults(random.random()) {
            arm(fault).await;
        }
        if disturbance == Disturbance::Failover {
            state.failover.begin(failover, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disturbance_occurs() {
        let chosen: Vec<_> = (0..6).map(Disturbance::choose).collect();
        for disturbance in [Disturbance::NodeMove, Disturbance::InternalErrors, Disturbance::Failover] {
            assert!(chosen.contains(&disturbance), "{disturbance:?}");
        }
        assert!(Disturbance::Failover.faults(1).is_empty());
        assert_eq!(Disturbance::NodeMove.faults(1).len(), 2);
    }
}
