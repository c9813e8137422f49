//! A defect is planted in every pod; the soak that suits it must notice within a few seeds.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use pipeline::failpoints::Failpoint;
use testkit::cluster::Error;
use testkit::load::Load;
use testkit::nemesis::Profile;

use super::consumer;
use super::producer::{Options, Outcome, run};

/// The first of the seeds whose run was not clean, with what it found.
pub async fn find_defect(binary: &Path, defect: Failpoint, seeds: Range<u64>) -> Result<Option<(u64, Outcome)>, Error> {
    for seed in seeds {
        let options = Options { defect: Some(defect), ..hunting(defect, seed) };
        let outcome = run(binary, &options).await?;
        if !outcome.is_clean() {
            return Ok(Some((seed, outcome)));
        }
    }
    Ok(None)
}

/// The run in which this defect would show, without it: must be clean.
pub fn hunting(defect: Failpoint, seed: u64) -> Options {
    let cut = Options { patience: Duration::from_secs(8), ..Options::cut(seed) };
    let load = cut.load.clone();
    match defect {
        Failpoint::NoFence => Options { profile: Profile::late_saves(), ..cut },
        Failpoint::CheckpointAhead => Options { profile: Profile::lost_sends(), ..cut },
        Failpoint::TwoTransfersPerLane => Options {
            // Few aggregates, each written again and again: a refused transfer has a successor on the way. What is written in one go is
            // sent in one transfer, and shows nothing.
            load: Load { aggregates: 8, run: 1..=4, ..load },
            profile: Profile::busy_broker(),
            ..cut
        },
        // An insert with a short `_id` is never split (measured: a document of 16,777,042 bytes makes one event of 16,777,439 bytes, in one piece). Large
        // updates are, which this load does not write: `headwater/tests/producer/split.rs` hunts it.
        Failpoint::TokenInsideSplit => Options { profile: Profile::kills(), ..cut },
        Failpoint::NoCursorCheck
        | Failpoint::SettleBeforeCommit
        | Failpoint::OverlappingTransactions
        | Failpoint::ParkedCheckSkipped => unreachable!("a consumer's: see `hunting_consumers`"),
    }
}

/// As [`find_defect`], for what consumers do.
pub async fn find_consumer_defect(
    binary: &Path,
    defect: Failpoint,
    seeds: Range<u64>,
) -> Result<Option<(u64, consumer::Outcome)>, consumer::Error> {
    for seed in seeds {
        let mut options = hunting_consumers(defect, seed);
        options.walk.defect = Some(defect);
        let outcome = consumer::run(binary, &options).await?;
        if !outcome.is_clean() {
            return Ok(Some((seed, outcome)));
        }
    }
    Ok(None)
}

/// As [`hunting`], for what consumers do.
pub fn hunting_consumers(defect: Failpoint, seed: u64) -> consumer::Options {
    let mut cut = consumer::Options { echo: false, poison: false, ..consumer::Options::cut(seed) };
    let walk = &mut cut.walk;
    walk.patience = Duration::from_secs(6);
    walk.load = Load { events: 1_500, aggregates: 20, customers: 2, run: 4..=12, ..walk.load.clone() };
    match defect {
        // What was applied is said again.
        Failpoint::NoCursorCheck => {
            walk.profile = Profile::peace();
            cut.echo = true;
        }
        // Without a sequence nothing heals what was settled and never applied.
        Failpoint::SettleBeforeCommit => {
            walk.profile = Profile::dead_pods();
            cut.sequence = false;
        }
        // Two customers for twenty aggregates: first halves of batches meet at a hot document, second halves overtake them.
        Failpoint::OverlappingTransactions => {
            walk.profile = Profile::peace();
            cut.sequence = false;
        }
        Failpoint::ParkedCheckSkipped => {
            walk.profile = Profile::peace();
            cut.poison = true;
        }
        Failpoint::NoFence
        | Failpoint::CheckpointAhead
        | Failpoint::TwoTransfersPerLane
        | Failpoint::TokenInsideSplit => {
            unreachable!("a producer's: see `hunting`")
        }
    }
    cut
}
