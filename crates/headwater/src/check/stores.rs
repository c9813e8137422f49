//! Where pods agree, and where read models are: rights, indexes, and whether the server can hold what is declared.

use std::time::Duration;

use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::Database;
use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use pipeline::view::{self, CURSORS, PARKED_EVENTS, Projection};

use super::Finding;
use super::source::{hello, is_router};
use crate::config::{Config, own};

const FOUND_WITHIN: Duration = Duration::from_secs(5);
const UNAUTHORIZED: i32 = 13;
const COORDINATION: &str = "coordination";

pub(super) async fn coordination(config: &Config) -> anyhow::Result<Vec<Finding>> {
    const ABOUT: &str = COORDINATION;
    let client = crate::run::client(&config.coordination.uri, "coordination.uri", Some(FOUND_WITHIN)).await?;
    let hello = match hello(&client).await {
        Ok(hello) => hello,
        Err(finding) => return Ok(vec![Finding { about: ABOUT, ..finding }]),
    };
    let mut findings: Vec<_> = unfit_for_leases(&hello).into_iter().collect();
    let database = client.database(&config.coordination.database);
    findings.extend(rights(&database, ABOUT, &own::COORDINATION).await);
    if let Ok(indexes) = indexes(&database, lease::mongo::COLLECTION).await {
        findings.extend(expiring_leases(&indexes));
    }
    Ok(findings)
}

pub(super) async fn views(config: &Config) -> anyhow::Result<Vec<Finding>> {
    const ABOUT: &str = "read_models";
    let models = &config.read_models.models;
    if models.is_empty() {
        return Ok(vec![]);
    }
    let client = crate::run::client(&config.read_models.uri, "read_models.uri", Some(FOUND_WITHIN)).await?;
    let hello = match hello(&client).await {
        Ok(hello) => hello,
        Err(finding) => return Ok(vec![Finding { about: ABOUT, ..finding }]),
    };
    if !hello.contains_key("setName") && !is_router(&hello) {
        let problem = "are on a standalone mongod, which has no transactions";
        return Ok(vec![Finding::error(ABOUT, problem, "use a replica set; one member is enough")]);
    }
    let database = client.database(&config.read_models.database);
    let names: Vec<_> = models.iter().map(|model| model.name()).chain([CURSORS, PARKED_EVENTS]).collect();
    let mut findings = rights(&database, ABOUT, &names).await;
    if !findings.is_empty() {
        return Ok(findings);
    }
    for model in models {
        match view::validate(&database, model).await {
            Ok(mistakes) => findings.extend(mistakes.iter().map(|mistake| {
                let told = config.read_models.declared.explain(std::slice::from_ref(mistake)).to_string();
                Finding::error(ABOUT, told.replace("\n  ", ": "), "mend the declaration")
            })),
            Err(error) => {
                let problem = format!("`{}` cannot be checked: {error}", model.name());
                findings.push(Finding::error(ABOUT, problem, "mend that and check again"));
            }
        }
    }
    Ok(findings)
}

fn unfit_for_leases(hello: &Document) -> Option<Finding> {
    if is_router(hello) {
        let problem = "goes through mongos, whose clock is then the lease's, and which is one more thing to be away";
        let remedy = "give `coordination.uri` a replica set of its own, small is enough";
        return Some(Finding::warning(COORDINATION, problem, remedy));
    }
    (!hello.contains_key("setName")).then(|| {
        Finding::error(COORDINATION, "is a standalone mongod, which cannot promise a majority", "use a replica set")
    })
}

/// Tries to read and to write each, without a trace.
async fn rights(database: &Database, about: &'static str, collections: &[&str]) -> Vec<Finding> {
    let mut findings = vec![];
    for name in collections {
        let collection = database.collection::<Document>(name);
        let nobody = doc! { "_id": { "$in": [] } };
        let read = collection.find_one(nobody.clone()).await.map(drop);
        let written = collection.update_one(nobody, doc! { "$set": { "checked": true } }).await.map(drop);
        for (right, tried) in [("find", read), ("update", written)] {
            let Err(error) = tried else { continue };
            let error = DriverError::from(error);
            let remedy = if error.code() == Some(UNAUTHORIZED) {
                format!("grant the user `readWrite` on `{}`", database.name())
            } else {
                "mend that and check again".to_owned()
            };
            let problem = format!("`{right}` on `{}.{name}` is refused: {error}", database.name());
            findings.push(Finding::error(about, problem, remedy));
        }
    }
    findings
}

async fn indexes(database: &Database, collection: &str) -> mongodb::error::Result<Vec<IndexModel>> {
    database.collection::<Document>(collection).list_indexes().await?.try_collect().await
}

fn expiring_leases(indexes: &[IndexModel]) -> Vec<Finding> {
    let options = indexes.iter().filter_map(|index| index.options.as_ref());
    let expiring = options.filter(|options| options.expire_after.is_some()).map(|options| {
        let name = options.name.as_deref().unwrap_or("?");
        let leases = lease::mongo::COLLECTION;
        let problem = format!("the TTL index `{name}` on `{leases}` deletes leases, and with them the count of terms");
        Finding::error(COORDINATION, problem, format!("drop it: db.{leases}.dropIndex(\"{name}\")"))
    });
    expiring.collect()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn leases_want_a_replica_set_of_their_own() {
        assert_eq!(unfit_for_leases(&doc! { "setName": "rs0" }), None);
        let level = |hello| unfit_for_leases(&hello).map(|finding| finding.level);
        assert_eq!(level(doc! { "msg": "isdbgrid" }), Some(Level::Warning));
        assert_eq!(level(doc! { "isWritablePrimary": true }), Some(Level::Error));
    }
}
