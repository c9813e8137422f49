//! Answers about applied events, for the command line and over HTTP.

use std::fmt;
use std::time::Duration;

use mongodb::bson::Bson;
use mongodb::{Client, Database};
use pipeline::event::AggregateId;
use pipeline::generation::GenerationStore;
use pipeline::view::{
    AppliedReader, AppliedState, EventPlace, ModelProgress, Projection, SourceEventReader, UnavailableModels,
};

pub(crate) use admin::operator::{AppliedAnswer, AppliedModel, OperationTime};

use crate::config::Config;
use crate::pauses::{PauseStore, PauseTarget};

/// Waits for events, and knows when waiting does not help.
#[derive(Clone, Debug)]
pub(crate) struct AppliedWait {
    reader: AppliedReader,
    pauses: PauseStore,
    generations: GenerationStore,
    models: Vec<String>,
    source: SourceEventReader,
}

/// Why nobody can wait for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownEvent {
    NotFound,
    Rejected,
}

impl fmt::Display for UnknownEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "the source has no event with this `_id`",
            Self::Rejected => {
                "the event has no usable aggregate id or sequence, so the producer rejects it: see `headwater rejected list`"
            }
        })
    }
}

impl std::error::Error for UnknownEvent {}

pub(crate) const NO_SEQUENCE: &str =
    "the source has no sequence (`source.sequence`): without it nobody can tell whether an event is applied";

impl AppliedWait {
    /// `None` without a sequence. `source`: the server of the source.
    pub(crate) fn new(config: &Config, source: &Client, coordination: &Database, views: &Database) -> Option<Self> {
        let models: Vec<String> = config.read_models.models.iter().map(|model| model.name().to_owned()).collect();
        Some(Self {
            source: SourceEventReader::new(&source.database(&config.source.database), &config.source)?,
            reader: AppliedReader::new(views, &config.pipeline, models.clone()),
            pauses: PauseStore::new(coordination, &config.pipeline),
            generations: GenerationStore::new(coordination, &config.pipeline),
            models,
        })
    }

    /// Aggregate and sequence of an event of the source, by its `_id`.
    pub(crate) async fn find_event(&self, ids: &[Bson]) -> anyhow::Result<(AggregateId, i64)> {
        match self.source.find_place(ids).await? {
            Some(EventPlace::At { aggregate, sequence }) => Ok((aggregate, sequence)),
            Some(EventPlace::Nowhere) => Err(UnknownEvent::Rejected.into()),
            None => Err(UnknownEvent::NotFound.into()),
        }
    }

    pub(crate) async fn wait(
        &self,
        aggregates: &[AggregateId],
        sequence: i64,
        within: Duration,
    ) -> anyhow::Result<AppliedState> {
        let unavailable = self.unavailable().await?;
        Ok(self.reader.clone().with_unavailable(unavailable).wait(aggregates, sequence, within).await?)
    }

    async fn unavailable(&self) -> anyhow::Result<UnavailableModels> {
        let (pauses, generation) = tokio::join!(self.pauses.load(), self.generations.load());
        let (pauses, generation) = (pauses?, generation?);
        let is_service_paused = [PauseTarget::Producer, PauseTarget::Consumer].iter().any(|it| pauses.is_paused(it));
        let paused = if is_service_paused { self.models.iter().cloned().collect() } else { pauses.paused_models() };
        let is_building =
            |model: &&String| generation.as_ref().is_some_and(|generation| !generation.serving.contains_key(*model));
        Ok(UnavailableModels { paused, building: self.models.iter().filter(is_building).cloned().collect() })
    }
}

pub(crate) fn describe(progress: ModelProgress) -> String {
    match progress {
        ModelProgress::Parked(reason) => format!("parked: {reason}"),
        other => state_code(other).to_owned(),
    }
}

const fn state_code(progress: ModelProgress) -> &'static str {
    match progress {
        ModelProgress::Applied => "applied",
        ModelProgress::Parked(_) => "parked",
        ModelProgress::Paused => "paused",
        ModelProgress::Building => "building",
        ModelProgress::Pending => "pending",
    }
}

pub(crate) fn to_answer(state: &AppliedState) -> AppliedAnswer {
    let model = |progress: &ModelProgress| {
        let reason = match progress {
            ModelProgress::Parked(reason) => Some(reason.as_str().to_owned()),
            ModelProgress::Applied | ModelProgress::Paused | ModelProgress::Building | ModelProgress::Pending => None,
        };
        AppliedModel { state: state_code(*progress), reason }
    };
    let operation_time = state.operation_time.map(|time| OperationTime { t: time.time, i: time.increment });
    AppliedAnswer {
        applied: state.is_applied(),
        parked: state.is_parked(),
        unavailable: state.is_unavailable(),
        sequence: state.sequence,
        read_models: state.models.iter().map(|(name, progress)| (name.clone(), model(progress))).collect(),
        operation_time,
    }
}
