//! Runs a soak with a failpoint active in every pod: within a few seeds it must break its guarantee, by name, and the same seeds without
//! the failpoint must be clean.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use std::time::Duration;

use broker::failpoints::Failpoint as BrokerFailpoint;
use pipeline::failpoints::Failpoint;
use testkit::cluster::MongoTopology;
use testkit::load::Load;
use testkit::nemesis::{BrokerProcessFault, ClusterFault, FaultPlan, FaultProfile, OperatorAction, PlannedFault};

use super::SoakViolation;
use super::chaos::{self, ChaosOptions};
use super::consumer_soak::{self, ConsumerSoakOptions, Error};
use super::producer_soak::{self, ProducerSoakOptions};

/// A failpoint was not found, or the same run fails without it.
#[derive(Debug, thiserror::Error)]
pub enum NotDetected {
    #[error("no seed of {seeds:?} showed `{violation}`; the last result:\n{last}")]
    NotFound { seeds: Range<u64>, violation: SoakViolation, last: String },
    #[error("seed {seed} is not clean without the failpoint:\n{result}")]
    ControlFailed { seed: u64, result: String },
    #[error("seed {seed}: the test cluster failed: {source}")]
    Cluster { seed: u64, source: Error },
}

/// What one run broke, and its result as text.
type RunResult = Result<(BTreeSet<SoakViolation>, String), Error>;

/// The guarantee that breaks without the mechanism of this failpoint.
pub fn expected_violation(failpoint: Failpoint) -> SoakViolation {
    match failpoint {
        Failpoint::NoFence => SoakViolation::FenceBreached,
        Failpoint::CheckpointAhead
        | Failpoint::SettleBeforeCommit
        | Failpoint::ResumeFromNow
        | Failpoint::RefusedIsAcknowledged
        | Failpoint::GapIgnored => SoakViolation::Lost,
        Failpoint::TokenInsideSplit => SoakViolation::Stalled,
        Failpoint::TwoTransfersPerLane | Failpoint::SessionsPerAggregate => SoakViolation::OutOfOrder,
        // The later transaction moves the cursor, so the events of the earlier one count as duplicates.
        Failpoint::OverlappingTransactions => SoakViolation::Lost,
        Failpoint::NoCursorCheck | Failpoint::RandomMessageIds => SoakViolation::Duplicated,
        // The poisoned read model keeps sums and not a list of its events: an event that passes a parked one shows as a difference.
        Failpoint::ParkedCheckSkipped | Failpoint::NoGenerationCheck | Failpoint::PausedEventsSkipped => {
            SoakViolation::ReadModelDiffers
        }
        Failpoint::PoisonSkipped => SoakViolation::WronglyParked,
    }
}

/// Like [`expected_violation`], for the broker.
pub fn expected_broker_violation(failpoint: BrokerFailpoint) -> SoakViolation {
    match failpoint {
        BrokerFailpoint::ReplyBeforeSync => SoakViolation::Lost,
        BrokerFailpoint::NoDuplicateDetection => SoakViolation::Duplicated,
    }
}

/// Looks for a failpoint of the producer. Returns the seed that showed its violation.
pub async fn detect_in_producer(binary: &Path, failpoint: Failpoint, seeds: Range<u64>) -> Result<u64, NotDetected> {
    let run = async |seed, is_active: bool| -> RunResult {
        let active = is_active.then_some(failpoint);
        let options = ProducerSoakOptions { failpoint: active, ..producer_options_for(failpoint, seed) };
        let result = producer_soak::run(binary, &options).await?;
        Ok((result.violations(), result.to_string()))
    };
    detect(expected_violation(failpoint), seeds, run).await
}

