//! Pure: what comes after the present generation.

use std::collections::BTreeMap;

use mongodb::bson::DateTime;
use pipeline::generation::{Generation, GenerationStage, ModelVersion, RequestKind};
use pipeline::source::{SourceConfig, SourceKind};
use pipeline::view::{ReadModel, ReadModelDeclaration};

use super::proposal::{ModelProposal, incomplete_reason};

/// What the leader does next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChangeStep {
    Nothing,
    /// Stores this generation, and continues with its stage.
    Store(Box<Generation>),
    Cancel,
}

pub(crate) fn fingerprints_of(versions: &BTreeMap<String, ModelVersion>) -> BTreeMap<String, String> {
    versions.iter().map(|(name, version)| (name.clone(), version.fingerprint.clone())).collect()
}

/// `agreed`: all live pods propose `proposal`, and have for a while. `automatic`: `read_models.on_change` is `rebuild`.
pub(super) fn decide_change(
    generation: &Generation,
    proposal: &ModelProposal,
    agreed: bool,
    automatic: bool,
    source: &SourceConfig,
) -> ChangeStep {
    let request = generation.request.as_ref();
    let kind = request.map(|request| request.kind);
    match generation.stage {
        GenerationStage::Switching => ChangeStep::Nothing,
        GenerationStage::Building => {
            let is_declined = generation.declined.as_ref() == Some(&proposal.id());
            let is_replaced = agreed && !is_declined && fingerprints_of(&generation.next) != proposal.fingerprints;
            if kind == Some(RequestKind::Cancel) || is_replaced { ChangeStep::Cancel } else { ChangeStep::Nothing }
        }
        GenerationStage::Active => {
            let named = request.map(|request| request.models.as_slice()).unwrap_or_default();
            if let Some(problem) = refusal(generation, kind, named, source) {
                let refused = Generation { request: None, problem: Some(problem), ..generation.clone() };
                return ChangeStep::Store(Box::new(refused));
            }
            match kind {
                Some(RequestKind::Rollback) => begin(generation, rolled_back(generation, named, source), |next| {
                    next.declined = Some(proposal.id());
                }),
                Some(RequestKind::Rebuild) => {
                    // What the configuration proposes, if it differs, and the named read models anew.
                    let proposed = agreed.then_some(proposal);
                    begin(generation, rebuilt(generation, proposed, named, source), |next| next.declined = None)
                }
                Some(RequestKind::Cancel | RequestKind::Accept) => {
                    ChangeStep::Store(Box::new(Generation { request: None, ..generation.clone() }))
                }
                None => {
                    let is_declined = generation.declined.as_ref() == Some(&proposal.id());
                    if !agreed || !automatic || is_declined || generation.serves(&proposal.fingerprints) {
                        return ChangeStep::Nothing;
                    }
                    begin(generation, next_versions(generation, proposal, source), |_| {})
                }
            }
        }
    }
}

fn begin(
    generation: &Generation,
    next: BTreeMap<String, ModelVersion>,
    adjust: impl FnOnce(&mut Generation),
) -> ChangeStep {
    let mut begun = Generation {
        number: generation.number + 1,
        next,
        problem: None,
        since: Some(DateTime::now()),
        build: mongodb::bson::Document::new(),
        ..generation.clone()
    };
    // The request stays: it has the rate. The switch removes it.
    let needs_build = begun.to_build().next().is_some();
    begun.stage = if needs_build { GenerationStage::Building } else { GenerationStage::Switching };
    adjust(&mut begun);
    ChangeStep::Store(Box::new(begun))
}

/// The set of the proposal: what serves already stays, the rest is built.
pub(crate) fn next_versions(
    generation: &Generation,
    proposal: &ModelProposal,
    source: &SourceConfig,
) -> BTreeMap<String, ModelVersion> {
    let version = |(name, declaration, fingerprint): (&String, &_, &String)| {
        let serving = generation.serving.get(name).filter(|serving| serving.fingerprint == *fingerprint);
        let version = serving.cloned().unwrap_or_else(|| {
            let built =
                ModelVersion::to_build(name, Clone::clone(declaration), fingerprint.clone(), generation.number + 1);
            buildable(generation, name, built, source)
        });
        (name.clone(), version)
    };
    proposal.versions().map(version).collect()
}

fn rebuilt(
    generation: &Generation,
    proposal: Option<&ModelProposal>,
    named: &[String],
    source: &SourceConfig,
) -> BTreeMap<String, ModelVersion> {
    let mut next = match proposal {
        Some(proposal) => next_versions(generation, proposal, source),
        None => generation.serving.clone(),
    };
    for (name, version) in next.iter_mut().filter(|(name, _)| named.contains(name)) {
        let ModelVersion { declaration, fingerprint, .. } = version.clone();
        let built = ModelVersion::to_build(name, declaration, fingerprint, generation.number + 1);
        *version = buildable(generation, name, built, source);
    }
    next
}

