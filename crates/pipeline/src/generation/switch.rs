//! Prepares the collections of a build, and switches them on. Every step may be repeated by any pod.

use std::collections::BTreeMap;

use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

use super::document::{BUILD_PREFIX, Generation, GenerationStage, ModelVersion};
use super::error::{Error, store_error};
use super::fence::raise_fence;
use super::store::GenerationStore;
use crate::view::{self, Projection};

const NAMESPACE_NOT_FOUND: i32 = 26;
const DUPLICATE_KEY: i32 = 11000;

/// Creates the collections and indexes of the versions that are built, except unique ones. An index that cannot be made fails here, before the build.
pub async fn prepare_build(views: &Database, pipeline: &str, generation: &Generation) -> Result<(), Error> {
    for (name, version) in generation.to_build() {
        let models = [Box::new(version.compile(name)?) as Box<dyn view::Projection>];
        view::without_orphans(views.client(), pipeline, view::prepare_build(views, &models)).await?;
    }
    Ok(())
}

/// Creates the unique indexes of the versions that are built. Only when all their documents are: on its way a build has states that live events never had,
/// such as the old e-mail address of one customer beside that of another one who got it later.
pub async fn create_unique_indexes(views: &Database, pipeline: &str, generation: &Generation) -> Result<(), Error> {
    for (name, version) in generation.to_build() {
        for index in version.compile(name)?.indexes().into_iter().filter(view::Index::is_unique) {
            let fields: Vec<_> = index.keys.keys().map(|field| format!("`{field}`")).collect();
            let created = view::without_orphans(views.client(), pipeline, view::create_index(views, index)).await;
            created.map_err(|error| match &error {
                view::Error::Store { source, .. } if source.code() == Some(DUPLICATE_KEY) => {
                    Error::NotUnique { model: name.clone(), fields: fields.join(", ") }
                }
                _ => error.into(),
            })?;
        }
    }
    Ok(())
}

/// What operators discarded from a definition stays discarded if the same one is built anew.
pub async fn carry_discards(views: &Database, pipeline: &str, generation: &Generation) -> Result<(), Error> {
    for (name, version) in generation.to_build() {
        let earlier = [&generation.serving, &generation.previous].into_iter().filter_map(|versions| versions.get(name));
        for earlier in earlier.filter(|earlier| earlier.fingerprint == version.fingerprint) {
            let (from, to) = (earlier.parked_name(name), version.parked_name(name));
            view::DiscardedEvents::carry_over(views, pipeline, &from, &to).await?;
        }
    }
    Ok(())
}

/// Fences off earlier generations, renames the built collections, and activates the generation. Returns the active one, or `None` if another pod
/// was faster.
pub async fn complete_switch(
    store: &GenerationStore,
    views: &Database,
    switching: Generation,
) -> Result<Option<Generation>, Error> {
    debug_assert_eq!(switching.stage, GenerationStage::Switching);
    raise_fence(views, store.pipeline(), switching.number).await?;
    let mut next = switching.next.clone();
    for (name, version) in &mut next {
        if version.collection != *name {
            view::without_orphans(views.client(), store.pipeline(), rename(views, version, name)).await?;
            version.collection.clone_from(name);
            version.built = None;
        }
    }
    let removed = |versions: &BTreeMap<String, ModelVersion>| {
        let gone = versions.iter().filter(|(name, _)| !next.contains_key(*name));
        gone.map(|(name, version)| (name.clone(), version.clone())).collect::<BTreeMap<_, _>>()
    };
    let mut kept = removed(&switching.kept);
    kept.extend(removed(&switching.serving));
    let mut previous = switching.previous.clone();
    for (name, version) in &switching.serving {
        let Some(successor) = next.get(name).filter(|successor| *successor != version) else { continue };
        // The same definition, built anew, does not replace what a rollback would go back to.
        if successor.fingerprint != version.fingerprint || !previous.contains_key(name) {
            previous.insert(name.clone(), version.clone());
        }
    }
    let active = Generation {
        stage: GenerationStage::Active,
        serving: next,
        next: BTreeMap::new(),
        kept,
        previous,
        request: None,
        problem: None,
        since: Some(mongodb::bson::DateTime::now()),
        ..switching
    };
    store.replace(active).await
}