/// Looks for a failpoint of the broker, in what the producer published. Returns the seed that showed its violation.
pub async fn detect_in_broker(
    binary: &Path,
    failpoint: BrokerFailpoint,
    seeds: Range<u64>,
) -> Result<u64, NotDetected> {
    let run = async |seed, is_active: bool| -> RunResult {
        let profile = match failpoint {
            BrokerFailpoint::ReplyBeforeSync => FaultProfile::broker_kills_on_a_slow_disk(),
            BrokerFailpoint::NoDuplicateDetection => FaultProfile::faulty_broker(),
        };
        let broker_failpoint = is_active.then_some(failpoint);
        let options = ProducerSoakOptions { broker_failpoint, profile, ..ProducerSoakOptions::short(seed) };
        let result = producer_soak::run(binary, &options).await?;
        Ok((result.violations(), result.to_string()))
    };
    detect(expected_broker_violation(failpoint), seeds, run).await
}

/// Looks for a failpoint of the consumer. Returns the seed that showed its violation.
pub async fn detect_in_consumer(binary: &Path, failpoint: Failpoint, seeds: Range<u64>) -> Result<u64, NotDetected> {
    let run = async |seed, is_active: bool| -> RunResult {
        let mut options = consumer_options_for(failpoint, seed);
        options.base.failpoint = is_active.then_some(failpoint);
        let result = consumer_soak::run(binary, &options).await?;
        Ok((result.violations(), result.to_string()))
    };
    detect(expected_violation(failpoint), seeds, run).await
}

/// Looks for a failpoint of the consumer that only operators, rollouts or lost messages reveal. Returns the seed that showed its violation.
pub async fn detect_in_chaos(binary: &Path, failpoint: Failpoint, seeds: Range<u64>) -> Result<u64, NotDetected> {
    let run = async |seed, is_active: bool| -> RunResult {
        let mut options = chaos_options_for(failpoint, seed);
        options.base.failpoint = is_active.then_some(failpoint);
        let result = chaos::run(binary, &options).await?;
        Ok((result.violations(), result.to_string()))
    };
    detect(expected_violation(failpoint), seeds, run).await
}

/// Runs seed after seed with the failpoint until one shows the violation, then the same seeds without it.
async fn detect(
    violation: SoakViolation,
    seeds: Range<u64>,
    run: impl AsyncFn(u64, bool) -> RunResult,
) -> Result<u64, NotDetected> {
    let run =
        async |seed, is_active| run(seed, is_active).await.map_err(|source| NotDetected::Cluster { seed, source });
    let (mut found, mut last) = (None, String::new());
    for seed in seeds.clone() {
        let (violations, result) = run(seed, true).await?;
        println!("seed {seed}: {violations:?}\n{result}");
        last = result;
        if violations.contains(&violation) {
            found = Some(seed);
            break;
        }
    }
    let found = found.ok_or(NotDetected::NotFound { seeds: seeds.clone(), violation, last })?;
    for seed in seeds.start..=found {
        let (violations, result) = run(seed, false).await?;
        if !violations.is_empty() {
            return Err(NotDetected::ControlFailed { seed, result });
        }
    }
    Ok(found)
}

