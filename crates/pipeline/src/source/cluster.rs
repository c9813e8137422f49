//! The cluster that holds the source.

use mongodb::Client;
use mongodb::bson::{Document, doc, oid::ObjectId};
use mongodb::error::Error;

/// What mongos says of itself.
const MONGOS: &str = "isdbgrid";

/// The identity of the cluster, which no other cluster has and which survives every reconfiguration. `None` if the user may not read it: that needs
/// `replSetGetConfig` (role `clusterMonitor`), through mongos `find` on `config.version`.
pub async fn read_cluster_id(server: &Client) -> Result<Option<String>, Error> {
    let admin = server.database("admin");
    let hello = admin.run_command(doc! { "hello": 1 }).await?;
    if hello.get_str("msg").is_ok_and(|msg| msg == MONGOS) {
        let versions = server.database("config").collection::<Document>("version");
        let version = unless_refused(versions.find_one(doc! {}).await)?.flatten();
        return Ok(version.and_then(|version| name("sharded cluster", version.get_object_id("clusterId").ok())));
    }
    let config = unless_refused(admin.run_command(doc! { "replSetGetConfig": 1 }).await)?;
    let settings = config.as_ref().and_then(|reply| reply.get_document("config").ok()?.get_document("settings").ok());
    Ok(settings.and_then(|settings| name("replica set", settings.get_object_id("replicaSetId").ok())))
}

fn name(kind: &str, id: Option<ObjectId>) -> Option<String> {
    id.map(|id| format!("{kind} {id}"))
}

/// An answer of the server that says no is final; every other error may pass.
fn unless_refused<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_refusal(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_refusal(error: &Error) -> bool {
    use crate::error_policy::{ErrorClass, classify_mongo};
    mongo_error::error_code(error).is_some() && classify_mongo(error) != ErrorClass::Transient
}
