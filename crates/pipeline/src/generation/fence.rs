//! The fence: a validator of the cursor collection that refuses what pods of earlier generations write.
//!
//! `collMod` waits for open transactions on the collection. One that began before gets a write conflict, and every later write of an earlier
//! generation error 121. No cursor is rewritten. Several pipelines may share the collection, each with its own clause.

use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

use super::error::{Error, store_error};
use crate::failpoints::Failpoint;
use crate::stored::cursors::{CURSORS, FENCED_FORMAT, FLOOR_COLLECTION};
use crate::view;

/// After it returns, no transaction of an earlier generation commits.
pub async fn raise_fence(views: &Database, pipeline: &str, number: u64) -> Result<(), Error> {
    if Failpoint::NoGenerationCheck.is_enabled() {
        return Ok(());
    }
    let clauses = read_clauses(views).await?;
    let raised = raise_clause(clauses, pipeline, i64::try_from(number).unwrap_or(i64::MAX));
    let command = doc! {
        "collMod": CURSORS,
        "validator": { "$and": raised },
        "validationLevel": "strict",
        "validationAction": "error",
        "writeConcern": { "w": "majority" },
    };
    let raised = async { views.run_command(command).await };
    let raised = view::without_orphans(views.client(), pipeline, raised).await;
    raised.map(drop).map_err(store_error("raise the fence of the cursors"))
}

async fn read_clauses(views: &Database) -> Result<Vec<Document>, Error> {
    let command = doc! { "listCollections": 1, "filter": { "name": CURSORS } };
    let reply = views.run_command(command).await.map_err(store_error("read the fence of the cursors"))?;
    let first = || reply.get_document("cursor").ok()?.get_array("firstBatch").ok()?.first()?.as_document();
    let validator = first().and_then(|found| found.get_document("options").ok()?.get_document("validator").ok());
    let clauses = validator.and_then(|validator| validator.get_array("$and").ok());
    Ok(clauses.into_iter().flatten().filter_map(Bson::as_document).cloned().collect())
}

/// The clauses with that of the pipeline at this generation, or a later one if it has one already.
fn raise_clause(mut clauses: Vec<Document>, pipeline: &str, number: i64) -> Vec<Document> {
    let of_pipeline = |clause: &Document| {
        let other = clause.get_array("$or").ok()?.first()?.as_document()?.get_document("_id.pipeline").ok()?;
        (other.get_str("$ne").ok()? == pipeline).then(|| fenced_at(clause))
    };
    let present = clauses.iter().find_map(of_pipeline).flatten().unwrap_or(0);
    clauses.retain(|clause| of_pipeline(clause).is_none());
    clauses.push(doc! { "$or": [
        { "_id.pipeline": { "$ne": pipeline } },
        // The epoch floor, which no generation concerns.
        { "_id.collection": FLOOR_COLLECTION },
        { "format": { "$gte": FENCED_FORMAT }, "generation": { "$gte": number.max(present) } },
    ] });
    clauses
}

fn fenced_at(clause: &Document) -> Option<i64> {
    let fence = clause.get_array("$or").ok()?.get(2)?.as_document()?;
    fence.get_document("generation").ok()?.get_i64("$gte").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pipeline_has_one_clause_that_only_rises() {
        let clauses = raise_clause(vec![], "shop", 2);
        let clauses = raise_clause(clauses, "other", 5);
        let clauses = raise_clause(clauses, "shop", 3);
        let clauses = raise_clause(clauses, "shop", 2);
        let fences: Vec<_> = clauses.iter().map(|clause| fenced_at(clause).unwrap()).collect();
        assert_eq!(fences, [5, 3]);
    }
}
