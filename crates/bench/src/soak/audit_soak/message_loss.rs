//! Loses messages that the broker has acknowledged: some transfers, and once each all that a subscription holds.

use std::time::Duration;

use local_cluster::BrokerEndpoint;
use servicebus::Settlement;
use testkit::bus;
use testkit::cluster::TestCluster;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::AuditSoakOptions;

const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// When, as a share of the planned length of the writes.
const PURGE_AT: f64 = 0.4;
const RECREATE_AT: f64 = 0.75;
const PURGE_FOR: Duration = Duration::from_millis(1_500);

/// What was lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    pub(super) transfers: u64,
    pub(super) removed: u64,
}

pub(super) struct MessageLoss {
    broker: BrokerEndpoint,
    subscription: String,
    one_in: u64,
    seed: u64,
    disasters: bool,
    length: Duration,
}

impl MessageLoss {
    pub(super) fn new(cluster: &TestCluster, options: &AuditSoakOptions) -> Self {
        let load = &options.base.load;
        Self {
            broker: cluster.broker().endpoint().clone(),
            subscription: cluster.broker().subscription(),
            one_in: options.lose_one_in,
            seed: options.base.seed,
            disasters: options.disasters,
            length: Duration::from_secs_f64(load.rate.map_or(60.0, |rate| load.events as f64 / rate)),
        }
    }

    /// Until `stop`. Whatever the broker refuses is tried again: it may be down.
    pub(super) async fn run(self, stop: CancellationToken) -> Losses {
        let began = Instant::now();
        let mut losses = Losses::default();
        let (mut purged, mut recreated) = (!self.disasters, !self.disasters);
        loop {
            let passed = began.elapsed().as_secs_f64() / self.length.as_secs_f64();
            self.keep_armed(&mut losses).await;
            if !purged && passed >= PURGE_AT {
                losses.removed += self.purge().await;
                purged = true;
            }
            if !recreated && passed >= RECREATE_AT {
                recreated = self.recreate(&mut losses).await.is_some();
            }
            if stop.is_cancelled() {
                // The last look at the counter, then nothing is lost any more.
                self.keep_armed(&mut losses).await;
                let _ = self.request("DELETE", "/$test/faults", "").await;
                return losses;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Arms the fault again after a restart of the broker, which forgets it and its counter.
    async fn keep_armed(&self, losses: &mut Losses) {
        if self.one_in == 0 {
            return;
        }
        let Some(state) = self.request("GET", "/$test/state", "").await else { return };
        let injected = state.split_once("\"injected\":").map_or("", |(_, after)| after);
        let injected: String = injected.chars().take_while(char::is_ascii_digit).collect();
        // Other faults count, too; without them this is the number of lost transfers.
        losses.transfers = losses.transfers.max(injected.parse().unwrap_or(0));
        if !state.contains("lose_messages") {
            let fault = format!(
                r#"{{"kind": "lose_messages", "entity": "events", "one_in": {}, "times": 1000000000, "seed": {}}}"#,
                self.one_in, self.seed
            );
            let _ = self.request("POST", "/$test/faults", &fault).await;
        }
    }

    /// Receives and completes what it can get hold of.
    async fn purge(&self) -> u64 {
        let client = bus::client(&self.broker, servicebus::Config::default());
        let (mut removed, until) = (0, Instant::now() + PURGE_FOR);
        while Instant::now() < until {
            let accepted = client.accept_next_session(&self.subscription, Duration::from_millis(300)).await;
            let Ok(Some(mut session)) = accepted else { continue };
            if let Ok(messages) = session.receive(100, Duration::from_millis(50)).await
                && session.settle(&messages, Settlement::Complete).await.is_ok()
            {
                removed += messages.len() as u64;
            }
            let _ = session.close().await;
        }
        let _ = client.close().await;
        removed
    }

    /// Deletes the subscription with its messages, and makes it again as it was.
    async fn recreate(&self, losses: &mut Losses) -> Option<()> {
        let administration = bus::administration(&self.broker);
        let description = administration.get(&self.subscription).await.ok()??;
        let held = description.count("ActiveMessageCount").unwrap_or(0);
        self.request("DELETE", &format!("/{}?api-version=2021-05", self.subscription), "").await?;
        losses.removed += held;
        while administration.create(&self.subscription, &description).await.is_err() {
            sleep(CHECK_INTERVAL).await;
        }
        Some(())
    }

    async fn request(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let request = self.broker.request(method, path, "x-headwater-test-token: test\r\n", body);
        let response = tokio::time::timeout(Duration::from_secs(5), request).await;
        let (head, body) = response.ok()?.ok()?;
        head.starts_with("HTTP/1.1 20").then_some(body)
    }
}
