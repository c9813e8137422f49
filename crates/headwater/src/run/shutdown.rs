//! The end of a pod's services: each has a deadline of its own, and this is the one for when that is not kept.
//!
//! A pod that is told to stop and does not is worse than one that dies: its lease is renewed for as long as it runs, and nobody else can lead.

use std::time::Duration;

use futures_util::future::{Either, join, select};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::exit::ExitReason;

/// What follows a drain: the lease goes back, a last transaction ends, connections are closed.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// A service, by the name people know it by.
pub(super) struct PodService<F> {
    pub(super) name: &'static str,
    pub(super) running: F,
}

/// How long services may take to end once they are told to.
pub(super) fn shutdown_limit(drains: [Duration; 2]) -> Duration {
    drains.into_iter().max().unwrap_or_default() + SHUTDOWN_GRACE
}

/// Both run until `shutdown`; one that ends before, whatever the reason, takes the other along. After `shutdown` both have `limit`.
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
        Either::Left(((first, second), _)) => second.and(first),
        Either::Right(_) => {
            let left = names.into_iter().zip(&ended).filter(|(_, ended)| !ended.is_cancelled()).map(|(name, _)| name);
            let left = left.collect::<Vec<_>>().join(" and ");
            let why = format!(
                "stopped at once: the {left} did not end within {limit:?}; what was not acknowledged, or not settled, comes again"
            );
            Err(ExitReason::Failed.with_message(why).into())
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
    let how = service.running.await;
    ended.cancel();
    shutdown.cancel();
    how
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
    fn the_longer_drain_decides_and_there_is_time_for_what_follows() {
        let [short, long] = [2, 20].map(Duration::from_secs);
        assert_eq!(shutdown_limit([short, long]), Duration::from_secs(23));
        assert_eq!(shutdown_limit([long, short]), Duration::from_secs(23));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_end_is_named_and_left() {
        let shutdown = CancellationToken::new();
        let obeys = async {
            shutdown.cancelled().await;
            anyhow::Ok(())
        };
        let running = run_services(service("producer", pending()), service("consumer", obeys), shutdown.clone(), LIMIT);
        let told = async {
            sleep(Duration::from_secs(3_600)).await;
            shutdown.cancel();
            Instant::now()
        };
        let (error, told) = join(running, told).await;
        let error = error.unwrap_err();
        assert_eq!(told.elapsed(), LIMIT);
        assert!(error.to_string().contains("the producer did not end within 13s"), "{error}");
        assert_eq!(ExitReason::from_error(&error), ExitReason::Failed);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_takes_the_other_along_and_does_not_wait_for_it_for_ever() {
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
            let (words, took) = if other { ("unfit", Duration::ZERO) } else { ("the consumer did not end", LIMIT) };
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(began.elapsed(), took);
        }
    }
}
