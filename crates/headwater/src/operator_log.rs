//! What operators did: who, when, what. Kept in `operator_actions` of the coordination database; `headwater history` shows it.

use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::{Collection, Database};

use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::coordination_store::majority_collection;

pub(crate) const COLLECTION: &str = "operator_actions";
const FORMAT: i64 = 1;

/// One thing that an operator did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OperatorAction {
    /// By the clock of the server.
    pub(crate) at: DateTime,
    /// `user@host`, or the pod whose dashboard was used.
    pub(crate) by: String,
    /// The command.
    pub(crate) action: String,
    /// What it was done to, and the result.
    pub(crate) detail: String,
}

/// The actions of one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct OperatorLog {
    actions: Collection<Document>,
    pipeline: String,
}

impl OperatorLog {
    pub(crate) fn new(coordination: &Database, pipeline: &str) -> Self {
        Self { actions: majority_collection(coordination, COLLECTION), pipeline: pipeline.to_owned() }
    }

    pub(crate) async fn record(&self, by: &str, action: &str, detail: &str) -> Result<(), DriverError> {
        // As literals, because a name may begin with `$`.
        let fields =
            doc! { "format": FORMAT, "pipeline": &self.pipeline, "by": by, "action": action, "detail": detail };
        let update = vec![
            doc! { "$set": { "at": "$$NOW" } },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "$literal": fields }] } },
        ];
        self.actions.update_one(doc! { "_id": ObjectId::new() }, update).upsert(true).await?;
        Ok(())
    }

    /// The newest first, at most `limit`.
    pub(crate) async fn list(&self, limit: i64) -> Result<Vec<OperatorAction>, DriverError> {
        let found =
            self.actions.find(doc! { "pipeline": &self.pipeline }).sort(doc! { "at": -1, "_id": -1 }).limit(limit);
        let documents: Vec<Document> = found.await?.try_collect().await?;
        Ok(documents.iter().filter_map(read_action).collect())
    }
}

/// `None` for a document of a later format.
fn read_action(document: &Document) -> Option<OperatorAction> {
    let text = |field| document.get_str(field).ok().map(str::to_owned);
    (document.get_i64("format").ok()? == FORMAT).then_some(())?;
    Some(OperatorAction {
        at: *document.get_datetime("at").ok()?,
        by: text("by")?,
        action: text("action")?,
        detail: text("detail")?,
    })
}

/// Takes an aggregate id out of the records. Returns of how many.
pub(crate) async fn redact(coordination: &Database, pipeline: &str, aggregate: &str) -> Result<u64, DriverError> {
    // As records name it. A shorter text could be part of another record.
    let (named, redacted) = (format!(" of {aggregate} in "), " of (erased) in ");
    let mentions = doc! { "$gte": [{ "$indexOfBytes": ["$detail", { "$literal": &named }] }, 0] };
    let replaced = doc! { "$replaceAll": {
        "input": "$detail", "find": { "$literal": &named }, "replacement": redacted,
    } };
    let actions = majority_collection(coordination, COLLECTION);
    let update = vec![doc! { "$set": { "detail": replaced } }];
    let changed = actions.update_many(doc! { "pipeline": pipeline, "$expr": mentions }, update).await?;
    Ok(changed.modified_count)
}

/// Records what a command did. The command has succeeded: if this fails, the operator is told, and the command still succeeds.
pub(crate) async fn record(config: &Config, action: &str, detail: &str) {
    let recorded = async {
        let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
        OperatorLog::new(&coordination, &config.pipeline).record(&who(), action, detail).await?;
        anyhow::Ok(())
    };
    if let Err(error) = recorded.await {
        tracing::warn!(error = format!("{error:#}"), action, "failed to record the action in `operator_actions`");
    }
}

/// The user and the machine, as far as the environment tells.
pub(crate) fn who() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let host = variable("HOSTNAME").or_else(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(name.trim().to_owned())
    });
    let user = variable("USER").or_else(|| variable("LOGNAME"));
    format!("{}@{}", user.as_deref().unwrap_or("unknown"), host.as_deref().unwrap_or("unknown"))
}
