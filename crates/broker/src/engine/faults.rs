//! Faults that tests arm over HTTP; the engine asks at every occasion. Free while none is armed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::core::EntityId;
use crate::http::{Fault, FaultKind, Schedule};

/// Armed from any thread.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    any: AtomicBool,
    armed: Mutex<Vec<(Option<EntityId>, Schedule)>>,
    struck: AtomicU64,
}

/// Something that a fault could strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    Send,
    Settlement,
    Delivery,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strike {
    DropConnection,
    DetachLink,
    Busy,
    LoseAcknowledgement,
    LoseSession,
    Delay(Duration),
}

impl Faults {
    pub(crate) fn arm(&self, entity: Option<EntityId>, fault: Fault) {
        self.armed().push((entity, Schedule::new(fault)));
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn disarm(&self) {
        self.armed().clear();
        self.any.store(false, Ordering::Release);
    }

    /// One has struck that was not asked about here.
    pub(crate) fn count(&self) {
        self.struck.fetch_add(1, Ordering::Relaxed);
    }

    /// Faults not yet spent, and how often any has struck.
    pub(crate) fn report(&self) -> (Vec<Fault>, u64) {
        let left = self.armed().iter().map(|(_, schedule)| schedule.fault().clone()).collect();
        (left, self.struck.load(Ordering::Relaxed))
    }

    /// To be asked once at every occasion.
    pub(super) fn strikes(&self, occasion: Occasion, entity: EntityId) -> Option<Strike> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut armed = self.armed();
        let strike = armed.iter_mut().find_map(|(only, schedule)| {
            let strike = strike(&schedule.fault().kind, occasion)?;
            let here = only.is_none_or(|only| only == entity);
            (here && schedule.strikes()).then_some(strike)
        });
        armed.retain(|(_, schedule)| !schedule.spent());
        if armed.is_empty() {
            self.any.store(false, Ordering::Release);
        }
        if strike.is_some() {
            self.count();
        }
        strike
    }

    fn armed(&self) -> std::sync::MutexGuard<'_, Vec<(Option<EntityId>, Schedule)>> {
        self.armed.lock().expect("nobody panics while arming")
    }
}

/// What a fault does at an occasion, if anything.
fn strike(kind: &FaultKind, occasion: Occasion) -> Option<Strike> {
    use Occasion::{Delivery, Send, Settlement};
    match (kind, occasion) {
        (FaultKind::DropConnection, Send | Settlement) => Some(Strike::DropConnection),
        (FaultKind::DetachLink, Send | Delivery) => Some(Strike::DetachLink),
        (FaultKind::ServerBusy, Send) => Some(Strike::Busy),
        (FaultKind::LoseAcknowledgement, Send) => Some(Strike::LoseAcknowledgement),
        (FaultKind::ExpireSessionLock { .. }, Delivery) => Some(Strike::LoseSession),
        (FaultKind::Delay { ms }, Send | Settlement) => Some(Strike::Delay(Duration::from_millis(*ms))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> Fault {
        serde_json::from_str(json).expect("a fault")
    }

    #[test]
    fn a_fault_strikes_its_own_kind_of_occasion_at_its_own_entity() {
        let faults = Faults::default();
        let (here, there) = (EntityId(1), EntityId(2));
        assert_eq!(faults.strikes(Occasion::Send, here), None);
        faults.arm(Some(here), fault(r#"{"kind": "server_busy"}"#));
        assert_eq!(faults.strikes(Occasion::Settlement, here), None);
        assert_eq!(faults.strikes(Occasion::Send, there), None);
        assert_eq!(faults.strikes(Occasion::Send, here), Some(Strike::Busy));
        assert_eq!(faults.strikes(Occasion::Send, here), None);
        assert_eq!(faults.report(), (vec![], 1));
    }
}
