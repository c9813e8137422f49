//! Random histories: whatever clients do, in whatever order, the core behaves as the model allows, and a restart at any
//! moment finds what the model holds.

use std::time::Duration;

use broker::core::*;
use proptest::prelude::*;

use crate::pair::{Pair, held, summary};
use crate::rig::core;
use crate::steps::step;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_core_does_what_the_model_allows(steps in proptest::collection::vec(step(), 1..120)) {
        Pair::new().run(steps);
    }

    #[test]
    fn a_crash_after_any_step_loses_nothing_and_brings_nothing_back(steps in proptest::collection::vec(step(), 1..100)) {
        let mut pair = Pair::new();
        pair.run(steps);
        for (groups, now, expected) in std::mem::take(&mut pair.checkpoints) {
            let mut recovered = core(200);
            for entry in pair.journal.groups()[..groups].iter().flatten() {
                recovered.replay(&entry.meta, entry.body).unwrap();
            }
            recovered.recovered(Timestamp(now));
            for (queue, messages) in expected {
                let found = held(&mut recovered, &mut pair.journal, queue, now);
                prop_assert_eq!(found, summary(&messages), "{:?} after {} groups", queue, groups);
            }
        }
    }

    #[test]
    fn a_journal_cut_at_any_group_is_a_state_to_go_on_from(steps in proptest::collection::vec(step(), 1..80), cut in any::<usize>()) {
        let mut pair = Pair::new();
        pair.run(steps);
        let groups = cut % (pair.journal.groups().len() + 1);
        let mut recovered = core(201);
        for entry in pair.journal.groups()[..groups].iter().flatten() {
            recovered.replay(&entry.meta, entry.body).unwrap();
        }
        recovered.recovered(Timestamp(pair.model.now));
        // Everything it holds can be read, received and settled.
        let mut effects = Vec::new();
        for (n, entity) in pair.outlets.iter().enumerate() {
            let mut turn = Turn { now: Timestamp(pair.model.now), journal: &mut pair.journal, effects: &mut effects };
            let queue = QueueId::main(*entity);
            let Ok(peeked) = recovered.peek(&mut turn, queue, None, SequenceNumber(0), 1_000) else { continue };
            for message in peeked {
                turn.journal.read(message.location).unwrap();
            }
            let link = LinkId(1_000 + n as u64);
            let filter = SessionFilter::Next { timeout: Duration::ZERO };
            let filter = if recovered.lock_lost(queue).condition().contains("session") { filter } else { SessionFilter::None };
            recovered.attach(&mut turn, link, queue, Mode::PeekLock, filter).unwrap();
            recovered.flow(&mut turn, link, 0, 100, false);
            let tokens: Vec<_> = turn.effects.drain(..).filter_map(|effect| match effect {
                Effect::Deliver { delivery, .. } => Some(delivery.token),
                _ => None,
            }).collect();
            prop_assert!(recovered.settle(&mut turn, queue, &tokens, &Outcome::Complete).unwrap().is_empty());
        }
    }
}
