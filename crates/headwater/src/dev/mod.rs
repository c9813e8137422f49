//! `headwater dev`: runs everything on one machine, and starts and stops it in order.
//!
//! [`mongo`] starts or uses a MongoDB, [`supervised_process`] runs broker and pods and restarts them after an exit, [`crate::shop`]
//! writes orders, and [`progress`] shows how far they have come. Pods run as in production: `headwater run` with a configuration file.

mod console;
mod data_folder;
mod databases;
mod mongo;
mod ports;
mod progress;
mod settings;
mod supervised_process;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use mongodb::Client;
use mongodb::bson::Document;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::exit::ExitReason;
use crate::shop::{self, ShopWriter};
use crate::signal::ShutdownSignal;
use console::Console;
use data_folder::DataFolder;
use mongo::DevMongo;
pub(crate) use ports::PortMode;
use progress::{DevProgress, ProgressMonitor};
use settings::DevSettings;
use supervised_process::SupervisedProcess;

/// The command's options.
pub(crate) struct DevOptions {
    pub(crate) pods: u16,
    pub(crate) rate: u32,
    pub(crate) data_dir: PathBuf,
    pub(crate) mongodb_uri: Option<String>,
    pub(crate) ports: PortMode,
}

/// How often exited processes are restarted, and how often the status line changes.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Without faults an event is applied in well under a second; a takeover and a busy machine need more.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// A pod may take its `consumer.drain` of 20 s, and a little more.
const STOP_TIMEOUT: Duration = Duration::from_secs(25);
/// After this time a value is shown as unknown. Exited processes are not restarted meanwhile.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs until a signal.
pub(crate) async fn run(options: DevOptions) -> anyhow::Result<()> {
    let began = Instant::now();
    // Signals keep their default meaning until here: Ctrl-C ends a download at once, and the next run starts it again.
    let source = mongo::find(options.mongodb_uri.clone()).await?;
    let folder = DataFolder::open(&options.data_dir)?;
    let mut stop = ShutdownSignal::new()?;
    let mut environment = tokio::select! {
        environment = DevEnvironment::start(source, &options, &folder, began) => environment?,
        () = stop.recv() => return Ok(()), // a drop kills what has started; journals survive a kill
    };
    tokio::select! {
        ended = environment.run_until_failure() => return ended, // cancel-safe: all its state is in the environment
        () = stop.recv() => {}
    }
    tokio::select! {
        stopped = environment.shut_down() => stopped?,
        () = stop.recv_second() => {
            bail!(ExitReason::Interrupted.with_message("stopped at once by the second signal; nothing was checked"))
        },
    }
    Console::default().print_line(&format!("Stopped; the data is in {}.", options.data_dir.display()));
    Ok(())
}

/// Everything that runs.
struct DevEnvironment {
    // Dropped in this order: dependents first.
    pods: Vec<SupervisedProcess>,
    broker: SupervisedProcess,
    store: DevMongo,
    shop: JoinHandle<()>,
    closed: CancellationToken,
    monitor: ProgressMonitor,
    console: Console,
    settings: DevSettings,
}

impl DevEnvironment {
    /// `start`: when this process began, for the total start time.
    async fn start(
        source: mongod::MongoSource,
        options: &DevOptions,
        folder: &DataFolder,
        start: Instant,
    ) -> anyhow::Result<Self> {
        let mut console = Console::default();
        console.set_status("starting MongoDB …");
        let began = Instant::now();
        let store = DevMongo::start(source, folder, options.ports).await?;
        console.print_ready("MongoDB", began);
        let began = Instant::now();
        let settings = DevSettings::of(options, folder, &store).await?;
        let broker = settings.start_broker(folder).await?;
        console.print_ready("broker", began);
        let client = Client::with_uri_str(store.uri()).await;
        let client = client.map_err(mongo_error::DriverError::from).context("failed to connect to MongoDB")?;
        let events = client.database(&settings.database).collection::<Document>(settings::COLLECTION);
        let shop = ShopWriter::open(events).await?;
        let monitor = ProgressMonitor::new(&client, &settings, shop.written())?;
        let began = Instant::now();
        let pods = settings.start_pods(folder)?;
        settings.wait_for(&pods).await?;
        console.print_ready(if pods.len() == 1 { "pod" } else { "all pods" }, began);
        console.print_ready("everything", start);
        console.print_line(&settings.describe(&store, &pods));
        let closed = CancellationToken::new();
        let shop = tokio::spawn(shop.run(options.rate, closed.clone()));
        Ok(Self { pods, broker, store, shop, closed, monitor, console, settings })
    }

