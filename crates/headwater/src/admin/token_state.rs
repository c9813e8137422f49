//! The state of the Entra ID tokens: a problem while they cannot be refreshed, and metrics.

use std::time::{Duration, Instant};

use admin::PodSample;
use admin::status::PodProblem;
use servicebus::entra::TokenHealth;

/// One failed request is usual, and the next one follows soon.
const FAILURES_BEFORE_PROBLEM: u32 = 2;

#[cfg(test)]
pub(super) const METRICS: [&str; 3] = [OBTAINED, FAILURES, EXPIRES_IN];

const OBTAINED: &str = "headwater_entra_tokens_total";
const FAILURES: &str = "headwater_entra_token_failures_total";
const EXPIRES_IN: &str = "headwater_entra_token_expires_in_seconds";

/// Reported long before the present token expires: it is replaced at half of its lifetime.
pub(super) fn problem(health: &TokenHealth, now: Instant) -> Option<PodProblem> {
    let (since, error) = health.failing_since.zip(health.last_error.as_ref())?;
    if health.failures_in_a_row < FAILURES_BEFORE_PROBLEM {
        return None;
    }
    let since = now.saturating_duration_since(since.into_std()).as_secs();
    let left = expires_in(health, now);
    let effect = match left {
        Some(left) if !left.is_zero() => format!("the present token is valid for another {} s", left.as_secs()),
        Some(_) | None => "there is no valid token, so events are neither published nor received".to_owned(),
    };
    let text = format!("failed to obtain an Entra ID token for {since} s; {effect}; retrying: {error}");
    Some(PodProblem { service: "service bus".to_owned(), text, page: None })
}

/// Without Entra ID the counters are 0, and the expiry is absent.
pub(super) fn samples(health: &TokenHealth, now: Instant) -> Vec<PodSample> {
    let sample = |name, help, value| PodSample { name, help, labels: vec![], value };
    let mut samples = vec![
        sample(OBTAINED, "Tokens of Entra ID obtained.", health.obtained),
        sample(FAILURES, "Failed requests for a token of Entra ID.", health.failures),
    ];
    let help = "Validity left of the present token of Entra ID.";
    samples.extend(expires_in(health, now).map(|left| sample(EXPIRES_IN, help, left.as_secs())));
    samples
}

fn expires_in(health: &TokenHealth, now: Instant) -> Option<Duration> {
    health.expires_at.map(|at| at.into_std().saturating_duration_since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_tells_how_long_the_token_is_still_valid() {
        let now = tokio::time::Instant::now();
        let mut health = TokenHealth {
            failures_in_a_row: 1,
            failing_since: Some(now),
            expires_at: Some(now + Duration::from_secs(100)),
            last_error: Some("no route".into()),
            ..TokenHealth::default()
        };
        assert_eq!(problem(&health, now.into_std()), None, "one failure");
        health.failures_in_a_row = 2;
        let text = |after| problem(&health, now.into_std() + Duration::from_secs(after)).unwrap().text;
        assert!(text(30).contains("for 30 s; the present token is valid for another 70 s; retrying: no route"));
        assert!(text(100).contains("there is no valid token"), "{}", text(100));
    }
}
