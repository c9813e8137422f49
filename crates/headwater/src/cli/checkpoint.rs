//! `headwater checkpoint`: where the pipeline stands, and the operator's hand on it.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use lease::Contender;
use mongo_error::DriverError;
use mongodb::bson::{Document, doc};
use pipeline::capture::{self, Capture, PipelineStart};
use pipeline::checkpoint::{Checkpoint, CheckpointPhase, CheckpointStore, Claim, MongoCheckpointStore};
use pipeline::event::ResumeToken;
use pipeline::producer::ProducerDependencies;
use serde_json::{Value as Json, json};

use super::run::{ConfigArguments, FOUND_WITHIN};
use crate::config::Config;
use crate::exit::Exit;
use crate::out;

const EXAMPLES: &str = "\
Examples:
  headwater checkpoint show --json
  headwater checkpoint set --token 8267… --yes
  headwater checkpoint reset --start beginning --yes
  headwater checkpoint reset --start 2026-01-31T12:00:00Z --yes";

/// Show where the pipeline stands, or set it anew.
///
/// The checkpoint is where a leader begins to read: everything before it was taken by the bus. `set` and `reset` work while pods run: they take a
/// term of their own, so the leader notices, within a second or two, and goes on from there.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the checkpoint: term, epoch, how far it has come and since when.
    Show {
        #[command(flatten)]
        config: ConfigArguments,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Begin a new epoch at a resume token, such as one that `checkpoint show` printed before.
    ///
    /// For going back to a place that is known, or past one that cannot be read. A later token leaves out what lies between; an earlier one has it
    /// published again. The oplog must still hold what follows the token.
    Set {
        #[command(flatten)]
        config: ConfigArguments,
        /// The token's text, as `checkpoint show` prints it.
        #[arg(long, value_name = "TOKEN")]
        token: Token,
        #[command(flatten)]
        meant: Meant,
    },
    /// Begin a new epoch: at `beginning` (read all the source holds), `now`, or a time the oplog still reaches back to.
    ///
    /// A time that is yet to come is refused: what is written until then would never be published. Nothing is skipped with `beginning`; with `now`, everything between the old checkpoint and this moment is never published.
    Reset {
        #[command(flatten)]
        config: ConfigArguments,
        /// `beginning`, `now`, or a time that has passed, such as 2026-01-31T12:00:00Z.
        #[arg(long, value_name = "START")]
        start: PipelineStart,
        #[command(flatten)]
        meant: Meant,
    },
}

#[derive(Debug, Args)]
struct Meant {
    /// Yes, this is meant.
    #[arg(long)]
    yes: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// A resume token as one word.
#[derive(Clone, Debug)]
struct Token(ResumeToken);

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || "a token is a row of hexadecimal digits, as `headwater checkpoint show` prints it".to_owned();
        if text.len() < 18 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        ResumeToken::try_from(doc! { "_data": text }).map(Self).map_err(|_| refused())
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Show { config, json } => show(&Desk::open(&config).await?, json).await,
        Command::Set { config, token, meant } => set(&Desk::open(&config).await?, token.0, &meant).await,
        Command::Reset { config, start, meant } => reset(&Desk::open(&config).await?, start, &meant).await,
    }
}

/// The checkpoint of one pipeline, and its source.
struct Desk {
    config: Config,
    places: ProducerDependencies,
    store: MongoCheckpointStore,
}

impl Desk {
    async fn open(arguments: &ConfigArguments) -> anyhow::Result<Self> {
        let config = arguments.load()?;
        let places = crate::run::places(&config, FOUND_WITHIN).await?;
        let store = MongoCheckpointStore::new(&places.coordination, &places.pipeline, places.source.fingerprint());
        Ok(Self { config, places, store })
    }

    async fn stored(&self) -> anyhow::Result<Checkpoint> {
        let nothing =
            || format!("`{}` has no checkpoint yet: it gets one when a pod first leads", self.places.pipeline);
        self.store.load().await?.with_context(nothing)
    }

