//! A cluster under load whose pods are stopped in an orderly way, and the comparison at the end.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::Database;
use testkit::checker::{CheckReport, Checker, DuplicatePolicy};
use testkit::cluster::{CoordinationObserver, TestCluster, UnexpectedExit};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Error, LEADER_TIMEOUT, StopSoakOptions};
use crate::soak::consumer_soak::{ApplyProgress, wait_until_applied};
use crate::soak::{SubscriptionReader, producer_soak, soak_read_models};

/// Without a new event for this long, everything has arrived.
const QUIET_PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct RunningSoak {
    pub(crate) cluster: TestCluster,
    pub(crate) observer: CoordinationObserver,
    /// Of the topic, read beside the pods.
    pub(crate) checker: Arc<Checker>,
    views: Database,
    reader: SubscriptionReader,
    enough: CancellationToken,
    writing: JoinHandle<()>,
}

/// What was written against what is on the topic and in the read models.
pub(crate) struct SoakComparison {
    pub(crate) topic: CheckReport,
    pub(crate) applied: CheckReport,
    pub(crate) differences: Vec<String>,
    /// Checkpoint saves that the fence should have refused.
    pub(crate) violations: usize,
    pub(crate) unexpected_exits: Vec<UnexpectedExit>,
}

impl RunningSoak {
    pub(crate) async fn start(binary: &Path, options: &StopSoakOptions) -> Result<Self, Error> {
        let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
        let observer = CoordinationObserver::start(&cluster).await?;
        let views = cluster.mongo().client().database(&format!("{}_views", cluster.mongo().source()));
        cluster.start_pods()?;
        cluster.wait_for_leader(LEADER_TIMEOUT).await?;
        cluster.wait_for_stream_phase(LEADER_TIMEOUT).await?;
        let checker = Arc::new(Checker::new());
        let reader = SubscriptionReader::start(cluster.broker(), &cluster.broker().observer_subscription(), &checker);
        let enough = CancellationToken::new();
        let (load, events, ledger, until) =
            (options.load.clone(), cluster.events(), Arc::clone(&checker), enough.clone());
        let writing = tokio::spawn(async move {
            let _ = load.write_until(&events, &ledger, &until).await;
        });
        Ok(Self { cluster, observer, checker, views, reader, enough, writing })
    }

    /// Ends the load, waits until everything has arrived, and compares.
    pub(crate) async fn finish(self, options: &StopSoakOptions) -> Result<SoakComparison, Error> {
        let Self { mut cluster, observer, checker, views, reader, enough, writing } = self;
        enough.cancel();
        writing.await.expect("writers do not panic");
        let (written, progress) = (Instant::now(), ApplyProgress::start(&views, &checker, options.verbose));
        producer_soak::wait_until_all_observed(&mut cluster, &checker, options.stall_timeout).await?;
        wait_until_applied(&mut cluster, &checker, &progress, options.stall_timeout, written).await?;
        cluster.stop_pods().await;
        // A pod may have published more while it stopped.
        producer_soak::wait_until_all_observed(&mut cluster, &checker, QUIET_PERIOD).await?;
        drop((reader, progress));
        let applied = checker.with_same_writes();
        soak_read_models::record_history(&views, &applied).await?;
        let expected = soak_read_models::fold(&cluster.events()).await?;
        let differences = soak_read_models::differences(&views, &expected).await?;
        let violations = observer.read(|history| history.violations().len());
        let unexpected_exits = cluster.stop().await;
        Ok(SoakComparison {
            topic: checker.check(DuplicatePolicy::Forbidden),
            applied: applied.check(DuplicatePolicy::Forbidden),
            differences,
            violations,
            unexpected_exits,
        })
    }
}
