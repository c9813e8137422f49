//! Creates what must exist before the first event: collections (no transaction should have to) and indexes.

use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

use super::error::Error;
use super::projection::{Index, Projection};
use super::{CURSORS, PARKED_EVENTS};

const NAMESPACE_EXISTS: i32 = 48;

/// How the names of collections begin that a build fills.
pub(crate) const BUILD_PREFIX: &str = "_headwater_build_";

/// Creates what is missing and leaves the rest. An index that differs from an existing one of its name is an error. Collections of a build are left to the
/// build: after the switch has renamed one, an empty one of its name could be renamed over it.
pub async fn prepare(database: &Database, models: &[impl AsRef<dyn Projection>]) -> Result<(), Error> {
    let is_wanted = |index: &Index| !index.collection.starts_with(BUILD_PREFIX);
    prepare_indexes(database, models, |name| !name.starts_with(BUILD_PREFIX), is_wanted).await
}

/// As [`prepare`], without unique indexes: a build writes documents in another order than live events did.
pub(crate) async fn prepare_build(database: &Database, models: &[impl AsRef<dyn Projection>]) -> Result<(), Error> {
    prepare_indexes(database, models, |_| true, |index| !index.is_unique()).await
}

async fn prepare_indexes(
    database: &Database,
    models: &[impl AsRef<dyn Projection>],
    is_created: impl Fn(&str) -> bool,
    is_wanted: impl Fn(&Index) -> bool,
) -> Result<(), Error> {
    let mut collections = vec![CURSORS.to_owned(), PARKED_EVENTS.to_owned()];
    let of_models = models.iter().flat_map(|model| model.as_ref().collections());
    collections.extend(of_models.filter(|collection| is_created(collection)));
    for collection in &collections {
        create_collection(database, collection).await?;
    }
    // Few cursors are parked: the partial index lists them without reading all cursors.
    let parked = Index {
        collection: CURSORS.to_owned(),
        keys: doc! { "_id.pipeline": 1 },
        options: doc! { "name": "headwater_parked", "partialFilterExpression": { "parked": { "$exists": true } } },
    };
    create_index(database, parked).await?;
    for wanted in models.iter().flat_map(|model| model.as_ref().indexes()).filter(is_wanted) {
        create_index(database, wanted).await?;
    }
    Ok(())
}

async fn create_collection(database: &Database, collection: &str) -> Result<(), Error> {
    match database.create_collection(collection).await {
        Err(error) if mongo_error::error_code(&error) != Some(NAMESPACE_EXISTS) => {
            Err(store_error(database, "create collection", error))
        }
        Err(_) | Ok(()) => Ok(()),
    }
}

pub(crate) async fn create_index(database: &Database, index: Index) -> Result<(), Error> {
    let mut wanted = doc! { "key": index.keys.clone(), "name": default_index_name(&index.keys) };
    wanted.extend(index.options);
    let command = doc! {
        "createIndexes": index.collection,
        "indexes": [wanted],
        // An index that is rolled back would let a unique violation through.
        "writeConcern": { "w": "majority" },
    };
    let created = database.run_command(command).await;
    created.map(drop).map_err(|error| store_error(database, "create index", error))
}

/// The default name that MongoDB shells use.
fn default_index_name(keys: &Document) -> String {
    let part = |(field, direction): (&String, &Bson)| match direction {
        Bson::String(kind) => format!("{field}_{kind}"),
        other => format!("{field}_{other}"),
    };
    keys.iter().map(part).collect::<Vec<_>>().join("_")
}

fn store_error(database: &Database, action: &'static str, error: mongodb::error::Error) -> Error {
    Error::Store { action, database: database.name().to_owned(), source: error.into() }
}