    /// Without `--yes` nothing is done.
    fn is_meant(&self, meant: &Meant, at: &str, consequence: &str) -> anyhow::Result<()> {
        let pipeline = &self.places.pipeline;
        if !meant.yes {
            bail!(Exit::Usage.because(format!(
                "this begins a new epoch of `{pipeline}` at {at}: {consequence}; if that is meant, say --yes"
            )));
        }
        Ok(())
    }

    /// Takes a term, so that whoever leads is shut out until it has read the checkpoint again.
    async fn begin(
        &self,
        stored: &Checkpoint,
        phase: &CheckpointPhase,
        consequence: &str,
        json: bool,
    ) -> anyhow::Result<()> {
        let claim = Claim {
            term: stored.term.next(),
            claimant: Contender::random(),
            pod_id: format!("{} (operator)", self.places.pod_id),
        };
        let claimed = self.store.claim(&claim).await.context("take a term")?;
        self.store.begin_epoch(&claim, claimed.epoch, phase).await?;
        let now = self.stored().await?;
        if json {
            let mut told = to_json(&self.places.pipeline, &now);
            told["consequence"] = consequence.into();
            out::line(format_args!("{told:#}"))?;
        } else {
            out::line(format_args!("done: {consequence}"))?;
            out::print(told(&self.places.pipeline, &now))?;
        }
        Ok(())
    }
}

async fn show(desk: &Desk, json: bool) -> anyhow::Result<()> {
    let pipeline = &desk.places.pipeline;
    match (desk.store.load().await?, json) {
        (Some(checkpoint), false) => out::print(told(pipeline, &checkpoint))?,
        (Some(checkpoint), true) => out::line(format_args!("{:#}", to_json(pipeline, &checkpoint)))?,
        (None, false) => {
            out::line(format_args!("`{pipeline}` has no checkpoint yet: it gets one when a pod first leads"))?
        }
        (None, true) => out::line(format_args!("{:#}", json!({ "pipeline": pipeline, "phase": null })))?,
    };
    Ok(())
}

async fn set(desk: &Desk, token: ResumeToken, meant: &Meant) -> anyhow::Result<()> {
    let stored = desk.stored().await?;
    let consequence = match &stored.phase {
        CheckpointPhase::Stream { token: at } if token.key() > at.key() => {
            "what was written between the checkpoint and that token is never published"
        }
        CheckpointPhase::Stream { token: at } if token.key() == at.key() => {
            "it goes on where it stands, in a new epoch"
        }
        CheckpointPhase::Stream { .. } if desk.config.source.sequence.is_some() => {
            "what was written since that token is published again; consumers skip what they have applied"
        }
        CheckpointPhase::Stream { .. } => {
            "what was written since that token is published and applied again: without `source.sequence` consumers cannot know it"
        }
        CheckpointPhase::Snapshot { .. } => {
            "the snapshot that is being read ends here, and what it has not read is never published"
        }
        CheckpointPhase::Unstarted => "what was written before that token is never published",
    };
    desk.is_meant(meant, "that token", consequence)?;
    can_follow(&desk.places, &token).await?;
    desk.begin(&stored, &CheckpointPhase::Stream { token }, consequence, meant.json).await
}

/// A server looks for a token only when it is asked for what follows; for one that is yet to come it would wait, and everything until then be left out.
async fn can_follow(places: &ProducerDependencies, token: &ResumeToken) -> anyhow::Result<()> {
    let hello = places.server.database("admin").run_command(doc! { "hello": 1 }).await;
    let hello = hello.map_err(DriverError::from).context("ask the source for its time")?;
    let now = hello.get_datetime("localTime").map_or(i64::MAX, |now| now.timestamp_millis() / 1_000);
    if token.cluster_time().is_some_and(|at| i64::from(at.time) > now.saturating_add(MOST_AHEAD)) {
        bail!(Exit::Usage.because("that token lies in the future, and nothing was done; is it one of this source?"));
    }
    let stream = doc! { "$changeStream": { "startAfter": token.to_document() } };
    let database = places.server.database(&places.source.database);
    let open = async {
        match &places.source.collection {
            Some(name) => database.collection::<Document>(name).aggregate([stream]).batch_size(1).await.map(drop),
            None => database.aggregate([stream]).batch_size(1).await.map(drop),
        }
    };
    match tokio::time::timeout(PATIENCE, open).await {
        // Still looking for the first event, so it has found the place.
        Ok(Ok(())) | Err(_) => Ok(()),
        Ok(Err(error)) => Err(DriverError::from(error)).context(
            "the source cannot be followed from that token, and nothing was done; `checkpoint reset` begins elsewhere",
        ),
    }
}

