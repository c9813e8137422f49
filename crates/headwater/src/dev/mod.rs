//! Everything on one machine: who is started, in what order, and stopped, in what order.
//!
//! [`store`] (a MongoDB), [`child`] (broker and pods, each a process that is started again when it dies), the shop of
//! [`crate::shop`], and [`look`] (how far its orders have come). Pods are run as everywhere, by `headwater run` and a configuration file.

mod child;
mod folder;
mod look;
mod names;
mod panel;
mod settings;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use mongodb::Client;
use mongodb::bson::Document;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::exit::ExitReason;
use crate::shop::{self, Shop};
use crate::signal::StopSignal;
use child::Child;
use folder::Folder;
use look::{Gauges, Look};
use panel::Panel;
use settings::Settings;
use store::Store;

/// What is asked for.
pub(crate) struct Plan {
    pub(crate) pods: u16,
    pub(crate) rate: u32,
    pub(crate) data_dir: PathBuf,
    pub(crate) mongodb_uri: Option<String>,
}

/// How often children are looked after, and how often a person is told.
const TEND_EVERY: Duration = Duration::from_millis(100);
const TELL_EVERY: Duration = Duration::from_secs(1);
/// What was written is applied in well under a second, if nothing is broken; a takeover and a busy machine get more.
const DRAIN_WITHIN: Duration = Duration::from_secs(60);
/// A pod may take its `consumer.drain` of 20 s, and a little more.
const STOP_WITHIN: Duration = Duration::from_secs(25);
/// What does not answer for so long is shown as not known; children are not looked after meanwhile.
const LOOK_WITHIN: Duration = Duration::from_secs(3);

/// Runs until a signal.
pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    let began = Instant::now();
    // Signals keep their default meaning until here: Ctrl-C ends a fetch at once, and the next run starts it afresh.
    let source = store::find(plan.mongodb_uri.clone()).await?;
    let folder = Folder::open(&plan.data_dir)?;
    let mut stop = StopSignal::new()?;
    let mut house = tokio::select! {
        house = House::build(source, &plan, &folder, began) => house?,
        () = stop.recv() => return Ok(()), // what is half started is killed when dropped; its journals are its own
    };
    tokio::select! {
        ended = house.live() => return ended, // cancel-safe: everything it knows is in the house
        () = stop.recv() => {}
    }
    tokio::select! {
        stopped = house.close() => stopped?,
        () = stop.recv_second() => {
            bail!(ExitReason::Interrupted.with_message("stopped at once, on the second signal; nothing was checked"))
        },
    }
    Panel::default().say(&format!("Stopped; the data is in {}.", plan.data_dir.display()));
    Ok(())
}

/// All that runs.
struct House {
    // Dropped in this order: whoever leans on another goes first.
    pods: Vec<Child>,
    broker: Child,
    store: Store,
    shop: JoinHandle<()>,
    closed: CancellationToken,
    gauges: Gauges,
    panel: Panel,
    settings: Settings,
}

impl House {
    /// `start`: when this process began, for a person who waits for it.
    async fn build(source: mongod::Source, plan: &Plan, folder: &Folder, start: Instant) -> anyhow::Result<Self> {
        let mut panel = Panel::default();
        panel.status("MongoDB starts …");
        let began = Instant::now();
        let store = Store::start(source, folder).await?;
        panel.step("MongoDB", began);
        let began = Instant::now();
        let settings = Settings::of(plan, folder, &store).await?;
        let broker = settings.start_broker(folder).await?;
        panel.step("broker", began);
        let client = Client::with_uri_str(store.uri()).await;
        let client = client.map_err(mongo_error::DriverError::from).context("connect to MongoDB")?;
        let events = client.database(&settings.database).collection::<Document>(settings::COLLECTION);
        let shop = Shop::open(events).await?;
        let gauges = Gauges::new(&client, &settings, shop.written())?;
        let began = Instant::now();
        let mut pods = settings.start_pods(folder)?;
        settings.wait_for(&mut pods).await?;
        panel.step(if pods.len() == 1 { "the pod" } else { "every pod" }, began);
        panel.step("everything", start);
        panel.say(&settings.tell(&store, &pods));
        let closed = CancellationToken::new();
        let shop = tokio::spawn(shop.run(plan.rate, closed.clone()));
        Ok(Self { pods, broker, store, shop, closed, gauges, panel, settings })
    }

