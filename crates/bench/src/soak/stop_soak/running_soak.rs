//! A cluster under load whose pods are stopped in an orderly way, and the comparison at the end.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mongodb::Database;
use testkit::checker::{CheckReport, Checker, DuplicatePolicy};
use testkit::cluster::{CoordinationObserver, TestCluster, UnexpectedExit};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Error, LEADER_TIMEOUT, StopSoakOptions};
use crate::soak::consumer_soak::{ApplyProgress, wait_until_applied};
use crate::soak::{ReaderErrors, RunEnd, SubscriptionReader, producer_soak, soak_read_models};

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
    /// Something was left in the pipeline, and it made no progress.
    pub(crate) is_stalled: bool,
    pub(crate) reader_errors: ReaderErrors,
    /// Checkpoint saves that the fence should have refused.
    pub(crate) fence_breaches: usize,
    pub(crate) unexpected_exits: Vec<UnexpectedExit>,
}

impl RunningSoak {
    /// `first`: the binary that the pods begin with, if it is not that of the cluster.
    pub(crate) async fn start(binary: &Path, first: Option<&Path>, options: &StopSoakOptions) -> Result<Self, Error> {
        let mut cluster = TestCluster::start(options.blueprint(binary)).await?;
        for pod in 0..options.pods {
            cluster.pod_mut(pod).set_executable(first.unwrap_or(binary));
        }
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
        let (stall_timeout, subscription) = (options.stall_timeout, cluster.broker().observer_subscription());
        let published =
            producer_soak::wait_until_all_observed(&mut cluster, &subscription, &checker, stall_timeout).await?;
        let (applied, _) = wait_until_applied(&mut cluster, &checker, &progress, stall_timeout, written).await?;
        let is_stalled = [published, applied].contains(&RunEnd::Stalled);
        cluster.stop_pods().await;
        producer_soak::wait_until_quiet(&checker).await;
        let reader_errors = reader.errors();
        drop((reader, progress));
        let applied = checker.with_same_writes();
        soak_read_models::record_history(&views, &applied).await?;
        let expected = soak_read_models::fold(&cluster.events()).await?;
        let differences = soak_read_models::differences(&views, &expected).await?;
        let fence_breaches = observer.read(|history| history.violations().len());
        let unexpected_exits = cluster.stop().await;
        Ok(SoakComparison {
            topic: checker.check(DuplicatePolicy::Forbidden),
            applied: applied.check(DuplicatePolicy::Forbidden),
            differences,
            is_stalled,
            reader_errors,
            fence_breaches,
            unexpected_exits,
        })
    }
}
