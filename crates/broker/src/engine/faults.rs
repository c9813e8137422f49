//! Fault injection for tests: faults armed over HTTP, checked by the engine at every occasion. Costs nothing while
//! none is armed.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use amqp::Symbol;
use amqp::condition::{CONNECTION_FORCED, DETACH_FORCED};

use super::EngineRequest;
use crate::core::{ConnectionId, EntityId};
use crate::http::{FaultKind, FaultOccasion, FaultSchedule, FaultSpec, FaultTiming};

/// The armed faults. Shared between threads.
#[derive(Debug, Default)]
pub(crate) struct FaultInjector {
    any: AtomicBool,
    armed: Mutex<Vec<(Option<EntityId>, FaultSchedule)>>,
    injected: AtomicU64,
}

/// The fault to inject.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum InjectedFault {
    DropConnection,
    /// Detach the link, or close the connection, with an error.
    End(EndScope, Box<amqp::Error>, FaultTiming),
    Busy,
    LoseAcknowledgement,
    LoseMessages,
    LoseSession,
    Delay(Duration),
}

/// What an injected error ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndScope {
    Link,
    Connection,
}

/// Links and connections that a fault has ended. A real service ignores frames that arrive after its detach or close;
/// here they may already be requests in the engine's inbox.
#[derive(Debug, Default)]
pub(super) struct EndedByFault(HashSet<(ConnectionId, Option<amqp::LinkId>)>);

impl EndedByFault {
    pub(super) fn add(&mut self, connection: ConnectionId, link: Option<amqp::LinkId>) {
        self.0.insert((connection, link));
    }

    pub(super) fn remove_connection(&mut self, id: ConnectionId) {
        if !self.0.is_empty() {
            self.0.retain(|(connection, _)| *connection != id);
        }
    }

    /// True if the request came after its link or connection had ended. Detaches and accounting still count.
    pub(super) fn discards(&self, from: ConnectionId, request: &EngineRequest) -> bool {
        if self.0.is_empty() || !matches!(request, EngineRequest::Send { .. } | EngineRequest::Settle { .. }) {
            return false;
        }
        self.0.contains(&(from, None)) || self.0.contains(&(from, request.link()))
    }
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

    /// The fault to inject at this occasion, if any. Call it exactly once per occasion.
    pub(super) fn next_fault(&self, occasion: FaultOccasion, entity: EntityId) -> Option<InjectedFault> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut armed = self.armed();
        let fault = armed.iter_mut().find_map(|(only, schedule)| {
            let fault = fault(schedule.fault(), occasion)?;
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

/// The effect of a fault at an occasion, if any.
fn fault(spec: &FaultSpec, occasion: FaultOccasion) -> Option<InjectedFault> {
    use FaultOccasion::{Delivery, Send, Settlement};
    if spec.at.is_some_and(|at| at != occasion) {
        return None;
    }
    let end = |scope, error| {
        let usual = if occasion == Delivery { FaultTiming::After } else { FaultTiming::Before };
        Some(InjectedFault::End(scope, error, spec.when.unwrap_or(usual)))
    };
    match (&spec.kind, occasion) {
        (FaultKind::DropConnection, Send | Settlement) => Some(InjectedFault::DropConnection),
        (FaultKind::DetachLink { .. }, Settlement) if spec.at.is_none() => None,
        (FaultKind::DetachLink { condition, description }, _) => {
            let usual = (DETACH_FORCED, "link detached by the broker");
            end(EndScope::Link, error(usual, condition.as_ref(), description.as_ref()))
        }
        (FaultKind::CloseConnection { condition, description }, _) => {
            let usual = (CONNECTION_FORCED, "connection closed by the broker");
            end(EndScope::Connection, error(usual, condition.as_ref(), description.as_ref()))
        }
        (FaultKind::ServerBusy, Send) => Some(InjectedFault::Busy),
        (FaultKind::LoseAcknowledgement, Send) => Some(InjectedFault::LoseAcknowledgement),
        (FaultKind::LoseMessages, Send) => Some(InjectedFault::LoseMessages),
        (FaultKind::ExpireSessionLock { .. }, Delivery) => Some(InjectedFault::LoseSession),
        (FaultKind::Delay { ms }, Send | Settlement) => Some(InjectedFault::Delay(Duration::from_millis(*ms))),
        _ => None,
    }
}

/// The error of a fault; `usual` is its condition and description unless the fault names others.
fn error(usual: (Symbol, &str), condition: Option<&String>, description: Option<&String>) -> Box<amqp::Error> {
    let condition = condition.cloned().map_or(usual.0, Symbol::from);
    Box::new(amqp::Error::new(condition, description.map_or(usual.1, String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> FaultSpec {
        serde_json::from_str(json).expect("a fault")
    }

    #[test]
    fn a_fault_is_injected_only_at_its_occasion_and_entity() {
        let faults = FaultInjector::default();
        let (here, there) = (EntityId(1), EntityId(2));
        assert_eq!(faults.next_fault(FaultOccasion::Send, here), None);
        faults.arm(Some(here), fault(r#"{"kind": "server_busy"}"#));
        assert_eq!(faults.next_fault(FaultOccasion::Settlement, here), None);
        assert_eq!(faults.next_fault(FaultOccasion::Send, there), None);
        assert_eq!(faults.next_fault(FaultOccasion::Send, here), Some(InjectedFault::Busy));
        assert_eq!(faults.next_fault(FaultOccasion::Send, here), None);
        assert_eq!(faults.report(), (vec![], 1));
    }
    #[test]
    fn a_fault_can_name_its_occasion_error_and_timing() {
        let faults = FaultInjector::default();
        let here = EntityId(1);
        faults.arm(None, fault(r#"{"kind": "detach_link", "at": "settlement", "condition": "a:b", "when": "after"}"#));
        assert_eq!(faults.next_fault(FaultOccasion::Send, here), None);
        assert_eq!(faults.next_fault(FaultOccasion::Delivery, here), None);
        let error = Box::new(amqp::Error::new("a:b".into(), "link detached by the broker"));
        let expected = InjectedFault::End(EndScope::Link, error, FaultTiming::After);
        assert_eq!(faults.next_fault(FaultOccasion::Settlement, here), Some(expected));
    }

    #[test]
    fn a_detach_without_an_occasion_spares_settlements() {
        let faults = FaultInjector::default();
        faults.arm(None, fault(r#"{"kind": "detach_link"}"#));
        assert_eq!(faults.next_fault(FaultOccasion::Settlement, EntityId(1)), None);
        assert!(faults.next_fault(FaultOccasion::Send, EntityId(1)).is_some());
    }
}
