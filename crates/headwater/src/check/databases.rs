//! Checks the databases of coordination and read models: rights, indexes, and whether the server accepts the declarations.

use futures_util::TryStreamExt;
use mongo_error::DriverError;
use mongodb::Database;
use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use pipeline::view::{self, CURSORS, PARKED_EVENTS, Projection};

use super::CheckFinding;
use super::privileges::UserPrivileges;
use super::source::{hello, is_router};
use crate::config::{Config, reserved};
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};

const UNAUTHORIZED: i32 = 13;
const COORDINATION: &str = "coordination";
/// Rights that cannot be tried: each would write or create something.
const UNTRIED_RIGHTS: [&str; 4] = ["insert", "remove", "createCollection", "createIndex"];

pub(super) async fn check_coordination(config: &Config) -> anyhow::Result<Vec<CheckFinding>> {
    const SECTION: &str = COORDINATION;
    let client = connect::mongo_client(&config.coordination.uri, "coordination.uri", SERVER_SELECTION_TIMEOUT).await?;
    let hello = match hello(&client).await {
        Ok(hello) => hello,
        Err(finding) => return Ok(vec![CheckFinding { about: SECTION, ..finding }]),
    };
    let mut findings: Vec<_> = check_lease_server(&hello).into_iter().collect();
    let database = client.database(&config.coordination.database);
    findings.extend(check_rights(&database, SECTION, &reserved::COORDINATION_COLLECTIONS).await);
    if let Ok(indexes) = list_indexes(&database, lease::mongo::COLLECTION).await {
        findings.extend(check_ttl_indexes(&indexes));
    }
    Ok(findings)
}

pub(super) async fn check_read_models(config: &Config) -> anyhow::Result<Vec<CheckFinding>> {
    const SECTION: &str = "read_models";
    let models = &config.read_models.models;
    if models.is_empty() {
        return Ok(vec![]);
    }
    let client = connect::mongo_client(&config.read_models.uri, "read_models.uri", SERVER_SELECTION_TIMEOUT).await?;
    let hello = match hello(&client).await {
        Ok(hello) => hello,
        Err(finding) => return Ok(vec![CheckFinding { about: SECTION, ..finding }]),
    };
    if !hello.contains_key("setName") && !is_router(&hello) {
        let problem = "is a standalone mongod, which has no transactions";
        return Ok(vec![CheckFinding::error(SECTION, problem, "use a replica set; one member is enough")]);
    }
    let database = client.database(&config.read_models.database);
    let names: Vec<_> = models.iter().map(|model| model.name()).chain([CURSORS, PARKED_EVENTS]).collect();
    let mut findings = check_rights(&database, SECTION, &names).await;
    if !findings.is_empty() {
        return Ok(findings);
    }
    for model in models {
        match view::validate(&database, model).await {
            Ok(mistakes) => findings.extend(mistakes.iter().map(|mistake| {
                let text = config.read_models.declared.explain(std::slice::from_ref(mistake)).to_string();
                CheckFinding::error(SECTION, text.replace("\n  ", ": "), "fix the declaration")
            })),
            Err(error) => {
                let problem = format!("`{}` cannot be checked: {error}", model.name());
                findings.push(CheckFinding::error(SECTION, problem, "fix the cause and check again"));
            }
        }
    }
    Ok(findings)
}

fn check_lease_server(hello: &Document) -> Option<CheckFinding> {
    if is_router(hello) {
        let problem = "is reached through mongos: the lease then depends on the clock and the availability of mongos";
        let fix = "set `coordination.uri` to a replica set of its own; a small one is enough";
        return Some(CheckFinding::warning(COORDINATION, problem, fix));
    }
    (!hello.contains_key("setName")).then(|| {
        CheckFinding::error(COORDINATION, "is a standalone mongod, which has no majority writes", "use a replica set")
    })
}

/// Tries to read and update each collection, with statements that match no document, and reads the list of the other rights.
async fn check_rights(database: &Database, about: &'static str, collections: &[&str]) -> Vec<CheckFinding> {
    let mut findings = check_listed_rights(database, about, collections).await;
    for name in collections {
        let collection = database.collection::<Document>(name);
        // Matches no document, but the server still checks the right.
        let nobody = doc! { "_id": { "$in": [] } };
        let read = collection.find_one(nobody.clone()).await.map(drop);
        let written = collection.update_one(nobody, doc! { "$set": { "checked": true } }).await.map(drop);
        for (right, tried) in [("find", read), ("update", written)] {
            let Err(error) = tried else { continue };
            let error = DriverError::from(error);
            let fix = if error.code() == Some(UNAUTHORIZED) {
                describe_grant(database)
            } else {
                "fix the cause and check again".to_owned()
            };
            let problem = format!("`{right}` on `{}.{name}` is refused: {error}", database.name());
            findings.push(CheckFinding::error(about, problem, fix));
        }
    }
    findings
}

/// Nothing, if nobody is logged in or the list cannot be read.
async fn check_listed_rights(database: &Database, about: &'static str, collections: &[&str]) -> Vec<CheckFinding> {
    let Ok(Some(privileges)) = UserPrivileges::read(database.client()).await else { return vec![] };
    let check = |right| {
        let missing: Vec<_> =
            collections.iter().filter(|name| !privileges.allow(database.name(), name, right)).collect();
        let (first, others) = missing.split_first()?;
        let others = if others.is_empty() { String::new() } else { format!(" and {} more collections", others.len()) };
        let problem = format!("`{right}` on `{}.{first}`{others} is not granted", database.name());
        Some(CheckFinding::error(about, problem, describe_grant(database)))
    };
    UNTRIED_RIGHTS.into_iter().filter_map(check).collect()
}

fn describe_grant(database: &Database) -> String {
    format!("grant the user `readWrite` on `{}`, or the role `headwaterPod` of deploy/mongodb", database.name())
}

async fn list_indexes(database: &Database, collection: &str) -> mongodb::error::Result<Vec<IndexModel>> {
    database.collection::<Document>(collection).list_indexes().await?.try_collect().await
}

fn check_ttl_indexes(indexes: &[IndexModel]) -> Vec<CheckFinding> {
    let options = indexes.iter().filter_map(|index| index.options.as_ref());
    let expiring = options.filter(|options| options.expire_after.is_some()).map(|options| {
        let name = options.name.as_deref().unwrap_or("?");
        let leases = lease::mongo::COLLECTION;
        let problem = format!("the TTL index `{name}` on `{leases}` deletes leases, and with them the term counter");
        CheckFinding::error(COORDINATION, problem, format!("drop it: db.{leases}.dropIndex(\"{name}\")"))
    });
    expiring.collect()
}

#[cfg(test)]
mod tests {
    use super::super::FindingLevel;
    use super::*;

    #[test]
    fn leases_need_a_replica_set() {
        assert_eq!(check_lease_server(&doc! { "setName": "rs0" }), None);
        let level = |hello| check_lease_server(&hello).map(|finding| finding.level);
        assert_eq!(level(doc! { "msg": "isdbgrid" }), Some(FindingLevel::Warning));
        assert_eq!(level(doc! { "isWritablePrimary": true }), Some(FindingLevel::Error));
    }
}
