//! What an operator is told, and how often.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::*;

/// What was logged on this thread, as "LEVEL message".
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
        (log, guard)
    }

    fn count(&self, level: &str, part: &str) -> usize {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.starts_with(level) && line.contains(part)).count()
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::INFO {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_does_not_heal_is_told_also_after_one_that_might() {
    inside(async {
        let (log, _guard) = Log::listen();
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        pod.line.fail(Some(Fault::Refuse));
        pod.loses().await;
        assert_eq!((log.count("WARN", "lease out of reach"), log.count("ERROR", "")), (1, 0));
        pod.line.fail(Some(Fault::Unfit));
        sleep(secs(60)).await;
        assert_eq!(log.count("ERROR", "lease cannot be used"), 1);
        // and no word more while it lasts, whatever comes between
        pod.line.fail(Some(Fault::Refuse));
        sleep(secs(60)).await;
        pod.line.fail(Some(Fault::Unfit));
        sleep(secs(60)).await;
        assert_eq!((log.count("WARN", "lease out of reach"), log.count("ERROR", "")), (1, 1));
        pod.line.fail(None);
        pod.leads().await;
        assert_eq!(log.count("INFO", "lease within reach again"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_not_called_a_failure() {
    inside(async {
        let (log, _guard) = Log::listen();
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        pod.line.fail(Some(Fault::DoThenFail));
        pod.shutdown.cancel();
        pod.loses().await;
        let released = || house.lease.record().is_some_and(|record| record.version.holder.is_none());
        while !released() {
            sleep(Duration::from_millis(1)).await;
        }
        pod.line.fail(None);
        timeout(secs(60), pod.elector).await.expect("the elector should end").unwrap().unwrap();
        assert_eq!(log.count("WARN", "given back"), 0, "{:?}", log.0.lock().unwrap());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_could_not_be_given_back_is_told() {
    inside(async {
        let (log, _guard) = Log::listen();
        let house = House::new();
        let pod = house.pod("a");
        pod.leads().await;
        pod.line.fail(Some(Fault::Silence));
        pod.stops().await;
        assert_eq!(log.count("WARN", "could not be given back"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_always_fails_is_told_once_and_the_lease_does_without() {
    inside(async {
        let (log, _guard) = Log::listen();
        let house = House::new();
        let first = house.pod("a");
        first.leads().await;
        let second = house.pod("b");
        // before it runs at all
        second.line.fail(Some(Fault::Unwatchable));
        sleep(secs(3600)).await;
        assert_eq!(log.count("WARN", "lease cannot be watched"), 1);
        first.stops().await;
        assert_eq!(second.leads().await, Term::new(2));
    })
    .await;
}
