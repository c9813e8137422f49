//! MongoDB out of reach.

use bench::contest::Report;
use testkit::mongo::shared;
use testkit::proxy::{Direction, NetworkFault, Proxy};

use crate::{contest, quick, secs};

/// A URI that goes through the proxy and not around it.
fn through(proxy: &Proxy) -> String {
    format!("mongodb://{}/?directConnection=true", proxy.address())
}

fn address(uri: &str) -> String {
    uri.trim_start_matches("mongodb://").split('/').next().unwrap().to_owned()
}

#[tokio::test]
async fn cut_off_the_leader_stops_at_its_deadline_standbys_keep_trying_and_nobody_exits() {
    let shared = shared().await.unwrap();
    let database = shared.database("unreachable");
    let proxy = Proxy::start(address(shared.uri())).await.unwrap();
    let mut contest = contest(&through(&proxy), database.name());
    for name in ["a", "b", "c"] {
        contest.contender(name).starts().await;
    }
    let mut term = 0;
    // no connections, then connections on which nothing is answered
    for fault in [NetworkFault::Cut, NetworkFault::HalfOpen { dead: Direction::ToClient }] {
        let (leader, gained, _) = contest.next_leader(term, None, secs(30)).await;
        term = gained;
        tokio::time::sleep(quick().ttl / 2).await;
        proxy.inject(fault).await;
        let lost = |report: &Report| match report {
            Report::Lost { term: lost, at, drain: false } if *lost == term => Some(*at),
            _ => None,
        };
        let lost = contest.get(&leader).says("lost its term", quick().renew_deadline * 3, lost).await;
        let valid_until = contest.get(&leader).reports().iter().fold(0.0, |latest: f64, report| match report {
            Report::Renewed { term: renewed, valid_until } if *renewed == term => latest.max(*valid_until),
            _ => latest,
        });
        assert!(lost >= valid_until - 1.0, "it may go on until its deadline: {lost} < {valid_until}");
        assert!(lost <= valid_until + 1000.0, "and not beyond: {lost} > {valid_until}");
        let said = ["lost leadership", "no renewal was acknowledged before the deadline"];
        contest.get(&leader).logs(&said, secs(10)).await;
        // long enough for pods that would give up to do so
        tokio::time::sleep(quick().ttl * 2).await;
        assert!(contest.names().iter().all(|name| contest.get(name).is_running()), "nobody should have exited");
        proxy.heal().await;
    }
    contest.next_leader(term, None, secs(30)).await;
    contest.judge().must_be_clean();
}
