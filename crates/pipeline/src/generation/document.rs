//! The generation as stored: pure reading and writing of the document, and what each stage means for pods.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};

use super::error::Error;
use crate::source::{SourceConfig, SourceKind};
use crate::view::{AppliedModel, FIRST_GENERATION, ModelSet, ModelSetMode, ReadModel, ReadModelDeclaration};

/// Format version in the document. A newer version of Headwater may write a higher one.
pub(super) const FORMAT: i64 = 1;

/// What pods apply now.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Rises with every stage that pods must know.
    pub number: u64,
    /// Rises with every write of the document.
    pub revision: i64,
    pub stage: GenerationStage,
    /// By name of the read model: what readers see.
    pub serving: BTreeMap<String, ModelVersion>,
    /// While building or switching: the set that comes next. Versions that do not change are in both.
    pub next: BTreeMap<String, ModelVersion>,
    /// No longer declared, and kept until somebody drops them.
    pub kept: BTreeMap<String, ModelVersion>,
    /// The versions that the last change replaced, for a rollback.
    pub previous: BTreeMap<String, ModelVersion>,
    /// A proposal that was rolled back or cancelled: it is not tried again.
    pub declined: Option<String>,
    pub request: Option<ChangeRequest>,
    /// When the stage began.
    pub since: Option<DateTime>,
    /// Why the change does not go on, for an operator.
    pub problem: Option<String>,
    /// The last progress of a build.
    pub build: Document,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationStage {
    Active,
    Building,
    Switching,
}

/// One definition of a read model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelVersion {
    pub declaration: ReadModelDeclaration,
    pub fingerprint: String,
    /// Cursors of this generation and later hold for it.
    pub since: u64,
    /// The collection that pods write.
    pub collection: String,
    /// Set when its switch begins: the UUID of the built collection, in hex. Another collection of that name is not the build.
    pub built: Option<String>,
    /// It lacks events, or holds some as an earlier declaration had it.
    pub incomplete: Option<(IncompleteReason, DateTime)>,
}

/// Why a read model lacks events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncompleteReason {
    /// Declared after events had been applied.
    Added,
    /// Its declaration changed after events had been applied.
    Changed,
    /// The source no longer has all events of some aggregates.
    MissingHistory,
}

/// What an operator asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRequest {
    pub kind: RequestKind,
    pub models: Vec<String>,
    /// Events per second; `None`: as fast as possible.
    pub rate: Option<i64>,
    pub by: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Rebuild,
    Rollback,
    Cancel,
    /// Goes on although aggregates could not be built.
    Accept,
}

/// What a read model is to readers, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionState {
    Complete,
    Incomplete,
    Building,
    Removed,
}

macro_rules! codes {
    ($type:ty { $($variant:ident = $code:literal),* $(,)? }) => {
        impl $type {
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            fn parse(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

codes!(GenerationStage { Active = "active", Building = "building", Switching = "switching" });
codes!(IncompleteReason { Added = "added", Changed = "changed", MissingHistory = "missing_history" });
codes!(RequestKind { Rebuild = "rebuild", Rollback = "rollback", Cancel = "cancel", Accept = "accept" });

impl VersionState {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Incomplete => "incomplete",
            Self::Building => "building",
            Self::Removed => "removed",
        }
    }
}

impl fmt::Display for IncompleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added after events had been applied",
            Self::Changed => "changed after events had been applied",
            Self::MissingHistory => "the source lacks earlier events of some aggregates",
        })
    }
}

impl ModelVersion {
    /// A version that all cursors hold for.
    pub fn first(name: &str, declaration: ReadModelDeclaration, fingerprint: String) -> Self {
        Self {
            declaration,
            fingerprint,
            since: FIRST_GENERATION,
            collection: name.to_owned(),
            built: None,
            incomplete: None,
        }
    }

    /// A version that is built from the source, in a collection of its own.
    pub fn to_build(name: &str, declaration: ReadModelDeclaration, fingerprint: String, since: u64) -> Self {
        let collection = format!("{BUILD_PREFIX}{since}_{name}");
        Self { declaration, fingerprint, since, collection, built: None, incomplete: None }
    }

