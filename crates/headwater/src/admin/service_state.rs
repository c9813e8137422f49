//! States of the services in a word or two, and what in them is a problem.

use admin::status::PodProblem;
use pipeline::producer::HaltReason;
use pipeline::publish::{self, PauseReason};
use pipeline::session::SessionProblem as InTheWay;
use pipeline::{consumer, producer};

/// What a service does, and what stands in its way.
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
        producer::ProducerState::Halted { why, .. } => {
            let text = match why {
                HaltReason::HistoryLost => "the oplog no longer holds what follows the checkpoint",
                HaltReason::Source(reason) | HaltReason::Checkpoint(reason) => reason,
            };
            let text = format!("waits for an operator: {text}");
            ServiceState::with_problem("producer", "halted".to_owned(), text, Some(why.page()))
        }
        producer::ProducerState::Running { .. } => match publishing {
            publish::PublishState::Idle | publish::PublishState::Opening => ServiceState::healthy("opening"),
            publish::PublishState::Publishing => ServiceState::healthy("publishing"),
            publish::PublishState::Draining => ServiceState::healthy("draining"),
            // The bus asks for patience now and then; that is no problem.
            publish::PublishState::Paused(PauseReason::Busy) => ServiceState::healthy("paused: busy"),
            publish::PublishState::Paused(why) => {
                let (word, text) = pause(why);
                ServiceState::with_problem("producer", format!("paused: {word}"), text.to_owned(), None)
            }
        },
    }
}

fn pause(why: PauseReason) -> (&'static str, &'static str) {
    match why {
        PauseReason::SubscriptionMissing => ("no subscription", "the subscription does not exist"),
        PauseReason::TopicMissing => ("no topic", "the topic does not exist"),
        PauseReason::Unauthorized => ("unauthorized", "the bus refuses the key or token"),
        PauseReason::Disabled => ("disabled", "topic or subscription is disabled"),
        PauseReason::Busy => ("busy", "the bus asks for patience"),
        PauseReason::Unreachable => ("unreachable", "the bus cannot be reached"),
    }
}

pub(super) fn consumer(state: &consumer::ConsumerState) -> ServiceState {
    match state {
        consumer::ConsumerState::Idle => ServiceState::healthy("idle"),
        consumer::ConsumerState::Preparing => ServiceState::healthy("preparing"),
        consumer::ConsumerState::Consuming => ServiceState::healthy("consuming"),
        consumer::ConsumerState::Stopping => ServiceState::healthy("stopping"),
        consumer::ConsumerState::Blocked(InTheWay::Busy) => ServiceState::healthy("busy"),
        consumer::ConsumerState::Blocked(problem) => {
            let (word, text) = in_the_way(*problem);
            ServiceState::with_problem("consumer", word.to_owned(), text.to_owned(), None)
        }
        consumer::ConsumerState::Halted(why) => {
            let text = format!("waits for an operator: {why}");
            ServiceState::with_problem("consumer", "halted".to_owned(), text, None)
        }
    }
}

fn in_the_way(problem: InTheWay) -> (&'static str, &'static str) {
    match problem {
        InTheWay::SubscriptionMissing => ("no subscription", "the subscription does not exist"),
        InTheWay::Unauthorized => ("unauthorized", "the bus refuses the key or token"),
        InTheWay::Disabled => ("disabled", "the subscription is disabled"),
        InTheWay::Busy => ("busy", "the bus asks for patience"),
        InTheWay::Refused => ("refused", "the bus refuses sessions: is the subscription session-enabled?"),
        InTheWay::Unreachable => ("unreachable", "the bus cannot be reached"),
        InTheWay::ReadModels => ("read models", "events cannot be applied, for a reason that is not theirs"),
        InTheWay::NewerFormat => ("newer format", "messages wait for a pod of a newer version"),
    }
}

#[cfg(test)]
mod tests {
    use pipeline::event::{Epoch, Term};

    use super::*;

    #[test]
    fn a_pause_that_passes_by_itself_is_no_trouble_and_one_that_lasts_is() {
        let running = producer::ProducerState::Running { term: Term::new(3), epoch: Epoch::FIRST };
        let said = |publishing| producer(&running, publishing);
        assert_eq!(said(publish::PublishState::Publishing), ServiceState::healthy("publishing"));
        assert_eq!(said(publish::PublishState::Paused(PauseReason::Busy)).problem, None);
        let missing = said(publish::PublishState::Paused(PauseReason::SubscriptionMissing));
        assert_eq!(missing.state, "paused: no subscription");
        assert!(missing.problem.is_some());
    }

    #[test]
    fn a_halted_producer_names_its_page() {
        let halted = producer::ProducerState::Halted { term: Term::new(3), why: HaltReason::HistoryLost };
        let words = producer(&halted, publish::PublishState::Idle);
        assert_eq!(words.problem.unwrap().page.as_deref(), Some("E0001"));
    }

    #[test]
    fn a_consumer_that_cannot_reach_the_bus_is_in_trouble() {
        assert_eq!(consumer(&consumer::ConsumerState::Consuming), ServiceState::healthy("consuming"));
        assert!(consumer(&consumer::ConsumerState::Blocked(InTheWay::Unreachable)).problem.is_some());
        assert!(consumer(&consumer::ConsumerState::Halted("an index differs".into())).problem.is_some());
    }
}
