//! The state of producer and consumer as a short text, and the problem in it, if any.

use admin::status::PodProblem;
use pipeline::producer::HaltReason;
use pipeline::publish::{self, PauseReason};
use pipeline::session::SessionProblem;
use pipeline::{consumer, producer};

/// The state of one service for display, and its problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceState {
    pub(super) state: String,
    pub(super) problem: Option<PodProblem>,
}

impl ServiceState {
    fn healthy(state: &str) -> Self {
        Self { state: state.to_owned(), problem: None }
    }

    fn with_problem(service: &str, state: String, text: String, page: Option<&str>) -> Self {
        let problem = PodProblem { service: service.to_owned(), text, page: page.map(str::to_owned) };
        Self { state, problem: Some(problem) }
    }
}

pub(super) fn producer(state: &producer::ProducerState, publishing: publish::PublishState) -> ServiceState {
    match state {
        producer::ProducerState::Standby => ServiceState::healthy("standby"),
        producer::ProducerState::Starting { .. } => ServiceState::healthy("starting"),
        producer::ProducerState::Stopping { .. } => ServiceState::healthy("stopping"),
        // The operator asked for it: the pipeline reports the pause.
        producer::ProducerState::Paused { .. } => ServiceState::healthy("paused by an operator"),
        producer::ProducerState::Halted { why, .. } => {
            let text = match why {
                HaltReason::HistoryLost => "the oplog no longer holds the checkpoint position",
                HaltReason::Source(reason) | HaltReason::Checkpoint(reason) => reason,
            };
            let text = format!("operator action required: {text}");
            ServiceState::with_problem("producer", "halted".to_owned(), text, Some(why.page()))
        }
        producer::ProducerState::Running { .. } => match publishing {
            publish::PublishState::Idle | publish::PublishState::Opening => ServiceState::healthy("opening"),
            publish::PublishState::Publishing => ServiceState::healthy("publishing"),
            publish::PublishState::Draining => ServiceState::healthy("draining"),
            // Service Bus throttles now and then, which is not a problem.
            publish::PublishState::Paused(PauseReason::Busy) => ServiceState::healthy("paused: busy"),
            publish::PublishState::Paused(why) => {
                let (label, text) = describe_pause(why);
                ServiceState::with_problem("producer", format!("paused: {label}"), text.to_owned(), None)
            }
        },
    }
}

fn describe_pause(why: PauseReason) -> (&'static str, &'static str) {
    match why {
        PauseReason::SubscriptionMissing => {
            ("no subscription", "the subscription does not exist; run `headwater topology apply`")
        }
        PauseReason::TopicMissing => ("no topic", "the topic does not exist; run `headwater topology apply`"),
        PauseReason::Unauthorized => (
            "unauthorized",
            "Service Bus refuses the key or token; check `service_bus.connection_string`: the key, its right Send, the expiry of a token; with Entra ID, the role Azure Service Bus Data Sender",
        ),
        PauseReason::Disabled => ("disabled", "the topic or the subscription is disabled"),
        PauseReason::Busy => ("busy", "Service Bus throttles requests"),
        PauseReason::Unreachable => ("unreachable", "Service Bus cannot be reached"),
        PauseReason::SendRefused => {
            ("send refused", "Service Bus detaches the sender link at every message; check the settings of the topic")
        }
    }
}

pub(super) fn consumer(state: &consumer::ConsumerState) -> ServiceState {
    match state {
        consumer::ConsumerState::Idle => ServiceState::healthy("idle"),
        consumer::ConsumerState::Preparing => ServiceState::healthy("preparing"),
        consumer::ConsumerState::Consuming => ServiceState::healthy("consuming"),
        consumer::ConsumerState::Stopping => ServiceState::healthy("stopping"),
        consumer::ConsumerState::Paused => ServiceState::healthy("paused by an operator"),
        consumer::ConsumerState::Blocked(SessionProblem::Busy) => ServiceState::healthy("busy"),
        consumer::ConsumerState::Blocked(problem) => {
            let (label, text) = describe_session_problem(*problem);
            ServiceState::with_problem("consumer", label.to_owned(), text.to_owned(), None)
        }
        consumer::ConsumerState::Halted(why) => {
            let text = format!("operator action required: {why}");
            ServiceState::with_problem("consumer", "halted".to_owned(), text, None)
        }
    }
}

fn describe_session_problem(problem: SessionProblem) -> (&'static str, &'static str) {
    match problem {
        SessionProblem::SubscriptionMissing => {
            ("no subscription", "the subscription does not exist; run `headwater topology apply`")
        }
        SessionProblem::Unauthorized => (
            "unauthorized",
            "Service Bus refuses the key or token; check `service_bus.connection_string`: the key, its right Listen, the expiry of a token; with Entra ID, the role Azure Service Bus Data Receiver",
        ),
        SessionProblem::Disabled => ("disabled", "the subscription is disabled"),
        SessionProblem::Busy => ("busy", "Service Bus throttles requests"),
        SessionProblem::Refused => {
            ("refused", "Service Bus refuses sessions; check that the subscription has sessions enabled")
        }
        SessionProblem::Unreachable => ("unreachable", "Service Bus cannot be reached"),
        SessionProblem::ReadModels => {
            ("read models", "events cannot be applied, because of the read-model store and not of the events")
        }
        SessionProblem::NewerFormat => ("newer format", "messages need a pod of a newer version"),
    }
}

#[cfg(test)]
mod tests {
    use pipeline::event::{Epoch, Term};

    use super::*;

    #[test]
    fn throttling_is_not_a_problem_a_missing_subscription_is() {
        let running = producer::ProducerState::Running { term: Term::new(3), epoch: Epoch::FIRST };
        let state_of = |publishing| producer(&running, publishing);
        assert_eq!(state_of(publish::PublishState::Publishing), ServiceState::healthy("publishing"));
        assert_eq!(state_of(publish::PublishState::Paused(PauseReason::Busy)).problem, None);
        let missing = state_of(publish::PublishState::Paused(PauseReason::SubscriptionMissing));
        assert_eq!(missing.state, "paused: no subscription");
        assert!(missing.problem.is_some());
    }

    #[test]
    fn a_halted_producer_names_its_page() {
        let halted = producer::ProducerState::Halted { term: Term::new(3), why: HaltReason::HistoryLost };
        let state = producer(&halted, publish::PublishState::Idle);
        assert_eq!(state.problem.unwrap().page.as_deref(), Some("E0001"));
    }

    #[test]
    fn an_unreachable_bus_and_a_halt_are_consumer_problems() {
        assert_eq!(consumer(&consumer::ConsumerState::Consuming), ServiceState::healthy("consuming"));
        assert!(consumer(&consumer::ConsumerState::Blocked(SessionProblem::Unreachable)).problem.is_some());
        assert!(consumer(&consumer::ConsumerState::Halted("an index differs".into())).problem.is_some());
    }
}