    /// Aggregates are parked under this name: a version of its own has entries of its own.
    pub fn parked_name(&self, name: &str) -> String {
        if self.since == FIRST_GENERATION { name.to_owned() } else { format!("{name}@{}", self.since) }
    }

    pub fn compile(&self, name: &str) -> Result<ReadModel, Error> {
        let model = ReadModel::compile(name, &self.declaration).map_err(Error::InvalidModels)?;
        Ok(model.with_version(&self.parked_name(name), &self.collection))
    }

    fn applied(&self, name: &str) -> Result<AppliedModel, Error> {
        Ok(AppliedModel {
            projection: Arc::new(self.compile(name)?),
            name: name.to_owned(),
            since: self.since,
            is_building: self.collection.starts_with(BUILD_PREFIX),
        })
    }
}

/// Collections of versions that are being built.
pub(super) use crate::view::BUILD_PREFIX;

impl Generation {
    /// The first generation of a pipeline.
    pub fn first(serving: BTreeMap<String, ModelVersion>) -> Self {
        Self {
            number: FIRST_GENERATION,
            revision: 1,
            stage: GenerationStage::Active,
            serving,
            next: BTreeMap::new(),
            kept: BTreeMap::new(),
            previous: BTreeMap::new(),
            declined: None,
            request: None,
            since: None,
            problem: None,
            build: Document::new(),
        }
    }

    /// What the applier of a pod applies.
    pub fn model_set(&self) -> Result<ModelSet, Error> {
        let mut models = vec![];
        for (name, version) in &self.serving {
            models.push(version.applied(name)?);
        }
        for (name, version) in self.to_build() {
            models.push(AppliedModel { name: format!("{name} (building)"), ..version.applied(name)? });
        }
        let mode = match self.stage {
            GenerationStage::Active | GenerationStage::Building => ModelSetMode::Live,
            GenerationStage::Switching => ModelSetMode::Paused,
        };
        Ok(ModelSet { generation: self.number, models, mode })
    }

    /// What a build applies.
    pub fn build_set(&self, source: &SourceConfig) -> Result<ModelSet, Error> {
        let own_key = Bson::from(format!("$$event.{}", source.aggregate_id));
        let models: Result<_, _> = self
            .to_build()
            .map(|(name, version)| {
                let mut version = version.clone();
                // The same as the default, by which a build knows that no other aggregate writes the document.
                if source.kind == SourceKind::Events && version.declaration.key.as_ref() == Some(&own_key) {
                    version.declaration.key = None;
                }
                version.applied(name)
            })
            .collect();
        Ok(ModelSet { generation: self.number, models: models?, mode: ModelSetMode::Build })
    }

    /// The versions that are built, and do not serve yet.
    pub fn to_build(&self) -> impl Iterator<Item = (&String, &ModelVersion)> {
        self.next.iter().filter(|(name, version)| {
            self.serving.get(*name).is_none_or(|serving| serving.since != version.since)
                && version.collection.starts_with(BUILD_PREFIX)
        })
    }

    /// Whether these are the definitions that serve, by name and fingerprint.
    pub fn serves(&self, fingerprints: &BTreeMap<String, String>) -> bool {
        let serving = self.serving.iter().map(|(name, version)| (name, &version.fingerprint));
        serving.eq(fingerprints.iter())
    }

    /// Each read model with its state, in the order of names.
    pub fn states(&self) -> BTreeMap<&str, VersionState> {
        let mut states = BTreeMap::new();
        states.extend(self.kept.keys().map(|name| (name.as_str(), VersionState::Removed)));
        states.extend(self.serving.iter().map(|(name, version)| match version.incomplete {
            Some(_) => (name.as_str(), VersionState::Incomplete),
            None => (name.as_str(), VersionState::Complete),
        }));
        states.extend(self.to_build().map(|(name, _)| (name.as_str(), VersionState::Building)));
        states
    }

