//! `headwater checkpoint`: where the pipeline stands, and the operator's hand on it.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use lease::Contender;
use pipeline::capture::{self, Capture, Start};
use pipeline::checkpoint::{Checkpoint, CheckpointStore, Claim, MongoCheckpoints, Phase};

use super::run::ConfigArguments;
use crate::exit::Exit;

/// Show where the pipeline stands, or set it anew.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the checkpoint.
    Show {
        #[command(flatten)]
        config: ConfigArguments,
    },
    /// Begin a new epoch: at `beginning` (read all the source holds), `now`, or a time the oplog still reaches back to.
    ///
    /// Works while pods run: it takes a term of its own, so the leader notices, and goes on from there. Nothing is skipped with
    /// `beginning`; with `now`, everything between the old checkpoint and this moment is never published.
    Reset {
        #[command(flatten)]
        config: ConfigArguments,
        /// `beginning`, `now`, or a time such as 2026-01-31T12:00:00Z.
        #[arg(long, value_name = "START")]
        start: Start,
        /// Yes, this is meant.
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Show { config } => show(&config).await,
        Command::Reset { config, start, yes } => reset(&config, start, yes).await,
    }
}

async fn show(config: &ConfigArguments) -> anyhow::Result<()> {
    let config = config.load()?;
    let places = crate::run::places(&config, None).await?;
    let store = MongoCheckpoints::new(&places.coordination, &places.pipeline, places.source.fingerprint());
    match store.show().await? {
        Some(checkpoint) => tell(&places.pipeline, &checkpoint),
        None => println!("`{}` has no checkpoint yet", places.pipeline),
    }
    Ok(())
}

async fn reset(config: &ConfigArguments, start: Start, yes: bool) -> anyhow::Result<()> {
    let config = config.load()?;
    let consequence = match start {
        Start::Beginning => "everything the source holds is published again; consumers skip what they have applied",
        Start::Now => "what was written since the checkpoint is never published",
        Start::At(_) => {
            "what was written between the checkpoint and that time is never published, if that time is later"
        }
    };
    if !yes {
        bail!(Exit::Usage.because(format!(
            "this begins a new epoch of `{}` at {start}: {consequence}; if that is meant, say --yes",
            config.pipeline
        )));
    }
    let places = crate::run::places(&config, None).await?;
    // Asked once, by somebody who waits: a busy server is given time.
    let patient = capture::Config { answer_within: Duration::from_secs(60), ..config.producer.capture.clone() };
    let capture = Capture::new(&places.server, places.source.clone(), patient);
    capture.check(&start).await.context("look at the source")?;
    let store = MongoCheckpoints::new(&places.coordination, &places.pipeline, places.source.fingerprint());
    let stored = store.show().await?.with_context(|| format!("`{}` has no checkpoint to reset", places.pipeline))?;
    let phase = capture.first_phase(&start).await.context("find where to start")?;
    let claim = Claim {
        term: stored.term.next(),
        claimant: Contender::random(),
        pod_id: format!("{} (operator)", places.pod_id),
    };
    let claimed = store.claim(&claim).await.context("take a term")?;
    store.begin_epoch(&claim, claimed.epoch, &phase).await?;
    let now = store.show().await?.context("the checkpoint vanished")?;
    println!("reset: {consequence}");
    tell(&places.pipeline, &now);
    Ok(())
}

fn tell(pipeline: &str, checkpoint: &Checkpoint) {
    println!("pipeline      {pipeline}");
    println!("term          {}", checkpoint.term);
    println!("epoch         {}", checkpoint.epoch);
    match &checkpoint.phase {
        Phase::Snapshot { progress, .. } => println!("phase         snapshot, {} read", progress.scanned),
        phase => println!("phase         {}", phase.name()),
    }
    if let Some(time) = checkpoint.cluster_time {
        println!("cluster time  {}.{}", time.time, time.increment);
    }
    if let Some(saved) = checkpoint.saved_at.and_then(|at| at.try_to_rfc3339_string().ok()) {
        println!("saved         {saved} by {}", checkpoint.saved_by);
    }
}
