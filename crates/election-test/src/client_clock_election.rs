//! An unsafe leader election: one `findOneAndUpdate` with the client's clock, every heartbeat.
//!
//! It shows that the tests of the lease can fail: a pod whose clock is ahead steals a live lease.

use mongodb::Client;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::ReturnDocument;
use tokio::sync::watch;

use super::candidate::{CandidateConfig, wait_for_sigterm};
use super::report::{CandidateReport, now};

pub(super) async fn run(config: CandidateConfig) {
    let client = Client::with_uri_str(&config.uri).await.expect("the election's URI is valid");
    let leases = client.database(&config.database).collection::<Document>("leader_leases");
    let leading = watch::Sender::new(false);
    CandidateReport::Started { at: now() }.print();
    let elect = async {
        loop {
            let is_leader = try_to_lead(&leases, &config).await;
            leading.send_if_modified(|led| std::mem::replace(led, is_leader) != is_leader);
            tokio::time::sleep(config.config.heartbeat).await;
        }
    };
    tokio::select! {
        () = elect => {}
        () = act_while_leading(leading.subscribe()) => {}
        () = wait_for_sigterm() => {}
    }
    CandidateReport::Ended { at: now() }.print();
}

#[expect(clippy::disallowed_methods, reason = "the test shows that a wall clock must not decide")]
async fn try_to_lead(leases: &mongodb::Collection<Document>, config: &CandidateConfig) -> bool {
    let now = DateTime::from_system_time(std::time::SystemTime::now());
    let ttl = i64::try_from(config.config.ttl.as_millis()).expect("a ttl is short");
    let filter = doc! { "_id": &config.key, "$or": [{ "leaderId": &config.pod_id }, { "expiresAt": { "$lt": now } }] };
    let expires_at = DateTime::from_millis(now.timestamp_millis() + ttl);
    let update = doc! { "$set": { "leaderId": &config.pod_id, "expiresAt": expires_at, "heartbeatAt": now } };
    let request = leases.find_one_and_update(filter, update).upsert(true).return_document(ReturnDocument::After);
    let held = request.await.ok().flatten();
    held.is_some_and(|lease| lease.get_str("leaderId").ok() == Some(config.pod_id.as_str()))
}

/// Acts while it believes that it leads; there is no term and no deadline to check.
async fn act_while_leading(mut leading: watch::Receiver<bool>) {
    let (mut from, mut gained) = (now(), false);
    loop {
        let leads = *leading.borrow_and_update();
        if leads && !gained {
            from = now();
            CandidateReport::Gained { term: 0, at: from, valid_until: from }.print();
        }
        if gained {
            let to = now();
            CandidateReport::Acted { term: 0, from, to }.print();
            from = to;
        }
        if !leads && gained {
            CandidateReport::Lost { term: 0, at: now(), drain: false }.print();
        }
        gained = leads;
        let interval = std::time::Duration::from_millis(25);
        let _ = tokio::time::timeout(interval, leading.changed()).await;
    }
}