    /// Returns only when it cannot go on.
    async fn live(&mut self) -> anyhow::Result<()> {
        let mut ticks = interval(TEND_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Instant::now();
        loop {
            tokio::select! {
                ended = self.store.ended() => return Err(ended), // cancel-safe: only looks
                _ = ticks.tick() => {}
            }
            self.tend()?;
            if told.elapsed() >= self.gauges.pause().max(TELL_EVERY) {
                told = Instant::now();
                let look = self.gauges.look(LOOK_WITHIN).await;
                self.tell(&look);
            }
        }
    }

    /// Starts what has died, and says so.
    fn tend(&mut self) -> anyhow::Result<()> {
        for child in self.pods.iter_mut().chain([&mut self.broker]) {
            if let Some(news) = child.tend()? {
                self.panel.say(&news);
            }
        }
        Ok(())
    }

    fn tell(&mut self, look: &Look) {
        let pid = |name: &str| self.pods.iter().find(|pod| pod.name() == name).and_then(Child::pid);
        if let Some(change) = self.gauges.change_of_leader(look) {
            let pid = pid(&change.leader).map_or(String::new(), |pid| format!(" (pid {pid})"));
            self.panel.say(&format!("{}{pid} leads, in term {}", change.leader, change.term));
        }
        self.panel.status(&look.to_string());
    }

    /// The shop, what is under way, the check; then the pods, the broker and MongoDB.
    async fn close(mut self) -> anyhow::Result<()> {
        self.panel.say("Stopping: the shop closes, and what it wrote goes on its way.");
        self.closed.cancel();
        (&mut self.shop).await.context("the shop ended before its time")?;
        let checked = match timeout(DRAIN_WITHIN, self.drain()).await {
            Ok(drained) => drained.and(self.check().await),
            Err(_) => {
                let look = self.gauges.look(LOOK_WITHIN).await;
                Err(anyhow::anyhow!(
                    "not checked: after {DRAIN_WITHIN:?} orders are still under way ({look}); they are kept, and go on \
                     at the next start"
                ))
            }
        };
        let pods = self.pods.iter_mut().map(|pod| pod.stop(STOP_WITHIN));
        let stopped = futures_util::future::join_all(pods).await;
        let broker = self.broker.stop(STOP_WITHIN).await;
        let store = self.store.stop().await;
        let ends = [checked].into_iter().chain(stopped).chain([broker, store]);
        worst(ends, |other| self.panel.say(&other))
    }

    /// Until every event that was written is applied.
    async fn drain(&mut self) -> anyhow::Result<()> {
        let mut told = Instant::now();
        loop {
            self.tend()?;
            // A large shop is summed up for longer than a person likes to wait for a line.
            let look = self.gauges.look(DRAIN_WITHIN).await;
            if look.behind() == Some(0) {
                return Ok(());
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                self.tell(&look);
            }
            tokio::time::sleep(TEND_EVERY.max(self.gauges.pause())).await;
        }
    }

    async fn check(&mut self) -> anyhow::Result<()> {
        let verdict = shop::verify(&self.gauges.events, &self.gauges.views).await.context("check the read models")?;
        self.panel.say(&format!("Check: {verdict}."));
        if !verdict.nothing_was_lost() {
            bail!(
                "the read models are not what they should be; is something parked? Ask `headwater parked list --config {}`",
                self.settings.file.display()
            );
        }
        Ok(())
    }
}

/// The first failure is why it failed; none of the others is kept from a person.
fn worst(ends: impl Iterator<Item = anyhow::Result<()>>, mut say: impl FnMut(String)) -> anyhow::Result<()> {
    let mut failures = ends.filter_map(Result::err);
    let Some(first) = failures.next() else { return Ok(()) };
    failures.for_each(|other| say(format!("Also: {other:#}.")));
    Err(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_fails_hides_no_pod_that_had_to_be_killed() {
        let mut said = vec![];
        let ends =
            [Err(anyhow::anyhow!("differs")), Ok(()), Err(anyhow::anyhow!("no exit").context("pod-2 was killed"))];
        let ended = worst(ends.into_iter(), |line| said.push(line));
        assert_eq!(ended.unwrap_err().to_string(), "differs");
        assert_eq!(said, ["Also: pod-2 was killed: no exit."]);
        assert!(worst([Ok(()), Ok(())].into_iter(), |_| unreachable!()).is_ok());
    }
}
