//! `headwater checkpoint`: shows, sets and resets the checkpoint.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use lease::{CandidateId, Term};
use mongo_error::DriverError;
use mongodb::bson::{Document, doc};
use pipeline::capture::{self, Capture, StartPosition};
use pipeline::checkpoint::{
    Checkpoint, CheckpointClaim, CheckpointPhase, CheckpointStore, MongoCheckpointStore, ReplayCounter,
};
use pipeline::event::ResumeToken;
use pipeline::producer::ProducerDependencies;
use pipeline::source::read_cluster_id;
use serde_json::{Value as Json, json};

use super::shared_args::{ConfigArgs, ConfirmArgs};
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater checkpoint show --json
  headwater checkpoint set --token 8267… --yes
  headwater checkpoint reset --start beginning --yes
  headwater checkpoint reset --start 2026-01-31T12:00:00Z --yes";

/// Show, set or reset the checkpoint.
///
/// The checkpoint is the position where a leader starts to read: Service Bus has accepted everything before it. `set` and `reset` work while pods run: they take a
/// new term, and the leader continues from the new position within two seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
enum CheckpointCommand {
    /// Show the checkpoint: term, epoch, phase, position and when it was saved
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Move the checkpoint to a resume token that `checkpoint show` printed before
    ///
    /// Use it to go back to a known position, or past a position that cannot be read. With a later token the events in between are not published; with an
    /// earlier one they are published again, with new message ids, so that duplicate detection does not drop them. With `source.sequence` a new epoch
    /// starts, and consumers skip exactly the events that they have applied. Without it the epoch stays, and consumers skip every event up to the last one
    /// that they applied of the same aggregate. The oplog must still hold the changes after the token. Before the first pod has run, it makes the pipeline
    /// continue where another program stopped publishing.
    Set {
        #[command(flatten)]
        config: ConfigArgs,
        /// Resume token, as `checkpoint show` prints it
        #[arg(long, value_name = "TOKEN")]
        token: ResumeTokenArg,
        #[command(flatten)]
        confirm: ConfirmArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Start a new epoch at `beginning` (read everything the source holds), at `now`, or at a time that the oplog still covers
    ///
    /// `beginning` skips nothing. With `now`, events between the old checkpoint and this moment are never published. A time in the future is refused,
    /// because events written before it would never be published.
    Reset {
        #[command(flatten)]
        config: ConfigArgs,
        /// `beginning`, `now`, or a time in the past such as 2026-01-31T12:00:00Z
        #[arg(long, value_name = "START")]
        start: StartPosition,
        #[command(flatten)]
        confirm: ConfirmArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// A resume token on the command line.
#[derive(Clone, Debug)]
struct ResumeTokenArg(ResumeToken);

impl FromStr for ResumeTokenArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            || "a resume token is a string of hexadecimal digits, as `headwater checkpoint show` prints it".to_owned();
        // Type, timestamp and increment alone have 18 digits.
        if text.len() < 18 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        // Tokens are ordered as text, and the server writes upper case.
        ResumeToken::try_from(doc! { "_data": text.to_ascii_uppercase() }).map(Self).map_err(|_| refused())
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        CheckpointCommand::Show { config, json } => show(&CheckpointContext::open(&config).await?, json).await,
        CheckpointCommand::Set { config, token, confirm, json } => {
            set(&CheckpointContext::open(&config).await?, token.0, &confirm, json).await
        }
        CheckpointCommand::Reset { config, start, confirm, json } => {
            reset(&CheckpointContext::open(&config).await?, start, &confirm, json).await
        }
    }
}

/// The checkpoint store of one pipeline, and its source.
struct CheckpointContext {
    config: Config,
    dependencies: ProducerDependencies,
    store: MongoCheckpointStore,
}

impl CheckpointContext {
    async fn open(args: &ConfigArgs) -> anyhow::Result<Self> {
        let config = args.load()?;
        let dependencies = connect::producer_dependencies(&config, COMMAND_TIMEOUT).await?;
        let store = MongoCheckpointStore::new(
            &dependencies.coordination,
            &dependencies.pipeline,
            dependencies.source.fingerprint(),
        );
        Ok(Self { config, dependencies, store })
    }

    async fn load_checkpoint(&self) -> anyhow::Result<Checkpoint> {
        self.store.load().await?.with_context(|| no_checkpoint(&self.dependencies.pipeline))
    }

    fn require_confirmation(&self, confirm: &ConfirmArgs, at: &str, consequence: &str) -> anyhow::Result<()> {
        let pipeline = &self.dependencies.pipeline;
        confirm.require(&format!("moves the checkpoint of `{pipeline}` to {at}: {consequence}"))
    }

