//! Runs the services of a pod, and bounds how long their shutdown takes. Each service has a deadline of its own; this one applies if it misses it.
//!
//! A pod that does not stop is worse than one that crashes: it keeps renewing its lease, and no other pod can lead.

use std::time::Duration;

use futures_util::future::{Either, join, select};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::exit::ExitReason;

/// Time after the drain to release the lease, finish the last transaction and close connections.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// A running service, with the name that is shown to users.
pub(super) struct PodService<F> {
    pub(super) name: &'static str,
    pub(super) running: F,
}

/// How long services may take to stop.
pub(super) fn shutdown_limit(drains: [Duration; 2]) -> Duration {
    drains.into_iter().max().unwrap_or_default() + SHUTDOWN_GRACE
}

/// Runs both services until `shutdown`. If one ends earlier, for any reason, the other is stopped too. After `shutdown` both have `limit`.
pub(super) async fn run_services<A, B>(
    first: PodService<A>,
    second: PodService<B>,
    shutdown: CancellationToken,
    limit: Duration,
) -> anyhow::Result<()>
where
    A: Future<Output = anyhow::Result<()>>,
    B: Future<Output = anyhow::Result<()>>,
{
    let names = [first.name, second.name];
    let ended = [(); 2].map(|()| CancellationToken::new());
    let running = join(run_service(first, &shutdown, &ended[0]), run_service(second, &shutdown, &ended[1]));
    let overdue = async {
        shutdown.cancelled().await;
        sleep(limit).await;
    };
    match select(std::pin::pin!(running), std::pin::pin!(overdue)).await {
        // If both failed, the error of the second is reported.
        Either::Left(((first, second), _)) => second.and(first),
        Either::Right(_) => {
            let left = names.into_iter().zip(&ended).filter(|(_, ended)| !ended.is_cancelled()).map(|(name, _)| name);
            let left = left.collect::<Vec<_>>().join(" and ");
            let why = format!(
                "stopped at once: the {left} did not stop within {limit:?}; unacknowledged events are republished, and unsettled messages are redelivered"
            );
            Err(ExitReason::Overdue.with_message(why).into())
        }
    }
}

async fn run_service<F>(
    service: PodService<F>,
    shutdown: &CancellationToken,
    ended: &CancellationToken,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let result = service.running.await;
    ended.cancel();
    // The other service cannot do useful work alone, so stop it too.
    shutdown.cancel();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::time::Instant;

    const LIMIT: Duration = Duration::from_secs(13);

    fn service<F>(name: &'static str, running: F) -> PodService<F> {
        PodService { name, running }
    }

    #[test]
    fn the_limit_is_the_longer_drain_plus_a_grace_period() {
        let [short, long] = [2, 20].map(Duration::from_secs);
        assert_eq!(shutdown_limit([short, long]), Duration::from_secs(23));
        assert_eq!(shutdown_limit([long, short]), Duration::from_secs(23));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_does_not_stop_is_named() {
        let shutdown = CancellationToken::new();
        let obeys = async {
            shutdown.cancelled().await;
            anyhow::Ok(())
        };
        let running = run_services(service("producer", pending()), service("consumer", obeys), shutdown.clone(), LIMIT);
        let stopped = async {
            sleep(Duration::from_secs(3_600)).await;
            shutdown.cancel();
            Instant::now()
        };
        let (error, stopped) = join(running, stopped).await;
        let error = error.unwrap_err();
        assert_eq!(stopped.elapsed(), LIMIT);
        assert!(error.to_string().contains("the producer did not stop within 13s"), "{error}");
        assert_eq!(ExitReason::from_error(&error), ExitReason::Overdue);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_service_stops_the_other_within_the_limit() {
        for other in [true, false] {
            let shutdown = CancellationToken::new();
            let obeys = async {
                shutdown.cancelled().await;
                if other { Ok(()) } else { pending().await }
            };
            let fails = async { anyhow::bail!("unfit") };
            let began = Instant::now();
            let services = (service("lease", fails), service("consumer", obeys));
            let error = run_services(services.0, services.1, shutdown.clone(), LIMIT).await.unwrap_err();
            let (words, took) = if other { ("unfit", Duration::ZERO) } else { ("the consumer did not stop", LIMIT) };
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(began.elapsed(), took);
        }
    }
}
