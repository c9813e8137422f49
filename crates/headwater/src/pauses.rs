//! What operators have paused: the producer, the consumer, builds of read models, or single read models. Kept in `pauses` of the coordination database, so that it survives
//! restarts and takeovers; every pod polls it.
//!
//! A record without which nothing is paused: a pod starts no service before it has read them once. A resumed read model keeps its record, as
//! `resuming`, until the events that have queued meanwhile are applied.

mod service;

use std::collections::BTreeSet;
use std::fmt;

use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::{Collection, Database};

use crate::coordination_store::{majority_collection, of_pipeline};
pub(crate) use service::{PauseService, PausesLoaded};

pub(crate) const COLLECTION: &str = "pauses";
const FORMAT: i64 = 1;

/// What can be paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PauseTarget {
    Producer,
    Consumer,
    /// Builds of read models, the present one and later ones.
    Build,
    ReadModel(String),
}

/// One pause.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pause {
    pub(crate) target: PauseTarget,
    /// By the clock of the server.
    pub(crate) since: DateTime,
    pub(crate) by: String,
    pub(crate) reason: Option<String>,
    /// A read model whose queued events are being applied. It is not paused any more.
    pub(crate) is_resuming: bool,
}

/// All pauses of a pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pauses(pub(crate) Vec<Pause>);

impl PauseTarget {
    /// For programs.
    pub(crate) const fn service(&self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Consumer => "consumer",
            Self::Build => "build",
            Self::ReadModel(_) => "read_model",
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Producer | Self::Consumer | Self::Build => None,
            Self::ReadModel(name) => Some(name),
        }
    }

    /// As the command takes it.
    pub(crate) fn argument(&self) -> String {
        match self {
            Self::Producer | Self::Consumer | Self::Build => self.service().to_owned(),
            Self::ReadModel(name) => format!("read-model {name}"),
        }
    }
}

impl fmt::Display for PauseTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Producer => f.write_str("the producer"),
            Self::Consumer => f.write_str("the consumer"),
            Self::Build => f.write_str("the build of read models"),
            Self::ReadModel(name) => write!(f, "read model `{name}`"),
        }
    }
}

impl Pauses {
    pub(crate) fn find(&self, target: &PauseTarget) -> Option<&Pause> {
        self.0.iter().find(|pause| pause.target == *target)
    }

    pub(crate) fn is_paused(&self, target: &PauseTarget) -> bool {
        self.find(target).is_some_and(|pause| !pause.is_resuming)
    }

    pub(crate) fn paused_models(&self) -> BTreeSet<String> {
        let paused = self.0.iter().filter(|pause| !pause.is_resuming);
        paused.filter_map(|pause| pause.target.name().map(str::to_owned)).collect()
    }
}

/// The pauses of one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PauseStore {
    pauses: Collection<Document>,
    pipeline: String,
}

impl PauseStore {
    pub(crate) fn new(coordination: &Database, pipeline: &str) -> Self {
        Self { pauses: majority_collection(coordination, COLLECTION), pipeline: pipeline.to_owned() }
    }

    pub(crate) async fn load(&self) -> Result<Pauses, DriverError> {
        let found = self.pauses.find(of_pipeline(&self.pipeline)).sort(doc! { "_id": 1 }).await?;
        let documents: Vec<Document> = found.try_collect().await?;
        Ok(Pauses(documents.iter().filter_map(read_pause).collect()))
    }

    /// Whether it was not paused before.
    pub(crate) async fn pause(
        &self,
        target: &PauseTarget,
        by: &str,
        reason: Option<&str>,
    ) -> Result<bool, DriverError> {
        // As literals, because a reason may begin with `$`.
        let fields = doc! { "format": FORMAT, "state": PAUSED, "by": by, "reason": reason };
        let update = vec![doc! { "$replaceWith": { "$mergeObjects": [
            "$$ROOT", { "at": "$$NOW" }, { "$literal": fields },
        ] } }];
        let not_paused = doc! { "_id": self.id(target), "state": { "$ne": PAUSED } };
        match self.pauses.update_one(not_paused, update).upsert(true).await {
            Ok(_) => Ok(true),
            Err(error) if mongo_error::error_code(&error) == Some(DUPLICATE_KEY) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it was paused.
    pub(crate) async fn resume(&self, target: &PauseTarget) -> Result<bool, DriverError> {
        let paused = doc! { "_id": self.id(target), "state": PAUSED };
        Ok(match target {
            PauseTarget::Producer | PauseTarget::Consumer | PauseTarget::Build => {
                self.pauses.delete_one(paused).await?.deleted_count == 1
            }
            PauseTarget::ReadModel(_) => {
                let resuming = vec![doc! { "$set": { "state": RESUMING, "at": "$$NOW" } }];
                self.pauses.update_one(paused, resuming).await?.matched_count == 1
            }
        })
    }

    /// The queued events of the read model are applied.
    pub(crate) async fn end_resuming(&self, target: &PauseTarget) -> Result<(), DriverError> {
        self.pauses.delete_one(doc! { "_id": self.id(target), "state": RESUMING }).await?;
        Ok(())
    }

    fn id(&self, target: &PauseTarget) -> Document {
        let mut id = doc! { "pipeline": &self.pipeline, "service": target.service() };
        if let Some(name) = target.name() {
            id.insert("name", name);
        }
        id
    }
}

const PAUSED: &str = "paused";
const RESUMING: &str = "resuming";
const DUPLICATE_KEY: i32 = 11000;

/// `None` for a document of a later format.
fn read_pause(document: &Document) -> Option<Pause> {
    (document.get_i64("format").ok()? == FORMAT).then_some(())?;
    let id = document.get_document("_id").ok()?;
    let target = match id.get_str("service").ok()? {
        "producer" => PauseTarget::Producer,
        "consumer" => PauseTarget::Consumer,
        "build" => PauseTarget::Build,
        "read_model" => PauseTarget::ReadModel(id.get_str("name").ok()?.to_owned()),
        _ => return None,
    };
    Some(Pause {
        target,
        since: *document.get_datetime("at").ok()?,
        by: document.get_str("by").unwrap_or_default().to_owned(),
        reason: document.get_str("reason").ok().map(str::to_owned),
        is_resuming: document.get_str("state").ok()? == RESUMING,
    })
}
