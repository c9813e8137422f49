//! What the elector logs for the operator, and how often.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::*;

/// Events logged on this thread, as "LEVEL fields".
#[derive(Clone, Default)]
struct RecordedLog(Arc<Mutex<Vec<String>>>);

impl RecordedLog {
    fn record() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
        (log, guard)
    }

    fn count(&self, level: &str, part: &str) -> usize {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.starts_with(level) && line.contains(part)).count()
    }
}

impl<S: Subscriber> Layer<S> for RecordedLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::INFO {
            let mut line = LoggedEvent(event.metadata().level().to_string());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
    }
}

struct LoggedEvent(String);

impl Visit for LoggedEvent {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_is_logged_also_after_a_transient_one() {
    run_local(async {
        let (log, _guard) = RecordedLog::record();
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        pod.store.inject(Some(StoreFault::Refuse));
        pod.wait_until_lost().await;
        assert_eq!((log.count("WARN", "lease store unreachable"), log.count("ERROR", "")), (1, 0));
        pod.store.inject(Some(StoreFault::Unusable));
        sleep(secs(60)).await;
        assert_eq!(log.count("ERROR", "lease cannot be used"), 1);
        // Nothing more is logged while the outage lasts, whatever error comes next.
        pod.store.inject(Some(StoreFault::Refuse));
        sleep(secs(60)).await;
        pod.store.inject(Some(StoreFault::Unusable));
        sleep(secs(60)).await;
        assert_eq!((log.count("WARN", "lease store unreachable"), log.count("ERROR", "")), (1, 1));
        pod.store.inject(None);
        pod.wait_until_leading().await;
        assert_eq!(log.count("INFO", "lease store reachable again"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_release_without_a_reply_is_not_logged_as_a_failure() {
    run_local(async {
        let (log, _guard) = RecordedLog::record();
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        pod.store.inject(Some(StoreFault::DoThenFail));
        pod.shutdown.cancel();
        pod.wait_until_lost().await;
        let released = || fixture.lease.record().is_some_and(|record| record.version.holder.is_none());
        while !released() {
            sleep(Duration::from_millis(1)).await;
        }
        pod.store.inject(None);
        timeout(secs(60), pod.elector).await.expect("the elector ends").unwrap().unwrap();
        assert_eq!(log.count("WARN", "failed to release lease"), 0, "{:?}", log.0.lock().unwrap());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_logged() {
    run_local(async {
        let (log, _guard) = RecordedLog::record();
        let fixture = ElectorFixture::new();
        let pod = fixture.pod("a");
        pod.wait_until_leading().await;
        pod.store.inject(Some(StoreFault::Silence));
        pod.stop().await;
        assert_eq!(log.count("WARN", "failed to release lease"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_always_fails_is_logged_once() {
    run_local(async {
        let (log, _guard) = RecordedLog::record();
        let fixture = ElectorFixture::new();
        let first = fixture.pod("a");
        first.wait_until_leading().await;
        let second = fixture.pod("b");
        // Injected before the pod runs at all.
        second.store.inject(Some(StoreFault::Unwatchable));
        sleep(secs(3600)).await;
        assert_eq!(log.count("WARN", "failed to watch lease"), 1);
        first.stop().await;
        assert_eq!(second.wait_until_leading().await, Term::new(2));
    })
    .await;
}
