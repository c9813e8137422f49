//! Runs a soak with a failpoint active in every pod; one of a few seeds must fail.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use pipeline::failpoints::Failpoint;
use testkit::cluster::Error;
use testkit::load::Load;
use testkit::nemesis::FaultProfile;

use super::consumer_soak::{self, ConsumerSoakOptions, ConsumerSoakResult};
use super::producer_soak::{ProducerSoakOptions, ProducerSoakResult, run};

/// The first seed whose run was not clean, with its result.
pub async fn find_failing_seed(
    binary: &Path,
    failpoint: Failpoint,
    seeds: Range<u64>,
) -> Result<Option<(u64, ProducerSoakResult)>, Error> {
    for seed in seeds {
        let options = ProducerSoakOptions { failpoint: Some(failpoint), ..producer_options_for(failpoint, seed) };
        let outcome = run(binary, &options).await?;
        if !outcome.is_clean() {
            return Ok(Some((seed, outcome)));
        }
    }
    Ok(None)
}

/// The run that reveals this failpoint. Without the failpoint it must be clean.
pub fn producer_options_for(failpoint: Failpoint, seed: u64) -> ProducerSoakOptions {
    let cut = ProducerSoakOptions { stall_timeout: Duration::from_secs(8), ..ProducerSoakOptions::short(seed) };
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
        // updates are, which this load does not write: `headwater/tests/producer/split.rs` tests it.
        Failpoint::TokenInsideSplit => ProducerSoakOptions { profile: FaultProfile::leader_kills(), ..cut },
        Failpoint::NoCursorCheck
        | Failpoint::SettleBeforeCommit
        | Failpoint::OverlappingTransactions
        | Failpoint::ParkedCheckSkipped
        | Failpoint::NoGenerationCheck => unreachable!("a consumer failpoint: see `consumer_options_for`"),
    }
}

/// Like [`find_failing_seed`], for the consumer.
pub async fn find_failing_consumer_seed(
    binary: &Path,
    failpoint: Failpoint,
    seeds: Range<u64>,
) -> Result<Option<(u64, ConsumerSoakResult)>, consumer_soak::Error> {
    for seed in seeds {
        let mut options = consumer_options_for(failpoint, seed);
        options.base.failpoint = Some(failpoint);
        let outcome = consumer_soak::run(binary, &options).await?;
        if !outcome.is_clean() {
            return Ok(Some((seed, outcome)));
        }
    }
    Ok(None)
}

/// Like [`producer_options_for`], for the consumer.
pub fn consumer_options_for(failpoint: Failpoint, seed: u64) -> ConsumerSoakOptions {
    let mut cut = ConsumerSoakOptions { republish: false, poison: false, ..ConsumerSoakOptions::short(seed) };
    let base = &mut cut.base;
    base.stall_timeout = Duration::from_secs(6);
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
        Failpoint::ParkedCheckSkipped => {
            base.profile = FaultProfile::none();
            cut.poison = true;
        }
        Failpoint::NoFence
        | Failpoint::CheckpointAhead
        | Failpoint::TwoTransfersPerLane
        | Failpoint::TokenInsideSplit
        | Failpoint::NoGenerationCheck => {
            unreachable!("a producer failpoint: see `producer_options_for`")
        }
    }
    cut
}