/// Notes which collections were built, before the switch renames them.
pub async fn record_built_collections(views: &Database, switching: &mut Generation) -> Result<(), Error> {
    let names: Vec<String> = switching.to_build().map(|(name, _)| name.clone()).collect();
    for name in &names {
        let Some(version) = switching.next.get_mut(name) else { continue };
        version.built = collection_uuid(views, &version.collection).await?;
    }
    Ok(())
}

/// In hex; `None` if there is no such collection.
async fn collection_uuid(views: &Database, collection: &str) -> Result<Option<String>, Error> {
    let command = doc! { "listCollections": 1, "filter": { "name": collection } };
    let reply = views.run_command(command).await.map_err(store_error("read the id of the built collection"))?;
    let found = reply.get_document("cursor").ok().and_then(|cursor| cursor.get_array("firstBatch").ok()?.first());
    let info = found.and_then(Bson::as_document).and_then(|found| found.get_document("info").ok());
    let uuid = info.and_then(|info| match info.get("uuid") {
        Some(Bson::Binary(uuid)) => Some(uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        _ => None,
    });
    Ok(uuid)
}

/// Readers find documents at every moment: the rename replaces the collection in one step. Repeated: the built collection is gone, and done. A pod that
/// knows an earlier stage may have created an empty one of its name since.
async fn rename(views: &Database, version: &ModelVersion, to: &str) -> Result<(), Error> {
    let from = &version.collection;
    if version.built.is_some() && collection_uuid(views, from).await? != version.built {
        return Ok(());
    }
    let namespace = |collection: &str| format!("{}.{collection}", views.name());
    let command = doc! {
        "renameCollection": namespace(from), "to": namespace(to), "dropTarget": true,
        "writeConcern": { "w": "majority" },
    };
    match views.client().database("admin").run_command(command).await {
        Ok(_) => Ok(()),
        Err(error) if mongo_error::error_code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(()),
        Err(error) => Err(store_error("rename the built collection")(error)),
    }
}

/// Drops the collections of builds that were cancelled. `active`: no build is in progress.
pub async fn drop_builds(views: &Database, active: &Generation) -> Result<(), Error> {
    let failed = store_error("list the collections of cancelled builds");
    let names = views.list_collection_names().filter(doc! { "name": { "$regex": format!("^{BUILD_PREFIX}") } });
    for collection in names.await.map_err(failed)? {
        let number = collection.strip_prefix(BUILD_PREFIX).and_then(|rest| rest.split_once('_'));
        // Another pipeline in this database may build now, in a generation of its own: its read models have other names.
        let is_own = |name: &str| {
            [&active.serving, &active.kept, &active.previous].iter().any(|versions| versions.contains_key(name))
                || active
                    .declined
                    .iter()
                    .flat_map(|declined| declined.split(','))
                    .any(|model| model.split_once('=').is_some_and(|(declined, _)| declined == name))
        };
        if let Some((number, name)) = number
            && number.parse::<u64>().is_ok_and(|number| number <= active.number)
            && is_own(name)
        {
            let dropped = views.collection::<Document>(&collection).drop().await;
            dropped.map_err(store_error("drop the collection of a cancelled build"))?;
        }
    }
    Ok(())
}

/// A build needs as much space as the present collections of its read models. `None`: there is enough, or the server does not say.
pub async fn free_space_problem(views: &Database, generation: &Generation) -> Result<Option<String>, Error> {
    let stats = views.run_command(doc! { "dbStats": 1 }).await.map_err(store_error("read the size of the database"))?;
    let figure = |document: &Document, field: &str| match document.get(field) {
        Some(Bson::Double(value)) => Some(*value),
        Some(Bson::Int64(value)) => Some(*value as f64),
        Some(Bson::Int32(value)) => Some(f64::from(*value)),
        _ => None,
    };
    let (Some(total), Some(used)) = (figure(&stats, "fsTotalSize"), figure(&stats, "fsUsedSize")) else {
        return Ok(None);
    };
    let mut needed = 0.0;
    for (name, _) in generation.to_build() {
        // A collection that does not exist has no size.
        if let Ok(stats) = views.run_command(doc! { "collStats": name }).await {
            needed += figure(&stats, "storageSize").unwrap_or(0.0) + figure(&stats, "totalIndexSize").unwrap_or(0.0);
        }
    }
    let free = total - used;
    let mebibytes = |bytes: f64| (bytes / 1_048_576.0).round();
    Ok((needed > free).then(|| {
        format!(
            "not enough disk space: the build needs about {} MiB, and {} MiB are free",
            mebibytes(needed),
            mebibytes(free)
        )
    }))
}
