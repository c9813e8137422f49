//! Leader election as the notes sketch it: one `findOneAndUpdate` with the client's clock, every heartbeat.
//!
//! Kept so that the tests of the lease can be seen to fail: a pod whose clock is ahead steals a lease that is alive.

use mongodb::Client;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::ReturnDocument;
use tokio::sync::watch;

use super::contender::{Task, terminated};
use super::report::{Report, now};

pub(super) async fn contend(task: Task) {
    let client = Client::with_uri_str(&task.uri).await.expect("the contest's URI is valid");
    let leases = client.database(&task.database).collection::<Document>("leader_leases");
    let leading = watch::Sender::new(false);
    Report::Started { at: now() }.say();
    let elect = async {
        loop {
            let is_leader = elected(&leases, &task).await;
            leading.send_if_modified(|led| std::mem::replace(led, is_leader) != is_leader);
            tokio::time::sleep(task.config.heartbeat).await;
        }
    };
    tokio::select! {
        () = elect => {}
        () = act(leading.subscribe()) => {}
        () = terminated() => {}
    }
    Report::Ended { at: now() }.say();
}

#[expect(clippy::disallowed_methods, reason = "deciding by the wall clock is what is shown to be wrong")]
async fn elected(leases: &mongodb::Collection<Document>, task: &Task) -> bool {
    let now = DateTime::from_system_time(std::time::SystemTime::now());
    let ttl = i64::try_from(task.config.ttl.as_millis()).expect("a ttl is short");
    let filter = doc! { "_id": &task.key, "$or": [{ "leaderId": &task.pod_id }, { "expiresAt": { "$lt": now } }] };
    let expires_at = DateTime::from_millis(now.timestamp_millis() + ttl);
    let update = doc! { "$set": { "leaderId": &task.pod_id, "expiresAt": expires_at, "heartbeatAt": now } };
    let asked = leases.find_one_and_update(filter, update).upsert(true).return_document(ReturnDocument::After);
    let held = asked.await.ok().flatten();
    held.is_some_and(|lease| lease.get_str("leaderId").ok() == Some(task.pod_id.as_str()))
}

/// As long as it thinks that it leads, it acts; there is no term and no deadline to look at.
async fn act(mut leading: watch::Receiver<bool>) {
    let (mut from, mut gained) = (now(), false);
    loop {
        let leads = *leading.borrow_and_update();
        if leads && !gained {
            from = now();
            Report::Gained { term: 0, at: from, valid_until: from }.say();
        }
        if gained {
            let to = now();
            Report::Acted { term: 0, from, to }.say();
            from = to;
        }
        if !leads && gained {
            Report::Lost { term: 0, at: now(), drain: false }.say();
        }
        gained = leads;
        let tick = std::time::Duration::from_millis(25);
        let _ = tokio::time::timeout(tick, leading.changed()).await;
    }
}
