//! FaultSpec injection for tests: faults armed over HTTP, checked by the engine at every fault point. Costs nothing while
//! none is armed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::core::EntityId;
use crate::http::{FaultKind, FaultSchedule, FaultSpec};

/// The armed faults. Shared between threads.
#[derive(Debug, Default)]
pub(crate) struct FaultInjector {
    any: AtomicBool,
    armed: Mutex<Vec<(Option<EntityId>, FaultSchedule)>>,
    injected: AtomicU64,
}

/// A point at which the engine can inject a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultPoint {
    Send,
    Settlement,
    Delivery,
}

/// The fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InjectedFault {
    DropConnection,
    DetachLink,
    Busy,
    LoseAcknowledgement,
    LoseSession,
    Delay(Duration),
}

impl FaultInjector {
    pub(crate) fn arm(&self, entity: Option<EntityId>, fault: FaultSpec) {
        self.armed().push((entity, FaultSchedule::new(fault)));
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn disarm(&self) {
        self.armed().clear();
        self.any.store(false, Ordering::Release);
    }

    /// Counts a fault that was injected elsewhere.
    pub(crate) fn count_injected(&self) {
        self.injected.fetch_add(1, Ordering::Relaxed);
    }

    /// Faults that are still armed, and the number of faults injected.
    pub(crate) fn report(&self) -> (Vec<FaultSpec>, u64) {
        let left = self.armed().iter().map(|(_, schedule)| schedule.fault().clone()).collect();
        (left, self.injected.load(Ordering::Relaxed))
    }

    /// The fault to inject at this point, if any. Call it exactly once per fault point.
    pub(super) fn next_fault(&self, fault_point: FaultPoint, entity: EntityId) -> Option<InjectedFault> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut armed = self.armed();
        let fault = armed.iter_mut().find_map(|(only, schedule)| {
            let fault = fault(&schedule.fault().kind, fault_point)?;
            let here = only.is_none_or(|only| only == entity);
            (here && schedule.should_inject()).then_some(fault)
        });
        armed.retain(|(_, schedule)| !schedule.is_exhausted());
        if armed.is_empty() {
            self.any.store(false, Ordering::Release);
        }
        if fault.is_some() {
            self.count_injected();
        }
        fault
    }

    fn armed(&self) -> std::sync::MutexGuard<'_, Vec<(Option<EntityId>, FaultSchedule)>> {
        self.armed.lock().expect("no thread panics while it holds the lock")
    }
}

/// The effect of a fault kind at a fault point, if any.
fn fault(kind: &FaultKind, fault_point: FaultPoint) -> Option<InjectedFault> {
    use FaultPoint::{Delivery, Send, Settlement};
    match (kind, fault_point) {
        (FaultKind::DropConnection, Send | Settlement) => Some(InjectedFault::DropConnection),
        (FaultKind::DetachLink, Send | Delivery) => Some(InjectedFault::DetachLink),
        (FaultKind::ServerBusy, Send) => Some(InjectedFault::Busy),
        (FaultKind::LoseAcknowledgement, Send) => Some(InjectedFault::LoseAcknowledgement),
        (FaultKind::ExpireSessionLock { .. }, Delivery) => Some(InjectedFault::LoseSession),
        (FaultKind::Delay { ms }, Send | Settlement) => Some(InjectedFault::Delay(Duration::from_millis(*ms))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> FaultSpec {
        serde_json::from_str(json).expect("a fault")
    }

    #[test]
    fn a_fault_is_injected_only_at_its_point_and_entity() {
        let faults = FaultInjector::default();
        let (here, there) = (EntityId(1), EntityId(2));
        assert_eq!(faults.next_fault(FaultPoint::Send, here), None);
        faults.arm(Some(here), fault(r#"{"kind": "server_busy"}"#));
        assert_eq!(faults.next_fault(FaultPoint::Settlement, here), None);
        assert_eq!(faults.next_fault(FaultPoint::Send, there), None);
        assert_eq!(faults.next_fault(FaultPoint::Send, here), Some(InjectedFault::Busy));
        assert_eq!(faults.next_fault(FaultPoint::Send, here), None);
        assert_eq!(faults.report(), (vec![], 1));
    }
}