    pub(super) fn to_document(&self, pipeline: &str) -> Document {
        let request = self.request.as_ref().map(|request| {
            doc! {
                "kind": request.kind.code(), "models": &request.models, "rate": request.rate, "by": &request.by,
            }
        });
        doc! {
            "_id": pipeline,
            "format": FORMAT,
            "number": to_i64(self.number),
            "revision": self.revision,
            "stage": self.stage.code(),
            "serving": write_versions(&self.serving),
            "next": write_versions(&self.next),
            "kept": write_versions(&self.kept),
            "previous": write_versions(&self.previous),
            "declined": self.declined.clone(),
            "request": request,
            "since": self.since,
            "problem": self.problem.clone(),
            "build": self.build.clone(),
        }
    }

    pub(super) fn read(document: &Document) -> Result<Self, Error> {
        match document.get_i64("format") {
            Ok(FORMAT) => {}
            Ok(found) => return Err(Error::Format { found, known: FORMAT }),
            Err(_) => return Err(Error::Unreadable("format")),
        }
        let stage = document.get_str("stage").ok().and_then(GenerationStage::parse);
        Ok(Self {
            number: document.get_i64("number").map_err(|_| Error::Unreadable("number"))?.unsigned_abs(),
            revision: document.get_i64("revision").map_err(|_| Error::Unreadable("revision"))?,
            stage: stage.ok_or(Error::Unreadable("stage"))?,
            serving: read_versions(document, "serving")?,
            next: read_versions(document, "next")?,
            kept: read_versions(document, "kept")?,
            previous: read_versions(document, "previous")?,
            declined: document.get_str("declined").ok().map(str::to_owned),
            request: document.get_document("request").ok().and_then(read_request),
            since: document.get_datetime("since").ok().copied(),
            problem: document.get_str("problem").ok().map(str::to_owned),
            build: document.get_document("build").cloned().unwrap_or_default(),
        })
    }
}

/// A list, not a map, because a name may contain dots. The declaration as bytes, because its field names begin with `$`.
fn write_versions(versions: &BTreeMap<String, ModelVersion>) -> Vec<Document> {
    let write = |(name, version): (&String, &ModelVersion)| {
        let bytes = mongodb::bson::serialize_to_vec(&version.declaration).expect("a declaration was read from text");
        let incomplete = version.incomplete.map(|(reason, since)| doc! { "reason": reason.code(), "since": since });
        doc! {
            "name": name,
            "declaration": Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes }),
            "fingerprint": &version.fingerprint,
            "since": to_i64(version.since),
            "collection": &version.collection,
            "built": version.built.clone(),
            "incomplete": incomplete,
        }
    };
    versions.iter().map(write).collect()
}

fn read_versions(document: &Document, field: &'static str) -> Result<BTreeMap<String, ModelVersion>, Error> {
    let list = document.get_array(field).map_err(|_| Error::Unreadable(field))?;
    let read = |version: &Bson| {
        let version = version.as_document()?;
        let bytes = version.get_binary_generic("declaration").ok()?;
        let incomplete = version.get_document("incomplete").ok().and_then(|incomplete| {
            let reason = IncompleteReason::parse(incomplete.get_str("reason").ok()?)?;
            Some((reason, *incomplete.get_datetime("since").ok()?))
        });
        let read = ModelVersion {
            declaration: mongodb::bson::deserialize_from_slice(bytes).ok()?,
            fingerprint: version.get_str("fingerprint").ok()?.to_owned(),
            since: version.get_i64("since").ok()?.unsigned_abs(),
            collection: version.get_str("collection").ok()?.to_owned(),
            built: version.get_str("built").ok().map(str::to_owned),
            incomplete,
        };
        Some((version.get_str("name").ok()?.to_owned(), read))
    };
    list.iter().map(|version| read(version).ok_or(Error::Unreadable(field))).collect()
}

fn read_request(request: &Document) -> Option<ChangeRequest> {
    Some(ChangeRequest {
        kind: RequestKind::parse(request.get_str("kind").ok()?)?,
        models: request.get_array("models").ok()?.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect(),
        rate: request.get_i64("rate").ok(),
        by: request.get_str("by").unwrap_or_default().to_owned(),
    })
}

/// BSON has no unsigned 64-bit integer.
fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