/// Seconds; members' clocks differ.
const MOST_AHEAD: i64 = 60;
/// Asked once, by somebody who waits: a busy server is given time.
const PATIENCE: Duration = Duration::from_secs(60);

async fn reset(desk: &Desk, start: PipelineStart, meant: &Meant) -> anyhow::Result<()> {
    let again = match desk.config.source.sequence {
        Some(_) => "consumers skip what they have applied",
        None => "without `source.sequence` consumers apply it again",
    };
    let consequence = match start {
        PipelineStart::Beginning => format!("everything the source holds is published again; {again}"),
        PipelineStart::Now => "what was written since the checkpoint is never published".to_owned(),
        PipelineStart::At(_) => format!(
            "what was written between the checkpoint and that time is never published, if that time is later, and published again, if it \
             is earlier; {again}"
        ),
    };
    desk.is_meant(meant, &start.to_string(), &consequence)?;
    let patient = capture::Config { answer_within: PATIENCE, ..desk.config.producer.capture.clone() };
    let capture = Capture::new(&desk.places.server, desk.places.source.clone(), patient);
    match capture.check(&start).await {
        Err(error @ capture::Error::StartInFuture { .. }) => {
            bail!(Exit::Usage.because(format!("nothing was done: {error}")));
        }
        looked => looked.context("look at the source")?,
    }
    let stored = desk.stored().await?;
    let phase = capture.first_phase(&start).await.context("find where to start")?;
    desk.begin(&stored, &phase, &consequence, meant.json).await
}

fn told(pipeline: &str, checkpoint: &Checkpoint) -> String {
    let mut lines = vec![
        ("pipeline", pipeline.to_owned()),
        ("term", checkpoint.term.to_string()),
        ("epoch", checkpoint.epoch.to_string()),
    ];
    match &checkpoint.phase {
        CheckpointPhase::Snapshot { progress, .. } => {
            lines.push(("phase", format!("snapshot, {} read", progress.scanned)))
        }
        phase => lines.push(("phase", phase.name().to_owned())),
    }
    lines.extend(token(checkpoint).map(|token| ("token", token.key().to_owned())));
    lines.extend(checkpoint.cluster_time.map(|at| ("cluster time", format!("{}.{}", at.time, at.increment))));
    lines.extend(saved_at(checkpoint).map(|at| ("saved", format!("{at} by {}", checkpoint.saved_by))));
    lines.into_iter().map(|(name, value)| format!("{name:<14}{value}\n")).collect()
}

fn to_json(pipeline: &str, checkpoint: &Checkpoint) -> Json {
    let snapshot = match &checkpoint.phase {
        CheckpointPhase::Snapshot { progress, .. } => json!({ "run": progress.run, "scanned": progress.scanned }),
        CheckpointPhase::Unstarted | CheckpointPhase::Stream { .. } => Json::Null,
    };
    json!({
        "pipeline": pipeline,
        "term": checkpoint.term.get(),
        "epoch": checkpoint.epoch.get(),
        "phase": checkpoint.phase.name(),
        "snapshot": snapshot,
        "token": token(checkpoint).map(ResumeToken::key),
        "cluster_time": checkpoint.cluster_time.map(|at| json!({ "time": at.time, "increment": at.increment })),
        "saved_at": saved_at(checkpoint),
        "saved_by": checkpoint.saved_by,
    })
}

/// Where the stream goes on: of a snapshot, when it is done.
fn token(checkpoint: &Checkpoint) -> Option<&ResumeToken> {
    match &checkpoint.phase {
        CheckpointPhase::Stream { token } | CheckpointPhase::Snapshot { start: token, .. } => Some(token),
        CheckpointPhase::Unstarted => None,
    }
}

fn saved_at(checkpoint: &Checkpoint) -> Option<String> {
    checkpoint.saved_at.and_then(|at| at.try_to_rfc3339_string().ok())
}
