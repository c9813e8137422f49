//! MongoDB is unreachable.

use election_test::CandidateReport;
use testkit::mongo::shared;
use testkit::proxy::{Direction, NetworkFault, Proxy};

use crate::{election, quick, secs};

/// A URI that uses only the proxy.
fn through(proxy: &Proxy) -> String {
    format!("mongodb://{}/?directConnection=true", proxy.address())
}

fn address(uri: &str) -> String {
    uri.trim_start_matches("mongodb://").split('/').next().unwrap().to_owned()
}

#[tokio::test]
async fn an_isolated_leader_stops_and_standbys_keep_retrying() {
    let shared = shared().await.unwrap();
    let database = shared.database("unreachable");
    let proxy = Proxy::start(address(shared.uri())).await.unwrap();
    let mut election = election(&through(&proxy), database.name());
    for name in ["a", "b", "c"] {
        election.start_candidate(name).wait_until_started().await;
    }
    let mut term = 0;
    // First no connections, then connections without replies.
    for fault in [NetworkFault::Cut, NetworkFault::HalfOpen { dead: Direction::ToClient }] {
        let (leader, gained, _) = election.next_leader(term, None, secs(30)).await;
        term = gained;
        tokio::time::sleep(quick().ttl / 2).await;
        proxy.inject(fault).await;
        let lost = |report: &CandidateReport| match report {
            CandidateReport::Lost { term: lost, at, drain: false } if *lost == term => Some(*at),
            _ => None,
        };
        let lost = election.get(&leader).wait_for_report("lost its term", quick().renew_deadline * 3, lost).await;
        let valid_until = election.get(&leader).reports().iter().fold(0.0, |latest: f64, report| match report {
            CandidateReport::Renewed { term: renewed, valid_until } if *renewed == term => latest.max(*valid_until),
            _ => latest,
        });
        assert!(lost >= valid_until - 1.0, "it leads until its deadline: {lost} < {valid_until}");
        assert!(lost <= valid_until + 1000.0, "it leads past its deadline: {lost} > {valid_until}");
        let texts = ["lease lost", "no renewal was acknowledged before the deadline"];
        election.get(&leader).wait_for_log(&texts, secs(10)).await;
        // Long enough for a pod that gives up to exit.
        tokio::time::sleep(quick().ttl * 2).await;
        assert!(election.names().iter().all(|name| election.get(name).is_running()), "no candidate exited");
        proxy.heal().await;
    }
    election.next_leader(term, None, secs(30)).await;
    election.evaluate().assert_clean();
}