    /// The cluster that holds the source; `None` if the user may not read it.
    async fn read_cluster_id(&self) -> anyhow::Result<Option<String>> {
        let read = read_cluster_id(&self.dependencies.server).await.map_err(DriverError::from);
        read.context("failed to read the cluster of the source")
    }

    /// Takes a new term: the current leader can no longer save, and reads the new checkpoint. A missing checkpoint is created.
    async fn move_checkpoint(
        &self,
        stored: Option<&Checkpoint>,
        phase: &CheckpointPhase,
        keeps_epoch: bool,
        consequence: &str,
        json: bool,
    ) -> anyhow::Result<()> {
        let cluster = self.read_cluster_id().await?;
        // Tokens of two clusters do not compare.
        let stored_cluster = stored.and_then(|stored| stored.identity.cluster.as_ref());
        let is_same_cluster = cluster.is_none() || stored_cluster.is_none_or(|stored| cluster.as_ref() == Some(stored));
        let claim = CheckpointClaim {
            term: stored.map_or(Term::new(1), |stored| stored.term.next()),
            claimant: CandidateId::random(),
            // Shown by `checkpoint show`, so that nobody looks for a pod of this name.
            pod_id: format!("{} (operator)", self.dependencies.pod_id),
        };
        let claimed = self.store.claim(&claim).await.context("failed to take a new term")?;
        let new_epoch = !keeps_epoch || !is_same_cluster;
        self.store.move_to(&claim, &claimed, phase, new_epoch, cluster.as_deref()).await?;
        operator_log::record(&self.config, "checkpoint moved", &format!("to phase {}: {consequence}", phase.name()))
            .await;
        let now = self.load_checkpoint().await?;
        if json {
            let mut shown = to_json(&self.dependencies.pipeline, &now);
            shown["consequence"] = consequence.into();
            output::print_json(&shown)?;
        } else {
            output::print_line(format_args!("done: {consequence}"))?;
            output::print(to_text(&self.dependencies.pipeline, &now))?;
        }
        Ok(())
    }
}

fn no_checkpoint(pipeline: &str) -> String {
    format!("`{pipeline}` has no checkpoint yet: the first leader creates it")
}

async fn show(context: &CheckpointContext, json: bool) -> anyhow::Result<()> {
    let pipeline = &context.dependencies.pipeline;
    match (context.store.load().await?, json) {
        (Some(checkpoint), false) => output::print(to_text(pipeline, &checkpoint))?,
        (Some(checkpoint), true) => output::print_json(&to_json(pipeline, &checkpoint))?,
        (None, false) => output::print_line(no_checkpoint(pipeline))?,
        (None, true) => output::print_json(&json!({ "pipeline": pipeline, "phase": null }))?,
    };
    Ok(())
}

async fn set(context: &CheckpointContext, token: ResumeToken, confirm: &ConfirmArgs, json: bool) -> anyhow::Result<()> {
    let stored = context.store.load().await?;
    let is_sequenced = context.config.source.is_sequenced();
    let consequence = match stored.as_ref().map(|stored| &stored.phase) {
        Some(CheckpointPhase::Stream { token: at }) if token.key() > at.key() => {
            "events between the checkpoint and that token are never published"
        }
        Some(CheckpointPhase::Stream { token: at }) if token.key() == at.key() => "the position stays the same",
        Some(CheckpointPhase::Stream { .. }) if is_sequenced => {
            "events since that token are published again; consumers skip those they have applied, and apply those they lack"
        }
        Some(CheckpointPhase::Stream { .. }) => {
            "events since that token are published again; without `source.sequence` consumers skip every event up to the last one they applied of \
             its aggregate, even one they never received"
        }
        Some(CheckpointPhase::Snapshot { .. }) => {
            "the running snapshot is aborted, and events it has not read are never published"
        }
        // A pipeline that has not run yet, for example because another program has published its events so far.
        Some(CheckpointPhase::Unstarted) | None => "events before that token are never published",
    };
    context.require_confirmation(confirm, "that token", consequence)?;
    check_resumable(&context.dependencies, &token).await?;
    // Without a sequence only the position tells what was applied: in a new epoch every event would count as new.
    let has_streamed = stored.as_ref().is_some_and(|stored| matches!(stored.phase, CheckpointPhase::Stream { .. }));
    let keeps_epoch = !is_sequenced && has_streamed;
    context.move_checkpoint(stored.as_ref(), &CheckpointPhase::Stream { token }, keeps_epoch, consequence, json).await
}

/// Tests that the source can resume after the token. The server would accept a token in the future and wait, and events until then would be lost.
async fn check_resumable(dependencies: &ProducerDependencies, token: &ResumeToken) -> anyhow::Result<()> {
    let hello = dependencies.server.database("admin").run_command(doc! { "hello": 1 }).await;
    let hello = hello.map_err(DriverError::from).context("failed to read the time of the source")?;
    let now = hello.get_datetime("localTime").map_or(i64::MAX, |now| now.timestamp_millis() / 1_000);
    if token.cluster_time().is_some_and(|at| i64::from(at.time) > now.saturating_add(MAX_SECONDS_AHEAD)) {
        bail!(
            ExitReason::Usage.with_message(
                "nothing was changed: that token lies in the future; check that it belongs to this source"
            )
        );
    }
    let stream = doc! { "$changeStream": { "startAfter": token.to_document() } };
    let database = dependencies.server.database(&dependencies.source.database);
    let open = async {
        match &dependencies.source.collection {
            Some(name) => database.collection::<Document>(name).aggregate([stream]).batch_size(1).await.map(drop),
            None => database.aggregate([stream]).batch_size(1).await.map(drop),
        }
    };
    match tokio::time::timeout(SOURCE_TIMEOUT, open).await {
        // A timeout means that the server waits for the next event, so it has found the token.
        Ok(Ok(())) | Err(_) => Ok(()),
        Ok(Err(error)) => Err(DriverError::from(error)).context(
            "nothing was changed: the source cannot resume after that token; use `checkpoint reset` to start elsewhere",
        ),
    }
}

/// Tolerates the clock skew between members.
const MAX_SECONDS_AHEAD: i64 = 60;
/// Long, because a command tries only once and the server may be busy.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(60);

async fn reset(
    context: &CheckpointContext,
    start: StartPosition,
    confirm: &ConfirmArgs,
    json: bool,
) -> anyhow::Result<()> {
    let again = if context.config.source.is_sequenced() {
        "consumers skip those they have applied"
    } else {
        "without `source.sequence` consumers apply them again"
    };
    let consequence = match start {
        StartPosition::Beginning => format!("all events of the source are published again; {again}"),
        StartPosition::Now => "events since the checkpoint are never published".to_owned(),
        StartPosition::At(_) => format!(
            "events between the checkpoint and that time are never published if that time is later, and published again if it is \
             earlier; {again}"
        ),
    };
    context.require_confirmation(confirm, &start.to_string(), &consequence)?;
    let config = capture::Config { response_timeout: SOURCE_TIMEOUT, ..context.config.producer.capture.clone() };
    let capture = Capture::new(&context.dependencies.server, context.dependencies.source.clone(), config);
    match capture.check(&start).await {
        Err(error @ capture::Error::StartInFuture { .. }) => {
            bail!(ExitReason::Usage.with_message(format!("nothing was changed: {error}")));
        }
        checked => checked.context("failed to check that the source can resume from this position")?,
    }
    let stored = context.load_checkpoint().await?;
    let phase = capture.initial_phase(&start).await.context("failed to find the start position")?;
    context.move_checkpoint(Some(&stored), &phase, false, &consequence, json).await
}

fn to_text(pipeline: &str, checkpoint: &Checkpoint) -> String {
    let mut lines = vec![
        ("pipeline", pipeline.to_owned()),
        ("term", checkpoint.term.to_string()),
        ("epoch", checkpoint.epoch.to_string()),
    ];
    if checkpoint.replay > ReplayCounter::default() {
        lines.push(("replay", checkpoint.replay.get().to_string()));
    }
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
        "replay": checkpoint.replay.get(),
        "phase": checkpoint.phase.name(),
        "snapshot": snapshot,
        "token": resume_token(checkpoint).map(ResumeToken::key),
        "cluster_time": checkpoint.cluster_time.map(|at| json!({ "time": at.time, "increment": at.increment })),
        "saved_at": saved_at(checkpoint),
        "saved_by": checkpoint.saved_by,
    })
}

/// Where the change stream continues: for a snapshot, after it is complete.
fn resume_token(checkpoint: &Checkpoint) -> Option<&ResumeToken> {
    match &checkpoint.phase {
        CheckpointPhase::Stream { token } | CheckpointPhase::Snapshot { start: token, .. } => Some(token),
        CheckpointPhase::Unstarted => None,
    }
}

fn saved_at(checkpoint: &Checkpoint) -> Option<String> {
    checkpoint.saved_at.and_then(|at| at.try_to_rfc3339_string().ok())
}
