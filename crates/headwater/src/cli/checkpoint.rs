//! `headwater checkpoint`: where the pipeline stands, and the operator's hand on it.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use lease::CandidateId;
use mongo_error::DriverError;
use mongodb::bson::{Document, doc};
use pipeline::capture::{self, Capture, PipelineStart};
use pipeline::checkpoint::{Checkpoint, CheckpointPhase, CheckpointStore, Claim, MongoCheckpointStore};
use pipeline::event::ResumeToken;
use pipeline::producer::ProducerDependencies;
use serde_json::{Value as Json, json};

use super::run::ConfigArgs;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::output;

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
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
enum CheckpointCommand {
    /// Show the checkpoint: term, epoch, how far it has come and since when.
    Show {
        #[command(flatten)]
        config: ConfigArgs,
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
        config: ConfigArgs,
        /// The token's text, as `checkpoint show` prints it.
        #[arg(long, value_name = "TOKEN")]
        token: ResumeTokenArg,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Begin a new epoch: at `beginning` (read all the source holds), `now`, or a time the oplog still reaches back to.
    ///
    /// A time that is yet to come is refused: what is written until then would never be published. Nothing is skipped with `beginning`; with `now`, everything between the old checkpoint and this moment is never published.
    Reset {
        #[command(flatten)]
        config: ConfigArgs,
        /// `beginning`, `now`, or a time that has passed, such as 2026-01-31T12:00:00Z.
        #[arg(long, value_name = "START")]
        start: PipelineStart,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

#[derive(Debug, clap::Args)]
struct ConfirmArgs {
    /// Yes, this is confirm.
    #[arg(long)]
    yes: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// A resume token as one word.
#[derive(Clone, Debug)]
struct ResumeTokenArg(ResumeToken);

impl FromStr for ResumeTokenArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || "a token is a row of hexadecimal digits, as `headwater checkpoint show` prints it".to_owned();
        if text.len() < 18 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        ResumeToken::try_from(doc! { "_data": text }).map(Self).map_err(|_| refused())
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        CheckpointCommand::Show { config, json } => show(&CheckpointContext::open(&config).await?, json).await,
        CheckpointCommand::Set { config, token, confirm } => {
            set(&CheckpointContext::open(&config).await?, token.0, &confirm).await
        }
        CheckpointCommand::Reset { config, start, confirm } => {
            reset(&CheckpointContext::open(&config).await?, start, &confirm).await
        }
    }
}

/// The checkpoint of one pipeline, and its source.
struct CheckpointContext {
    config: Config,
    places: ProducerDependencies,
    store: MongoCheckpointStore,
}

impl CheckpointContext {
    async fn open(args: &ConfigArgs) -> anyhow::Result<Self> {
        let config = args.load()?;
        let places = connect::producer_dependencies(&config, COMMAND_TIMEOUT).await?;
        let store = MongoCheckpointStore::new(&places.coordination, &places.pipeline, places.source.fingerprint());
        Ok(Self { config, places, store })
    }

    async fn load_checkpoint(&self) -> anyhow::Result<Checkpoint> {
        let nothing =
            || format!("`{}` has no checkpoint yet: it gets one when a pod first leads", self.places.pipeline);
        self.store.load().await?.with_context(nothing)
    }

    /// Without `--yes` nothing is done.
    fn require_confirmation(&self, confirm: &ConfirmArgs, at: &str, consequence: &str) -> anyhow::Result<()> {
        let pipeline = &self.places.pipeline;
        if !confirm.yes {
            bail!(ExitReason::Usage.with_message(format!(
                "this begins a new epoch of `{pipeline}` at {at}: {consequence}; if that is confirm, say --yes"
            )));
        }
        Ok(())
    }

    /// Takes a term, so that whoever leads is shut out until it has read the checkpoint again.
    async fn begin_epoch(
        &self,
        stored: &Checkpoint,
        phase: &CheckpointPhase,
        consequence: &str,
        json: bool,
    ) -> anyhow::Result<()> {
        let claim = Claim {
            term: stored.term.next(),
            claimant: CandidateId::random(),
            pod_id: format!("{} (operator)", self.places.pod_id),
        };
        let claimed = self.store.claim(&claim).await.context("take a term")?;
        self.store.begin_epoch(&claim, claimed.epoch, phase).await?;
        let now = self.load_checkpoint().await?;
        if json {
            let mut told = to_json(&self.places.pipeline, &now);
            told["consequence"] = consequence.into();
            output::print_line(format_args!("{told:#}"))?;
        } else {
            output::print_line(format_args!("done: {consequence}"))?;
            output::print(to_text(&self.places.pipeline, &now))?;
        }
        Ok(())
    }
}

async fn show(context: &CheckpointContext, json: bool) -> anyhow::Result<()> {
    let pipeline = &context.places.pipeline;
    match (context.store.load().await?, json) {
        (Some(checkpoint), false) => output::print(to_text(pipeline, &checkpoint))?,
        (Some(checkpoint), true) => output::print_line(format_args!("{:#}", to_json(pipeline, &checkpoint)))?,
        (None, false) => {
            output::print_line(format_args!("`{pipeline}` has no checkpoint yet: it gets one when a pod first leads"))?
        }
        (None, true) => output::print_line(format_args!("{:#}", json!({ "pipeline": pipeline, "phase": null })))?,
    };
    Ok(())
}

async fn set(context: &CheckpointContext, token: ResumeToken, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let stored = context.load_checkpoint().await?;
    let consequence = match &stored.phase {
        CheckpointPhase::Stream { token: at } if token.key() > at.key() => {
            "what was written between the checkpoint and that token is never published"
        }
        CheckpointPhase::Stream { token: at } if token.key() == at.key() => {
            "it goes on where it stands, in a new epoch"
        }
        CheckpointPhase::Stream { .. } if context.config.source.sequence.is_some() => {
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
    context.require_confirmation(confirm, "that token", consequence)?;
    check_resumable(&context.places, &token).await?;
    context.begin_epoch(&stored, &CheckpointPhase::Stream { token }, consequence, confirm.json).await
}

/// A server looks for a token only when it is asked for what follows; for one that is yet to come it would wait, and everything until then be left out.
async fn check_resumable(places: &ProducerDependencies, token: &ResumeToken) -> anyhow::Result<()> {
    let hello = places.server.database("admin").run_command(doc! { "hello": 1 }).await;
    let hello = hello.map_err(DriverError::from).context("ask the source for its time")?;
    let now = hello.get_datetime("localTime").map_or(i64::MAX, |now| now.timestamp_millis() / 1_000);
    if token.cluster_time().is_some_and(|at| i64::from(at.time) > now.saturating_add(MAX_SECONDS_AHEAD)) {
        bail!(
            ExitReason::Usage
                .with_message("that token lies in the future, and nothing was done; is it one of this source?")
        );
    }
    let stream = doc! { "$changeStream": { "startAfter": token.to_document() } };
    let database = places.server.database(&places.source.database);
    let open = async {
        match &places.source.collection {
            Some(name) => database.collection::<Document>(name).aggregate([stream]).batch_size(1).await.map(drop),
            None => database.aggregate([stream]).batch_size(1).await.map(drop),
        }
    };
    match tokio::time::timeout(SOURCE_TIMEOUT, open).await {
        // Still looking for the first event, so it has found the place.
        Ok(Ok(())) | Err(_) => Ok(()),
        Ok(Err(error)) => Err(DriverError::from(error)).context(
            "the source cannot be followed from that token, and nothing was done; `checkpoint reset` begins elsewhere",
        ),
    }
}

/// Seconds; members' clocks differ.
const MAX_SECONDS_AHEAD: i64 = 60;
/// Asked once, by somebody who waits: a busy server is given time.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(60);

async fn reset(context: &CheckpointContext, start: PipelineStart, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let again = match context.config.source.sequence {
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
    context.require_confirmation(confirm, &start.to_string(), &consequence)?;
    let config = capture::Config { response_timeout: SOURCE_TIMEOUT, ..context.config.producer.capture.clone() };
    let capture = Capture::new(&context.places.server, context.places.source.clone(), config);
    match capture.check(&start).await {
        Err(error @ capture::Error::StartInFuture { .. }) => {
            bail!(ExitReason::Usage.with_message(format!("nothing was done: {error}")));
        }
        looked => looked.context("look at the source")?,
    }
    let stored = context.load_checkpoint().await?;
    let phase = capture.initial_phase(&start).await.context("find where to start")?;
    context.begin_epoch(&stored, &phase, &consequence, confirm.json).await
}

fn to_text(pipeline: &str, checkpoint: &Checkpoint) -> String {
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
    lines.extend(resume_token(checkpoint).map(|token| ("token", token.key().to_owned())));
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
        "token": resume_token(checkpoint).map(ResumeToken::key),
        "cluster_time": checkpoint.cluster_time.map(|at| json!({ "time": at.time, "increment": at.increment })),
        "saved_at": saved_at(checkpoint),
        "saved_by": checkpoint.saved_by,
    })
}

/// Where the stream goes on: of a snapshot, when it is done.
fn resume_token(checkpoint: &Checkpoint) -> Option<&ResumeToken> {
    match &checkpoint.phase {
        CheckpointPhase::Stream { token } | CheckpointPhase::Snapshot { start: token, .. } => Some(token),
        CheckpointPhase::Unstarted => None,
    }
}

fn saved_at(checkpoint: &Checkpoint) -> Option<String> {
    checkpoint.saved_at.and_then(|at| at.try_to_rfc3339_string().ok())
}