    /// Supervises everything; returns only on a failure.
    async fn run_until_failure(&mut self) -> anyhow::Result<()> {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_status = Instant::now();
        loop {
            tokio::select! {
                ended = self.store.ended() => return Err(ended), // cancel-safe: it only polls
                _ = ticks.tick() => {}
            }
            self.restart_if_exited()?;
            if last_status.elapsed() >= self.monitor.pause().max(STATUS_INTERVAL) {
                last_status = Instant::now();
                let progress = self.monitor.read(READ_TIMEOUT).await;
                self.describe(&progress);
            }
        }
    }

    /// Restarts exited processes and prints a line for each.
    fn restart_if_exited(&mut self) -> anyhow::Result<()> {
        for child in self.pods.iter_mut().chain([&mut self.broker]) {
            if let Some(message) = child.restart_if_exited()? {
                self.console.print_line(&message);
            }
        }
        Ok(())
    }

    fn describe(&mut self, progress: &DevProgress) {
        let pid = |name: &str| self.pods.iter().find(|pod| pod.name() == name).and_then(SupervisedProcess::pid);
        if let Some(change) = self.monitor.change_of_leader(progress) {
            let pid = pid(&change.leader).map_or(String::new(), |pid| format!(" (pid {pid})"));
            self.console.print_line(&format!("{}{pid} is the leader of term {}", change.leader, change.term));
        }
        self.console.set_status(&progress.to_string());
    }

    /// Stops the shop, drains and checks; then stops the pods, the broker and MongoDB.
    async fn shut_down(mut self) -> anyhow::Result<()> {
        self.console.print_line("Stopping: the shop stops writing; waiting until all its events are applied.");
        self.closed.cancel();
        (&mut self.shop).await.context("the shop failed")?;
        let checked = match timeout(DRAIN_TIMEOUT, self.drain()).await {
            Ok(drained) => drained.and(self.check().await),
            Err(_) => {
                let progress = self.monitor.read(READ_TIMEOUT).await;
                Err(anyhow::anyhow!(
                    "not checked: after {DRAIN_TIMEOUT:?} some events are not applied ({progress}); they are kept and continue at \
                     the next start"
                ))
            }
        };
        let pods = self.pods.iter_mut().map(|pod| pod.stop(STOP_TIMEOUT));
        let stopped = futures_util::future::join_all(pods).await;
        let broker = self.broker.stop(STOP_TIMEOUT).await;
        let store = self.store.stop().await;
        let ends = [checked].into_iter().chain(stopped).chain([broker, store]);
        first_failure(ends, |other| self.console.print_line(&other))
    }

    /// Waits until every written event is applied.
    async fn drain(&mut self) -> anyhow::Result<()> {
        let mut last_status = Instant::now();
        loop {
            self.restart_if_exited()?;
            // The sum over a large shop takes longer than the usual timeout of a status line.
            let progress = self.monitor.read(DRAIN_TIMEOUT).await;
            if progress.behind() == Some(0) {
                return Ok(());
            }
            if last_status.elapsed() >= STATUS_INTERVAL {
                last_status = Instant::now();
                self.describe(&progress);
            }
            tokio::time::sleep(CHECK_INTERVAL.max(self.monitor.pause())).await;
        }
    }

    async fn check(&mut self) -> anyhow::Result<()> {
        let result =
            shop::verify(&self.monitor.events, &self.monitor.views).await.context("failed to check the read models")?;
        self.console.print_line(&format!("Check: {result}."));
        if !result.is_clean() {
            bail!(
                "the read models differ from the events; list parked events with `headwater parked list --config {}`",
                self.settings.file.display()
            );
        }
        Ok(())
    }
}

/// Returns the first failure and prints the others.
fn first_failure(ends: impl Iterator<Item = anyhow::Result<()>>, mut print: impl FnMut(String)) -> anyhow::Result<()> {
    let mut failures = ends.filter_map(Result::err);
    let Some(first) = failures.next() else { return Ok(()) };
    failures.for_each(|other| print(format!("Also: {other:#}.")));
    Err(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_does_not_hide_other_failures() {
        let mut printed = vec![];
        let ends =
            [Err(anyhow::anyhow!("differs")), Ok(()), Err(anyhow::anyhow!("no exit").context("pod-2 was killed"))];
        let ended = first_failure(ends.into_iter(), |line| printed.push(line));
        assert_eq!(ended.unwrap_err().to_string(), "differs");
        assert_eq!(printed, ["Also: pod-2 was killed: no exit."]);
        assert!(first_failure([Ok(()), Ok(())].into_iter(), |_| unreachable!()).is_ok());
    }
}