fn rolled_back(generation: &Generation, named: &[String], source: &SourceConfig) -> BTreeMap<String, ModelVersion> {
    let mut next = generation.serving.clone();
    for (name, version) in next.iter_mut().filter(|(name, _)| named.contains(name)) {
        let Some(ModelVersion { declaration, fingerprint, .. }) = generation.previous.get(name).cloned() else {
            continue;
        };
        let built = ModelVersion::to_build(name, declaration, fingerprint, generation.number + 1);
        *version = buildable(generation, name, built, source);
    }
    next
}

/// Why a request is not granted: what serves now stays.
fn refusal(
    generation: &Generation,
    kind: Option<RequestKind>,
    named: &[String],
    source: &SourceConfig,
) -> Option<String> {
    let versions = match kind? {
        RequestKind::Rebuild => &generation.serving,
        RequestKind::Rollback => &generation.previous,
        RequestKind::Cancel | RequestKind::Accept => return None,
    };
    let named = named.iter().filter_map(|name| Some((name, versions.get(name)?)));
    named.into_iter().find_map(|(name, version)| unbuildable_reason(name, &version.declaration, source))
}

/// Why a read model cannot be built from this source, for an operator.
pub(crate) fn unbuildable_reason(
    name: &str,
    declaration: &ReadModelDeclaration,
    source: &SourceConfig,
) -> Option<String> {
    match source.kind {
        SourceKind::Events if source.sequence.is_some() => None,
        SourceKind::Events => Some(format!(
            "`{name}` cannot be built from the source: the source has no sequence (`source.sequence`), so nobody knows which events were applied"
        )),
        SourceKind::Documents => {
            let model = ReadModel::compile(name, declaration);
            let can_build = model.is_ok_and(|model| model.is_buildable_from_documents());
            (!can_build).then(|| format!(
                "`{name}` cannot be built from a source of documents: a clause depends on earlier changes, which the source does not keep; only `mirror`, `$set`, `$unset` and `delete` can be built"
            ))
        }
    }
}

/// A version that cannot be built from this source serves at once, and lacks events.
fn buildable(generation: &Generation, name: &str, version: ModelVersion, source: &SourceConfig) -> ModelVersion {
    if unbuildable_reason(name, &version.declaration, source).is_none() {
        return version;
    }
    let incomplete = Some((incomplete_reason(generation, name), DateTime::now()));
    ModelVersion { incomplete, ..ModelVersion::first(name, version.declaration, version.fingerprint) }
}

#[cfg(test)]
mod tests {
    use pipeline::generation::ChangeRequest;

    use super::*;

    fn requested(source: &SourceConfig, declared: serde_json::Value) -> ChangeStep {
        let declaration = serde_json::from_value(declared).unwrap();
        let serving = [("stock".to_owned(), ModelVersion::first("stock", declaration, "1".to_owned()))].into();
        let request =
            ChangeRequest { kind: RequestKind::Rebuild, models: vec!["stock".into()], rate: None, by: "ann".into() };
        let generation = Generation { request: Some(request), ..Generation::first(serving) };
        decide_change(&generation, &ModelProposal::default(), false, true, source)
    }

    #[test]
    fn what_the_source_cannot_give_again_is_not_rebuilt() {
        let documents = SourceConfig::documents("shop", "products");
        let unsequenced = SourceConfig::events("shop", "events");
        let counts = serde_json::json!({ "when": { "update": { "$inc": { "changes": 1 } } } });
        for (source, reason) in [(&documents, "depends on earlier changes"), (&unsequenced, "has no sequence")] {
            let ChangeStep::Store(next) = requested(source, counts.clone()) else { panic!("nothing is stored") };
            assert_eq!((next.stage, next.number, &next.request), (GenerationStage::Active, 1, &None));
            assert!(next.problem.as_ref().is_some_and(|problem| problem.contains(reason)), "{:?}", next.problem);
            assert!(next.serving["stock"].incomplete.is_none(), "what serves stays as it is");
        }
        let ChangeStep::Store(next) = requested(&documents, serde_json::json!({ "mirror": true })) else { panic!() };
        assert_eq!((next.stage, next.number), (GenerationStage::Building, 2));
    }

    #[test]
    fn a_proposal_waits_for_agreement_and_for_a_request() {
        let source = SourceConfig { sequence: Some("version".into()), ..SourceConfig::events("shop", "events") };
        let declared = serde_json::json!({ "when": { "Added": { "$inc": { "count": 1 } } } });
        let proposal = ModelProposal {
            declarations: [("stock".to_owned(), serde_json::from_value(declared).unwrap())].into(),
            fingerprints: [("stock".to_owned(), "1".to_owned())].into(),
        };
        let generation = Generation::first([].into());
        let decide = |agreed, automatic| decide_change(&generation, &proposal, agreed, automatic, &source);
        assert_eq!(decide(true, false), ChangeStep::Nothing, "`read_models.on_change: wait`");
        assert_eq!(decide(false, true), ChangeStep::Nothing, "pods propose different read models");
        assert!(matches!(decide(true, true), ChangeStep::Store(next) if next.stage == GenerationStage::Building));
    }
}
