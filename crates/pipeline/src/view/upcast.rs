//! Turns an old event into its present form before read models see it, with stages of MongoDB.
//!
//! The server evaluates the stages, in one aggregation for all events of a transaction that need it, before the transaction begins: an expression has no
//! side effects and depends on the event alone, so an attempt that is repeated gets the same result. Stored events (source, bus, parked) keep their
//! form. Cursor and order use the event as it was delivered, never the result.

use std::collections::HashMap;
use std::sync::Arc;

use mongodb::Database;
use mongodb::bson::{Bson, Document, RawArrayBuf, RawDocument, RawDocumentBuf, cstr, doc};
use serde::{Deserialize, Serialize};

use super::delivered_event::{DeliveredEvent, EventBody};
use super::event_path::EventPath;
use super::projection::Projection;
use super::read_model::ReadModel;
use crate::error_policy::{self, ErrorClass};
use crate::source::SourceConfig;

/// Upcasts by event type, as a read model stores them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpcastDeclaration {
    /// By event type: the stages.
    pub stages: Document,
    /// Paths that no upcast may change: the id, the aggregate, the sequence and the type of the event.
    pub keep: Vec<String>,
}

/// The stages that keep one document one document, and add nothing from elsewhere.
const UPCAST_STAGES: [&str; 6] = ["$set", "$addFields", "$unset", "$project", "$replaceWith", "$replaceRoot"];

/// What would give another result the next time.
const CHANGING: [&str; 6] = ["$rand", "$sampleRate", "$function", "$$NOW", "$$CLUSTER_TIME", "$currentDate"];

/// The upcast of one event type.
#[derive(Debug)]
pub struct Upcast {
    stages: Vec<Document>,
    keep: Vec<EventPath>,
    /// Read models with the same upcast share the result.
    id: Vec<u8>,
}

/// What became of an event.
type UpcastResult = Result<Arc<RawDocumentBuf>, String>;

/// The index of an event, and its body.
type IndexedBody<'e> = (usize, &'e RawDocument);

/// The events that have another form for some read models, by event and upcast.
#[derive(Debug, Default)]
pub(super) struct UpcastedEvents(HashMap<(usize, Vec<u8>), UpcastResult>);

/// Events in one request.
const MAX_BYTES: usize = 8 * 1024 * 1024;

impl UpcastDeclaration {
    pub(super) fn compile(&self) -> Result<HashMap<String, Arc<Upcast>>, String> {
        let keep: Option<Vec<EventPath>> = self.keep.iter().map(|path| EventPath::from_field(path)).collect();
        let keep = keep.ok_or("names a path that cannot be kept")?;
        let compile = |(event_type, stages): (&String, &Bson)| {
            let stages = stages.as_array().filter(|stages| !stages.is_empty()).ok_or("must be a list of stages")?;
            let stages: Option<Vec<Document>> = stages.iter().map(|stage| stage.as_document().cloned()).collect();
            let stages = stages.ok_or("must be a list of stages")?;
            let is_known =
                |stage: &Document| stage.len() == 1 && stage.keys().all(|name| UPCAST_STAGES.contains(&name.as_str()));
            if !stages.iter().all(is_known) {
                return Err(format!("each stage must be one of `{}`", UPCAST_STAGES.join("`, `")));
            }
            if let Some(name) = stages.iter().find_map(|stage| find_changing(&Bson::Document(stage.clone()))) {
                return Err(format!("`{name}` gives another result every time"));
            }
            let id = mongodb::bson::serialize_to_vec(&doc! { "stages": &stages })
                .map_err(|_| "cannot be written as BSON")?;
            Ok((event_type.clone(), Arc::new(Upcast { stages, keep: keep.clone(), id })))
        };
        self.stages.iter().map(compile).collect()
    }
}

/// Documents of a source of events as read models see them; an error says why such an event is parked.
pub async fn upcast_documents(
    database: &Database,
    source: &SourceConfig,
    models: &[Arc<ReadModel>],
    documents: Vec<Document>,
) -> Result<Vec<Result<Document, String>>, mongodb::error::Error> {
    let to_event = |document: &Document| {
        let raw = RawDocumentBuf::try_from(document).ok()?;
        // Without its sequence: only the type counts here.
        DeliveredEvent::from_source(&SourceConfig { sequence: None, ..source.clone() }, None, &raw).ok()
    };
    let events: Vec<Option<DeliveredEvent>> = documents.iter().map(to_event).collect();
    let indexed = events.iter().enumerate().filter_map(|(index, event)| Some((index, event.as_ref()?)));
    let projections = models.iter().map(|model| &**model as &dyn Projection);
    let upcasted = UpcastedEvents::evaluate(database, projections.clone(), indexed).await?;
    let result = |(index, document): (usize, Document)| {
        let Some(event) = &events[index] else { return Ok(document) };
        match projections.clone().find_map(|model| upcasted.get(index, model, event)) {
            None => Ok(document),
            Some(Ok(upcasted)) => Ok(Document::try_from(&***upcasted).unwrap_or(document)),
            Some(Err(detail)) => Err(detail.clone()),
        }
    };
    Ok(documents.into_iter().enumerate().map(result).collect())
}

