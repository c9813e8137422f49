//! Short runs of `cargo xtask soak producer` with fixed seeds, and the failpoints that they must find.

use std::path::Path;

use bench::soak::{
    ProducerSoakOptions, ProducerSoakResult, SoakViolation, detect_in_broker, detect_in_producer,
    expected_broker_violation, expected_violation, run,
};
use broker::failpoints::Failpoint as BrokerFailpoint;
use pipeline::failpoints::Failpoint;
use testkit::cluster::TopicConfig;
use testkit::load::Load;
use testkit::nemesis::{BrokerProcessFault, ClusterFault, FaultProfile};

use super::BINARY;

/// Runs the soak: every planned fault happened, and every guarantee held.
async fn assert_clean_run(options: ProducerSoakOptions) -> ProducerSoakResult {
    let outcome = run(Path::new(BINARY), &options).await.unwrap();
    assert!(outcome.is_clean(), "{outcome}");
    assert_eq!(outcome.missing(&options), Vec::<String>::new(), "{outcome}");
    assert!(outcome.unexpected_exits.is_empty(), "{:?}", outcome.unexpected_exits);
    outcome
}

#[tokio::test]
async fn leader_kills_lose_duplicate_or_reorder_no_event() {
    assert_clean_run(ProducerSoakOptions::short(5)).await;
}

#[tokio::test]
async fn leader_kills_lose_no_event_on_a_partitioned_topic() {
    let topic = TopicConfig { partitioned: true, ..TopicConfig::default() };
    assert_clean_run(ProducerSoakOptions { topic, ..ProducerSoakOptions::short(6) }).await;
}

/// The broker loses acknowledgements and throttles messages on a partitioned topic, while leaders are killed.
#[tokio::test]
async fn throttling_and_lost_acknowledgements_lose_no_event() {
    let topic = TopicConfig { partitioned: true, ..TopicConfig::default() };
    let cut = ProducerSoakOptions::short(8);
    let load = Load { aggregates: 40, run_length: 2..=8, ..cut.load.clone() };
    let outcome =
        assert_clean_run(ProducerSoakOptions { topic, load, profile: FaultProfile::faulty_broker(), ..cut }).await;
    for harm in [BrokerProcessFault::Throttle, BrokerProcessFault::LoseAcknowledgements] {
        let counts = outcome.faults.counts(ClusterFault::Broker(harm));
        assert!(counts.in_flight > 0 && counts.effects > 0, "{harm:?} met nothing: {outcome}");
    }
}

/// A takeover republishes only events in flight.
#[tokio::test]
async fn a_takeover_republishes_at_most_the_window() {
    const WINDOW: u64 = 64;
    let topic = TopicConfig { duplicate_window: None, ..TopicConfig::default() };
    let producer = format!("start: beginning, window: {{ events: {WINDOW}, bytes: 1MiB }}");
    let outcome = assert_clean_run(ProducerSoakOptions { topic, producer, ..ProducerSoakOptions::short(7) }).await;
    let copies = outcome.report.most_duplicates_in_a_term();
    assert!((1..=WINDOW).contains(&copies), "{:?}", outcome.report.duplicates);
}

/// The failpoint breaks this guarantee within ten seeds, and the same seeds without it are clean.
async fn assert_failpoint_is_found(defect: Failpoint, violation: SoakViolation) {
    assert_eq!(expected_violation(defect), violation);
    detect_in_producer(Path::new(BINARY), defect, 0..10).await.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn without_the_fence_a_deposed_leader_saves() {
    assert_failpoint_is_found(Failpoint::NoFence, SoakViolation::FenceBreached).await;
}

#[tokio::test]
async fn a_checkpoint_ahead_of_acknowledgements_loses_events() {
    assert_failpoint_is_found(Failpoint::CheckpointAhead, SoakViolation::Lost).await;
}

#[tokio::test]
async fn two_transfers_in_one_lane_break_the_order() {
    assert_failpoint_is_found(Failpoint::TwoTransfersPerLane, SoakViolation::OutOfOrder).await;
}

#[tokio::test]
async fn a_leader_that_resumes_from_now_loses_events() {
    assert_failpoint_is_found(Failpoint::ResumeFromNow, SoakViolation::Lost).await;
}

#[tokio::test]
async fn a_refused_transfer_that_counts_as_sent_is_lost() {
    assert_failpoint_is_found(Failpoint::RefusedIsAcknowledged, SoakViolation::Lost).await;
}

#[tokio::test]
async fn random_message_ids_pass_duplicate_detection() {
    assert_failpoint_is_found(Failpoint::RandomMessageIds, SoakViolation::Duplicated).await;
}

#[tokio::test]
async fn several_sessions_per_aggregate_break_the_order() {
    assert_failpoint_is_found(Failpoint::SessionsPerAggregate, SoakViolation::OutOfOrder).await;
}

async fn assert_broker_failpoint_is_found(defect: BrokerFailpoint, violation: SoakViolation) {
    assert_eq!(expected_broker_violation(defect), violation);
    detect_in_broker(Path::new(BINARY), defect, 0..10).await.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn a_broker_that_replies_before_its_sync_loses_events() {
    assert_broker_failpoint_is_found(BrokerFailpoint::ReplyBeforeSync, SoakViolation::Lost).await;
}

#[tokio::test]
async fn without_duplicate_detection_resent_events_are_doubled() {
    assert_broker_failpoint_is_found(BrokerFailpoint::NoDuplicateDetection, SoakViolation::Duplicated).await;
}
