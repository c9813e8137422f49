//! The epoch floor that a sweep writes: since this epoch a source of documents has published everything it holds.
//!
//! Stored among the cursors under an id that no aggregate has, so that a transaction reads it with the cursors and from the same snapshot.
//! An aggregate without a cursor, or with a deleted document, then starts at that epoch: late events of older epochs are duplicates.
//! Documents that still exist were published in that epoch; deleted ones must not come back.

use std::collections::{HashMap, HashSet};

use super::cursor::Cursor;
use super::identity::Identity;
use crate::event::AggregateId;
use crate::stored::cursors::{FLOOR_AGGREGATE, FLOOR_COLLECTION};

/// Removes the floor from the cursors, if present, and uses it for missing cursors and deleted documents.
pub(super) fn apply_floor(cursors: &mut HashMap<Identity, Cursor>, requested: &HashSet<&Identity>) {
    let Some(floor) = cursors.remove(&floor_identity()) else { return };
    for aggregate in requested {
        match cursors.get_mut(*aggregate) {
            // The aggregate itself has no cursor yet, so no generation either.
            None => drop(cursors.insert((*aggregate).clone(), Cursor { generation: 0, holds: 0, ..floor.clone() })),
            // Only for deleted documents: the sweep published a live one, and its delete will follow.
            Some(cursor) if cursor.document_deleted && cursor.position < floor.position => {
                cursor.position.clone_from(&floor.position);
            }
            Some(_) => {}
        }
    }
}

fn floor_identity() -> Identity {
    let aggregate = AggregateId::new(FLOOR_AGGREGATE.into()).expect("a string is a valid aggregate id");
    Identity::of_aggregate(Some(FLOOR_COLLECTION), &aggregate)
}

#[cfg(test)]
mod tests {
    use super::super::cursor::{CursorDecision, EventFacts, OrderingMode, decide};
    use super::super::delivered_event::PositionKey;
    use super::*;
    use crate::event::Epoch;
    use mongodb::bson::Bson;

    fn at(epoch: u64, key: &str) -> Option<PositionKey> {
        Some(PositionKey::new(Epoch::new(epoch), key))
    }

    fn aggregate(name: &str) -> Identity {
        Identity::of_aggregate(Some("orders"), &AggregateId::new(name.into()).unwrap())
    }

    fn decided(cursor: Option<&Cursor>, epoch: u64) -> CursorDecision {
        let (position, key) = (at(epoch, "82AA").unwrap(), Bson::Null);
        decide(
            cursor,
            EventFacts { position: Some(&position), sequence: None, key: &key, evidence: None },
            OrderingMode::Position,
        )
    }

    #[test]
    fn the_epoch_floor_applies_to_unknown_and_deleted_documents() {
        let [unknown, deleted, live, later] = ["unknown", "gone", "live", "later"].map(aggregate);
        let cursor = |position, document_deleted| Cursor { position, document_deleted, ..Cursor::default() };
        let mut cursors = HashMap::from([
            (floor_identity(), cursor(at(2, ""), false)),
            (deleted.clone(), cursor(at(1, "8211"), true)),
            (live.clone(), cursor(at(1, "8211"), false)),
            (later.clone(), cursor(at(2, "8299"), true)),
        ]);
        apply_floor(&mut cursors, &[&unknown, &deleted, &live, &later].into());
        assert_eq!(cursors.len(), 4, "the floor itself is not an aggregate");
        for passed_over in [&unknown, &deleted] {
            assert_eq!(decided(cursors.get(passed_over), 1), CursorDecision::Duplicate);
            assert_eq!(decided(cursors.get(passed_over), 2), CursorDecision::Next);
        }
        assert_eq!(decided(cursors.get(&live), 1), CursorDecision::Next, "it was swept, and its delete will follow");
        assert_eq!(cursors[&later].position, at(2, "8299"));
    }

    #[test]
    fn without_an_epoch_floor_nothing_changes() {
        let unknown = aggregate("unknown");
        let mut cursors = HashMap::new();
        apply_floor(&mut cursors, &[&unknown].into());
        assert!(cursors.is_empty());
    }
}
