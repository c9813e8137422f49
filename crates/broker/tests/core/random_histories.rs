//! Random histories: the core behaves as the model allows, and a restart at any time recovers what the model holds.

use std::time::Duration;

use broker::core::*;
use proptest::prelude::*;

use crate::client_steps::step;
use crate::fixture::recover;
use crate::model_check::{CoreModelCheck, held, summary};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_core_does_what_the_model_allows(steps in proptest::collection::vec(step(), 1..120)) {
        CoreModelCheck::new().run(steps);
    }

    #[test]
    fn a_crash_after_any_step_recovers_exactly_the_model(steps in proptest::collection::vec(step(), 1..100)) {
        let mut check = CoreModelCheck::new();
        check.run(steps);
        for (groups, now, expected) in std::mem::take(&mut check.checkpoints) {
            let mut recovered = recover(200, &[], &check.journal.groups()[..groups], Timestamp(now));
            for (queue, messages) in expected {
                let found = held(&mut recovered, &mut check.journal, queue, now);
                prop_assert_eq!(found, summary(&messages), "{:?} after {} groups", queue, groups);
            }
        }
    }

    #[test]
    fn a_journal_cut_at_any_group_recovers_to_a_usable_state(steps in proptest::collection::vec(step(), 1..80), cut in any::<usize>()) {
        let mut check = CoreModelCheck::new();
        check.run(steps);
        let groups = cut % (check.journal.groups().len() + 1);
        let mut recovered = recover(201, &[], &check.journal.groups()[..groups], Timestamp(check.model.now));
        // All recovered messages can be read, received and settled.
        let mut effects = Vec::new();
        for (n, entity) in check.egresses.iter().enumerate() {
            let mut call = CallContext { now: Timestamp(check.model.now), journal: &mut check.journal, effects: &mut effects };
            let queue = QueueId::main(*entity);
            let Ok(peeked) = recovered.peek(&mut call, queue, None, SequenceNumber(0), 1_000) else { continue };
            for message in peeked {
                call.journal.read(message.location).unwrap();
            }
            let link = CoreLinkId(1_000 + n as u64);
            let filter = SessionFilter::Next { timeout: Duration::ZERO };
            let filter = if recovered.lock_lost_error(queue).condition().contains("session") { filter } else { SessionFilter::None };
            recovered.attach(&mut call, link, queue, ReceiveMode::PeekLock, filter).unwrap();
            recovered.flow(&mut call, link, 0, 100, false);
            let tokens: Vec<_> = call.effects.drain(..).filter_map(|effect| match effect {
                LinkEffect::Deliver { delivery, .. } => Some(delivery.token),
                _ => None,
            }).collect();
            prop_assert!(recovered.settle(&mut call, queue, &tokens, &SettlementOutcome::Complete).unwrap().is_empty());
        }
    }
}
