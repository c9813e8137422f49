//! The read models in the status: state and generation as the store holds them, and the last comparison of each.

use std::collections::BTreeMap;

use admin::status::{GenerationStatus, IncompleteReadModel, ReadModelStatus, VerificationStatus};
use mongodb::bson::Document;
use pipeline::generation::{ChangeRequest, Generation, GenerationStage};
use pipeline::view::is_version_of;
use tokio::time::timeout;

use super::coordination::{CoordinationSnapshot, to_wall_time};
use super::{READ_TIMEOUT, SlowReads, StatusCollector, last_applied};
use crate::verification::VerificationStore;

impl StatusCollector {
    /// The outer `None` if it cannot be read, the inner before the first pod.
    pub(super) async fn read_generation(&self) -> Option<Option<Generation>> {
        match timeout(READ_TIMEOUT, self.generations.load()).await {
            Ok(Ok(generation)) => Some(generation),
            Ok(Err(error)) => {
                tracing::debug!(%error, "failed to read a part of the status");
                None
            }
            Err(_) => None,
        }
    }

    /// The last comparison of each read model; none if they cannot be read.
    pub(super) async fn read_verifications(&self) -> BTreeMap<String, VerificationStatus> {
        let store = VerificationStore::new(&self.coordination, &self.pipeline);
        timeout(READ_TIMEOUT, store.load()).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Those of the configuration, and those of the store that it no longer or not yet has.
    pub(super) fn read_model_statuses(
        &self,
        slow: &SlowReads,
        coordination: &CoordinationSnapshot,
    ) -> Vec<ReadModelStatus> {
        let parked_in = |name: &str| {
            let list = slow.attention.parked.as_ref()?;
            let of_model = list.iter().filter(|parked| is_version_of(&parked.read_model, name));
            Some(of_model.map(|parked| parked.aggregates).sum())
        };
        let generation = coordination.generation.as_ref();
        let states = generation.map(Generation::states).unwrap_or_default();
        let status = |name: &str, documents| {
            let applied = last_applied(name, &coordination.pods);
            ReadModelStatus {
                name: name.to_owned(),
                documents,
                applied: applied.map(|last| last.at),
                applied_seconds_ago: applied.map(|last| last.seconds_ago),
                parked_aggregates: parked_in(name),
                incomplete: generation.and_then(|generation| incomplete_in(generation, name)),
                state: states.get(name).map(|state| state.code().to_owned()),
                has_previous: generation.is_some_and(|generation| generation.previous.contains_key(name)),
                verification: slow.verifications.get(name).cloned(),
            }
        };
        let declared = self.read_models.iter().zip(&slow.sizes).map(|(name, documents)| status(name, *documents));
        let is_declared = |name: &str| self.read_models.iter().any(|declared| declared == name);
        let others = states.keys().filter(|name| !is_declared(name)).map(|name| status(name, None));
        declared.chain(others).collect()
    }
}

fn incomplete_in(generation: &Generation, name: &str) -> Option<IncompleteReadModel> {
    let (reason, since) = generation.serving.get(name)?.incomplete?;
    Some(IncompleteReadModel { reason: reason.to_string(), since: to_wall_time(since) })
}

pub(crate) fn generation_status(generation: &Generation) -> GenerationStatus {
    let is_building = generation.stage == GenerationStage::Building;
    let figure = |field: &str| read_count(&generation.build, field).filter(|_| is_building);
    let (built, total) = (figure("aggregates"), figure("total"));
    let seconds = generation.build.get_f64("seconds").ok();
    GenerationStatus {
        number: generation.number,
        stage: generation.stage.code().to_owned(),
        problem: generation.problem.clone(),
        built_aggregates: built,
        total_aggregates: total,
        built_events: figure("events"),
        seconds_left: seconds_left(figure("builtBefore").unwrap_or(0), built, total, seconds),
        replication_lag_seconds: generation.build.get_f64("replicationLag").ok().filter(|_| is_building),
        build_paused: is_building && generation.build.get_bool("paused").unwrap_or(false),
        request: generation.request.as_ref().map(describe_request),
    }
}

/// As long per aggregate as until now. `None` while too little is known. The pod that builds now may have found some `built_before`.
fn seconds_left(built_before: u64, built: Option<u64>, total: Option<u64>, seconds: Option<f64>) -> Option<f64> {
    let (built, total, seconds) = (built?, total?, seconds?);
    let own = built.saturating_sub(built_before);
    (own > 0 && total > built && seconds > 0.0).then(|| seconds / own as f64 * (total - built) as f64)
}

fn describe_request(request: &ChangeRequest) -> String {
    let of = if request.models.is_empty() { String::new() } else { format!(" of {}", request.models.join(", ")) };
    format!("{}{of}, requested by {}", request.kind.code(), request.by)
}

fn read_count(document: &Document, field: &str) -> Option<u64> {
    document.get_i64(field).ok().and_then(|count| u64::try_from(count).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_build_is_estimated_from_its_pace() {
        assert_eq!(seconds_left(0, Some(25), Some(100), Some(10.0)), Some(30.0));
        assert_eq!(seconds_left(50, Some(75), Some(100), Some(10.0)), Some(10.0));
        assert_eq!(seconds_left(25, Some(25), Some(100), Some(10.0)), None);
        for (built, total, seconds) in [
            (Some(0), Some(100), Some(1.0)),
            (Some(100), Some(90), Some(1.0)),
            (None, Some(9), Some(1.0)),
            (Some(1), Some(9), None),
        ] {
            assert_eq!(seconds_left(0, built, total, seconds), None);
        }
    }
}
