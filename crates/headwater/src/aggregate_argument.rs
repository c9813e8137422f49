//! The id of an aggregate or an event from the command line or a URL: a text that may stand for values of several types.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Uuid};
use pipeline::event::AggregateId;

/// The ids that this text may mean, the likeliest first: a string, a number, an object id, a UUID, or Extended JSON such as `{"$oid": "…"}`.
pub(crate) fn candidates(text: &str) -> Vec<AggregateId> {
    id_candidates(text).into_iter().filter_map(AggregateId::new).collect()
}

/// As [`candidates`], for the `_id` of any document.
pub(crate) fn id_candidates(text: &str) -> Vec<Bson> {
    let mut values = vec![];
    if is_typed(text)
        && let Ok(json) = serde_json::from_str::<serde_json::Value>(text)
    {
        values.extend(Bson::try_from(json).ok());
    }
    values.push(Bson::String(text.to_owned()));
    values.extend(text.parse::<i64>().ok().map(Bson::Int64));
    values.extend(ObjectId::parse_str(text).ok().map(Bson::ObjectId));
    values.extend(Uuid::parse_str(text).ok().filter(|_| text.len() == 36).map(|id| Bson::Binary(id.into())));
    values
}

/// Whether the text names its type: Extended JSON, or a string in quotes.
pub(crate) fn is_typed(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text)
        .is_ok_and(|json| json.is_object() || json.is_array() || json.is_string() || json.is_boolean())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<Bson> {
        candidates(text).into_iter().map(|id| id.value().clone()).collect()
    }

    #[test]
    fn a_text_may_stand_for_several_types() {
        assert_eq!(values("order-7"), [Bson::from("order-7")]);
        assert_eq!(values("7"), [Bson::from("7"), Bson::Int64(7)]);
        let id = ObjectId::from_bytes([7; 12]);
        assert_eq!(values(&id.to_hex()), [Bson::from(id.to_hex()), Bson::ObjectId(id)]);
        assert_eq!(values(&format!("{{\"$oid\":\"{id}\"}}"))[0], Bson::ObjectId(id));
        assert_eq!(values("\"7\"")[0], Bson::from("7"));
        let uuid = Uuid::from_bytes([7; 16]);
        assert_eq!(values(&uuid.to_string())[1], Bson::Binary(uuid.into()));
    }
}
