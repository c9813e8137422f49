//! The mark that a sweep sets: from which epoch on a source of documents has told everything it holds.
//!
//! Kept as a cursor that is nobody's, among the cursors, so that a transaction reads it together with those of its aggregates and from the
//! same snapshot. An aggregate without a cursor, or whose document is gone, then stands at the beginning of that epoch: what comes late of an
//! older one is a duplicate. What the source still holds, that epoch has told; what it no longer holds must not come back.

use std::collections::{HashMap, HashSet};

use mongodb::bson::{Bson, Document, doc};

use super::cursor::Cursor;
use super::cursor_document::{FORMAT, to_i64};
use super::identity::Identity;
use crate::event::{AggregateId, Epoch};

/// A collection has a name, so no aggregate is called like this.
const NO_COLLECTION: &str = "";
const NAME: &str = "swept";

/// Where it is kept.
pub(crate) fn floor_id(pipeline: &str) -> Document {
    doc! { "pipeline": pipeline, "collection": NO_COLLECTION, "aggregate": NAME }
}

/// Sets it; it never goes back.
pub(crate) fn floor_update(epoch: Epoch) -> Document {
    doc! {
        "$max": { "epoch": to_i64(epoch.get()) },
        "$set": { "position": "", "eventId": Bson::Null, "format": FORMAT },
    }
}

/// Takes the mark from among the cursors, if it is there, and lets it stand in for those that are not.
pub(super) fn apply_floor(cursors: &mut HashMap<Identity, Cursor>, requested: &HashSet<&Identity>) {
    let Some(floor) = cursors.remove(&floor_identity()) else { return };
    for aggregate in requested {
        match cursors.get_mut(*aggregate) {
            None => drop(cursors.insert((*aggregate).clone(), floor.clone())),
            Some(cursor) if cursor.gone && cursor.position < floor.position => {
                cursor.position.clone_from(&floor.position);
            }
            Some(_) => {}
        }
    }
}

fn floor_identity() -> Identity {
    let aggregate = AggregateId::new(NAME.into()).expect("a name is somebody");
    Identity::of_aggregate(Some(NO_COLLECTION), &aggregate)
}

#[cfg(test)]
mod tests {
    use super::super::cursor::{CursorDecision, EventFacts, OrderingMode, decide};
    use super::super::delivered_event::PositionKey;
    use super::*;

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
        let [unknown, gone, live, later] = ["unknown", "gone", "live", "later"].map(aggregate);
        let cursor = |position, gone| Cursor { position, gone, ..Cursor::default() };
        let mut cursors = HashMap::from([
            (floor_identity(), cursor(at(2, ""), false)),
            (gone.clone(), cursor(at(1, "8211"), true)),
            (live.clone(), cursor(at(1, "8211"), false)),
            (later.clone(), cursor(at(2, "8299"), true)),
        ]);
        apply_floor(&mut cursors, &[&unknown, &gone, &live, &later].into());
        assert_eq!(cursors.len(), 4, "the mark itself is no aggregate's");
        for passed_over in [&unknown, &gone] {
            assert_eq!(decided(cursors.get(passed_over), 1), CursorDecision::Duplicate);
            assert_eq!(decided(cursors.get(passed_over), 2), CursorDecision::Next);
        }
        assert_eq!(decided(cursors.get(&live), 1), CursorDecision::Next, "it was swept, and its delete follows");
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