impl UpcastedEvents {
    /// Evaluates the upcasts of these events for these models. An error is transient, or of the server as a whole.
    pub(super) async fn evaluate<'e>(
        database: &Database,
        models: impl Iterator<Item = &'e dyn Projection> + Clone,
        events: impl Iterator<Item = (usize, &'e DeliveredEvent)>,
    ) -> Result<Self, mongodb::error::Error> {
        let mut groups: HashMap<&[u8], (&Arc<Upcast>, Vec<IndexedBody<'_>>)> = HashMap::new();
        for (index, event) in events {
            let EventBody::Document(body) = &event.body else { continue };
            for upcast in models.clone().filter_map(|model| model.upcast(event)) {
                let (_, group) = groups.entry(&upcast.id).or_insert_with(|| (upcast, vec![]));
                if group.last().is_none_or(|(last, _)| *last != index) {
                    group.push((index, body));
                }
            }
        }
        let mut upcasted = Self::default();
        for (upcast, group) in groups.into_values() {
            for part in chunks(&group) {
                upcasted.evaluate_part(database, upcast, part).await?;
            }
        }
        Ok(upcasted)
    }

    /// Of one event, with the index 0.
    pub(super) async fn evaluate_one(
        database: &Database,
        model: &dyn Projection,
        event: &DeliveredEvent,
    ) -> Result<Self, mongodb::error::Error> {
        Self::evaluate(database, std::iter::once(model), std::iter::once((0, event))).await
    }

    async fn evaluate_part(
        &mut self,
        database: &Database,
        upcast: &Upcast,
        part: &[IndexedBody<'_>],
    ) -> Result<(), mongodb::error::Error> {
        match upcast.run(database, part.iter().map(|(_, body)| *body)).await {
            Ok(results) if results.len() == part.len() => {
                for ((index, body), result) in part.iter().zip(results) {
                    let result = upcast.check(body, result);
                    self.0.insert((*index, upcast.id.clone()), result);
                }
                Ok(())
            }
            Ok(_) => {
                let lost = || Err("the upcast does not keep one event one event".to_owned());
                part.iter().for_each(|(index, _)| drop(self.0.insert((*index, upcast.id.clone()), lost())));
                Ok(())
            }
            // One bad event costs the others nothing.
            Err(error) if is_refused(&error) && part.len() > 1 => {
                for one in part.chunks(1) {
                    Box::pin(self.evaluate_part(database, upcast, one)).await?;
                }
                Ok(())
            }
            Err(error) if is_refused(&error) => {
                let code = mongo_error::error_code(&error).unwrap_or_default();
                let refused = Err(format!("the server refused the upcast of the event with error {code}"));
                part.iter().for_each(|(index, _)| drop(self.0.insert((*index, upcast.id.clone()), refused.clone())));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The event as the model sees it: `None` if it has no upcast for it.
    pub(super) fn get(&self, index: usize, model: &dyn Projection, event: &DeliveredEvent) -> Option<&UpcastResult> {
        if self.0.is_empty() {
            return None;
        }
        let upcast = model.upcast(event)?;
        self.0.get(&(index, upcast.id.clone()))
    }
}

impl Upcast {
    pub(super) fn raw_stages(&self) -> RawArrayBuf {
        let mut raw = RawArrayBuf::new();
        self.stages.iter().filter_map(|stage| RawDocumentBuf::try_from(stage).ok()).for_each(|stage| raw.push(stage));
        raw
    }

    async fn run(
        &self,
        database: &Database,
        events: impl Iterator<Item = &RawDocument>,
    ) -> Result<Vec<RawDocumentBuf>, mongodb::error::Error> {
        let mut list = RawArrayBuf::new();
        events.for_each(|event| list.push(event.to_owned()));
        // A literal: text of an event that looks like an expression stays text.
        let mut literal = RawDocumentBuf::new();
        literal.append(cstr!("$literal"), list);
        let mut documents = RawDocumentBuf::new();
        documents.append(cstr!("$documents"), literal);
        let mut stages = RawArrayBuf::new();
        stages.push(documents);
        self.raw_stages().into_iter().flatten().for_each(|stage| stages.push(stage));
        let mut command = RawDocumentBuf::new();
        command.append(cstr!("aggregate"), 1);
        command.append(cstr!("pipeline"), stages);
        let mut cursor = RawDocumentBuf::new();
        cursor.append(cstr!("batchSize"), i32::MAX);
        command.append(cstr!("cursor"), cursor);
        let mut found = database.run_raw_cursor_command(command).await?;
        let mut results = vec![];
        while found.advance().await? {
            results.push(found.current().to_owned());
        }
        Ok(results)
    }

    /// Order must not depend on an expression.
    fn check(&self, before: &RawDocument, after: RawDocumentBuf) -> UpcastResult {
        let value = |path: &EventPath, document: &RawDocument| {
            path.find(document).and_then(|value| Bson::try_from(value.as_ref()).ok())
        };
        match self.keep.iter().all(|path| value(path, before) == value(path, &after)) {
            true => Ok(Arc::new(after)),
            false => Err("the upcast changes the id, the aggregate, the sequence or the type of the event".to_owned()),
        }
    }
}

/// The server will refuse it again.
fn is_refused(error: &mongodb::error::Error) -> bool {
    error_policy::classify_mongo(error) == ErrorClass::Permanent
}

fn find_changing(value: &Bson) -> Option<&'static str> {
    let changing =
        |text: &str| CHANGING.into_iter().find(|name| text == *name || text.starts_with(&format!("{name}.")));
    match value {
        Bson::String(text) => changing(text),
        Bson::Array(values) => values.iter().find_map(find_changing),
        Bson::Document(fields) => {
            fields.iter().find_map(|(name, value)| changing(name).or_else(|| find_changing(value)))
        }
        _ => None,
    }
}

fn chunks<'g, 'e>(group: &'g [IndexedBody<'e>]) -> Vec<&'g [IndexedBody<'e>]> {
    let (mut chunks, mut start, mut bytes) = (vec![], 0, 0);
    for (at, (_, body)) in group.iter().enumerate() {
        bytes += body.as_bytes().len();
        if bytes > MAX_BYTES && at > start {
            chunks.push(&group[start..at]);
            (start, bytes) = (at, body.as_bytes().len());
        }
    }
    chunks.push(&group[start..]);
    chunks
}