/// The run that reveals this failpoint. Without the failpoint it must be clean.
fn producer_options_for(failpoint: Failpoint, seed: u64) -> ProducerSoakOptions {
    let cut = ProducerSoakOptions::short(seed);
    let load = cut.load.clone();
    match failpoint {
        Failpoint::NoFence => ProducerSoakOptions { profile: FaultProfile::late_saves(), ..cut },
        Failpoint::CheckpointAhead => ProducerSoakOptions { profile: FaultProfile::lost_sends(), ..cut },
        Failpoint::TwoTransfersPerLane => ProducerSoakOptions {
            // Few aggregates with many writes each, so that a refused transfer has a successor in flight. Events written together are
            // sent in one transfer and would reveal nothing.
            load: Load { aggregates: 8, run_length: 1..=4, ..load },
            profile: FaultProfile::busy_broker(),
            ..cut
        },
        // An insert with a short `_id` is never split (measured: a document of 16,777,042 bytes makes one event of 16,777,439 bytes, in one piece). Large
        // updates are, which this load does not write: `headwater/tests/producer/split_events.rs` tests it.
        Failpoint::TokenInsideSplit | Failpoint::ResumeFromNow => {
            ProducerSoakOptions { profile: FaultProfile::leader_kills(), ..cut }
        }
        // What was stored without an acknowledgement is sent again, and must have the same id.
        Failpoint::RandomMessageIds => ProducerSoakOptions { profile: FaultProfile::faulty_broker(), ..cut },
        Failpoint::RefusedIsAcknowledged => ProducerSoakOptions { profile: FaultProfile::busy_broker(), ..cut },
        Failpoint::SessionsPerAggregate => ProducerSoakOptions {
            load: Load { aggregates: 8, run_length: 1..=4, ..load },
            profile: FaultProfile::none(),
            ..cut
        },
        Failpoint::NoCursorCheck
        | Failpoint::SettleBeforeCommit
        | Failpoint::OverlappingTransactions
        | Failpoint::ParkedCheckSkipped
        | Failpoint::NoGenerationCheck
        | Failpoint::GapIgnored
        | Failpoint::PoisonSkipped
        | Failpoint::PausedEventsSkipped => unreachable!("a consumer failpoint: see `consumer_options_for`"),
    }
}

/// Like [`producer_options_for`], for the consumer.
fn consumer_options_for(failpoint: Failpoint, seed: u64) -> ConsumerSoakOptions {
    let mut cut = ConsumerSoakOptions { republish: false, poison: false, ..ConsumerSoakOptions::short(seed) };
    let base = &mut cut.base;
    base.load = Load { events: 1_500, aggregates: 20, customers: 2, run_length: 4..=12, ..base.load.clone() };
    match failpoint {
        // Applied events are published again.
        Failpoint::NoCursorCheck => {
            base.profile = FaultProfile::none();
            cut.republish = true;
        }
        // Without a sequence nothing repairs an event that was settled and never applied.
        Failpoint::SettleBeforeCommit => {
            base.profile = FaultProfile::pod_kills();
            cut.sequence = false;
        }
        // Two customers for twenty aggregates: first halves of batches conflict on a hot document, second halves overtake them.
        Failpoint::OverlappingTransactions => {
            base.profile = FaultProfile::none();
            cut.sequence = false;
        }
        Failpoint::ParkedCheckSkipped | Failpoint::PoisonSkipped => {
            base.profile = FaultProfile::none();
            cut.poison = true;
        }
        Failpoint::NoFence
        | Failpoint::CheckpointAhead
        | Failpoint::TwoTransfersPerLane
        | Failpoint::TokenInsideSplit
        | Failpoint::NoGenerationCheck
        | Failpoint::RandomMessageIds
        | Failpoint::ResumeFromNow
        | Failpoint::RefusedIsAcknowledged
        | Failpoint::SessionsPerAggregate => {
            unreachable!("a producer failpoint: see `producer_options_for`")
        }
        Failpoint::GapIgnored | Failpoint::PausedEventsSkipped => {
            unreachable!("found in chaos: see `chaos_options_for`")
        }
    }
    cut
}

/// Like [`producer_options_for`], for a run with operators, rollouts and an audit, and one kind of fault.
fn chaos_options_for(failpoint: Failpoint, seed: u64) -> ChaosOptions {
    let fault = match failpoint {
        Failpoint::PausedEventsSkipped => ClusterFault::Operator(OperatorAction::PauseReadModel),
        _ => ClusterFault::Broker(BrokerProcessFault::LoseMessages),
    };
    let mut options = ChaosOptions::with_topology(seed, Duration::from_secs(8), MongoTopology::SingleNode, 2);
    // Few aggregates: a lost event has a successor.
    (options.base.load.rate, options.base.load.aggregates, options.base.verbose) = (Some(200.0), 20, false);
    let (after, duration) = (Duration::from_secs(1), Duration::from_secs(5));
    options.plan = FaultPlan { faults: vec![PlannedFault { after, fault, duration, seed: seed as u32 }] };
    options
}
