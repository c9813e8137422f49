//! `headwater read-model`: shows the read models and their generation, builds them anew, goes back, and compares them with the source.

mod junit;
mod preview;
mod test;
mod test_file;
pub(crate) mod verify;

use std::time::Duration;

use admin::status::GenerationStatus;
use anyhow::bail;
use clap::Subcommand;
use mongodb::bson::Document;
use pipeline::generation::{ChangeRequest, Generation, GenerationStage, GenerationStore, RequestKind, VersionState};
use serde_json::{Value as Json, json};
use tokio::time::sleep;

use super::shared_args::{ConfigArgs, ConfirmArgs};
use super::table::render_table;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::exit::ExitReason;
use crate::generations::unbuildable_reason;
use crate::parked::format_time;
use crate::status::generation_status;
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater read-model list
  headwater read-model rebuild order_summary --wait
  headwater read-model verify order_summary --all
  headwater read-model rollback order_summary --yes
  headwater read-model drop old_summary --yes";

/// Between two looks at a change.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Another writer of the generation was faster.
const MAX_ATTEMPTS: u32 = 20;

/// List and verify read models, build them anew from the source, and go back.
///
/// All pods apply the read models that the store holds; the configuration is a proposal. When all pods declare other read models, the leader builds what is
/// new from the source, while the present ones go on, and switches to it. These commands ask for the same by hand; the pods do the work.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ReadModelCommand,
}

#[derive(Debug, Subcommand)]
enum ReadModelCommand {
    /// List the read models: complete, incomplete, being built or removed; and how far a build is
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Build read models anew from the source, and switch to them when they have caught up
    Rebuild {
        #[command(flatten)]
        config: ConfigArgs,
        /// Names of the read models
        #[arg(required = true)]
        names: Vec<String>,
        /// Events per second; by default as fast as possible
        #[arg(long, value_name = "EVENTS")]
        rate: Option<u32>,
        /// Build the definition before the last change instead of the present one, like `read-model rollback`
        #[arg(long)]
        rollback: bool,
        /// Wait until it is done, with progress
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Build the definition that a read model had before its last change, and switch to it
    Rollback {
        #[command(flatten)]
        config: ConfigArgs,
        /// Name of the read model
        name: String,
        /// Wait until it is done, with progress
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Stop the change that is in progress; the present read models stay as they are
    Cancel {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Record that a read model is complete although it lacks events, or go on with a build that lacks some
    Accept {
        #[command(flatten)]
        config: ConfigArgs,
        /// Name of the read model
        name: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Drop the collection of a read model that is no longer declared
    Drop {
        #[command(flatten)]
        config: ConfigArgs,
        /// Name of the read model
        name: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    Verify(verify::Args),
    Test(test::Args),
    Preview(preview::Args),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        ReadModelCommand::List { config, json } => list(&config.load()?, json).await,
        ReadModelCommand::Rebuild { config, names, rate, rollback: true, wait, confirm } => {
            roll_back(&config.load()?, &names, rate, wait, &confirm).await
        }
        ReadModelCommand::Rebuild { config, names, rate, rollback: false, wait, confirm: _ } => {
            let config = config.load()?;
            let commands = GenerationCommands::open(&config).await?;
            let rate = rate.map(i64::from);
            commands.check(|generation| check_buildable(&config, generation, &names)).await?;
            commands.request(RequestKind::Rebuild, &names, rate, check_rebuild).await?;
            operator_log::record(&config, "read-model rebuild", &quoted(&names)).await;
            commands.report(wait, "requested: the leader builds from the source").await
        }
        ReadModelCommand::Rollback { config, name, wait, confirm } => {
            roll_back(&config.load()?, &[name], None, wait, &confirm).await
        }
        ReadModelCommand::Cancel { config } => {
            let config = config.load()?;
            let commands = GenerationCommands::open(&config).await?;
            commands.cancel().await?;
            operator_log::record(&config, "read-model cancel", "the change in progress").await;
            commands.report(false, "requested: the leader stops the change").await
        }
        ReadModelCommand::Accept { config, name, confirm } => accept(&config.load()?, name, &confirm).await,
        ReadModelCommand::Verify(args) => verify::run(args).await,
        ReadModelCommand::Test(args) => test::run(args).await,
        ReadModelCommand::Preview(args) => preview::run(args).await,
        ReadModelCommand::Drop { config, name, confirm } => drop_model(&config.load()?, &name, &confirm).await,
    }
}

async fn roll_back(
    config: &Config,
    names: &[String],
    rate: Option<u32>,
    wait: bool,
    confirm: &ConfirmArgs,
) -> anyhow::Result<()> {
    let commands = GenerationCommands::open(config).await?;
    commands.check(|generation| check_rollback(generation, names)).await?;
    confirm.require(&format!(
        "builds the earlier definition of {}, and leaves the present configuration aside until it changes",
        quoted(names)
    ))?;
    commands.request(RequestKind::Rollback, names, rate.map(i64::from), check_rollback).await?;
    operator_log::record(config, "read-model rollback", &quoted(names)).await;
    commands.report(wait, "requested: the leader builds the earlier definition").await
}

fn quoted(names: &[String]) -> String {
    format!("`{}`", names.join("`, `"))
}

async fn list(config: &Config, json: bool) -> anyhow::Result<()> {
    let generation = GenerationCommands::open(config).await?.store.load().await?;
    let Some(generation) = generation else {
        if json {
            output::print_json(&json!({ "generation": null, "read_models": [] }))?;
            return Ok(());
        }
        output::print_line("no pod has run yet: the first one stores the read models of its configuration")?;
        return Ok(());
    };
    if json {
        output::print_json(&to_json(&generation))?;
        return Ok(());
    }
    let rows: Vec<_> = generation.states().into_iter().map(|(name, state)| to_row(&generation, name, state)).collect();
    output::print_line(render_table(&["read model", "state", "since"], &rows).trim_end())?;
    output::print_line(format_args!("generation {}, {}", generation.number, generation.stage.code()))?;
    if generation.stage == GenerationStage::Building {
        output::print_line(progress(&generation))?;
    }
    if let Some(problem) = &generation.problem {
        output::print_line(format_args!("problem: {problem}"))?;
    }
    Ok(())
}

fn to_json(generation: &Generation) -> Json {
    let models = generation.states().into_iter().map(|(name, state)| {
        let incomplete = generation.serving.get(name).and_then(|version| version.incomplete);
        json!({
            "name": name, "state": state.code(),
            "reason": incomplete.map(|(reason, _)| reason.to_string()),
            "since": incomplete.map(|(_, since)| format_time(since)),
        })
    });
    let figure = |field: &str| generation.build.get_i64(field).ok();
    json!({
        "generation": generation.number,
        "stage": generation.stage.code(),
        "problem": generation.problem,
        "build": (generation.stage == GenerationStage::Building).then(|| json!({
            "aggregates": figure("aggregates"), "total": figure("total"), "events": figure("events"),
            "parked": figure("parked"), "missing": figure("missing"),
            "seconds": generation.build.get_f64("seconds").ok(),
            "seconds_left": generation_status(generation).seconds_left,
            "replication_lag_seconds": generation.build.get_f64("replicationLag").ok(),
            "paused": generation.build.get_bool("paused").unwrap_or(false),
        })),
        "read_models": models.collect::<Vec<_>>(),
    })
}

fn to_row(generation: &Generation, name: &str, state: VersionState) -> [String; 3] {
    let incomplete = generation.serving.get(name).and_then(|version| version.incomplete);
    match incomplete.filter(|_| state == VersionState::Incomplete) {
        Some((reason, since)) => [name.to_owned(), format!("incomplete: {reason}"), format_time(since)],
        None => [name.to_owned(), state.code().to_owned(), String::new()],
    }
}

fn progress(generation: &Generation) -> String {
    let build = &generation.build;
    let figure = |field: &str| build.get_i64(field).unwrap_or(0);
    let (aggregates, total, events) = (figure("aggregates"), figure("total"), figure("events"));
    let seconds = build.get_f64("seconds").unwrap_or(0.0);
    let status = generation_status(generation);
    let left = status.seconds_left.map_or_else(String::new, |left| format!(", about {left:.0} s left"));
    let rate = if seconds > 0.0 { events as f64 / seconds } else { 0.0 };
    let paused = build_pause(&status);
    format!("built {aggregates} of about {total} aggregates, {events} events, {rate:.0} events/s{left}{paused}")
}

/// Why a build does not go on for now; empty if it does.
pub(crate) fn build_pause(generation: &GenerationStatus) -> String {
    match generation.replication_lag_seconds {
        _ if generation.build_paused => "; paused: `headwater resume build` continues it".to_owned(),
        Some(lag) => format!("; paused: the secondaries of the source are {lag:.0} s behind"),
        None => String::new(),
    }
}

/// The generation of one pipeline, for commands and for the dashboard.
pub(crate) struct GenerationCommands {
    store: GenerationStore,
    /// Who requests.
    by: String,
}

type RequestCheck = fn(&Generation, &[String]) -> Result<(), String>;

impl GenerationCommands {
    async fn open(config: &Config) -> anyhow::Result<Self> {
        let coordination = connect::coordination_database(config, COMMAND_TIMEOUT).await?;
        Ok(Self::new(GenerationStore::new(&coordination, &config.pipeline), operator_log::who()))
    }

    pub(crate) fn new(store: GenerationStore, by: String) -> Self {
        Self { store, by }
    }

    /// Builds a read model anew.
    pub(crate) async fn rebuild(&self, name: &str) -> anyhow::Result<()> {
        let names = [name.to_owned()];
        self.check(|generation| check_known(generation.serving.keys(), &names)).await?;
        self.request(RequestKind::Rebuild, &names, None, check_rebuild).await
    }

    /// Builds the definition that a read model had before.
    pub(crate) async fn rollback(&self, name: &str) -> anyhow::Result<()> {
        self.request(RequestKind::Rollback, &[name.to_owned()], None, check_rollback).await
    }

    /// Stops the change that is in progress.
    pub(crate) async fn cancel(&self) -> anyhow::Result<()> {
        self.request(RequestKind::Cancel, &[], None, check_cancel).await
    }

    async fn load(&self) -> anyhow::Result<Generation> {
        match self.store.load().await? {
            Some(generation) => Ok(generation),
            None => bail!("no pod has run yet, so there is nothing to change"),
        }
    }

    async fn check(&self, check: impl FnOnce(&Generation) -> Result<(), String>) -> anyhow::Result<()> {
        check(&self.load().await?).map_err(|message| ExitReason::Usage.with_message(message).into())
    }

    /// Stores the request, for the leader.
    async fn request(
        &self,
        kind: RequestKind,
        names: &[String],
        rate: Option<i64>,
        check: RequestCheck,
    ) -> anyhow::Result<()> {
        self.change(|generation| {
            check(generation, names)?;
            if generation.stage == GenerationStage::Active {
                // Of an earlier attempt: the leader finds out anew.
                generation.problem = None;
            }
            generation.request = Some(ChangeRequest { kind, models: names.to_vec(), rate, by: self.by.clone() });
            Ok(())
        })
        .await
    }

    /// Changes the stored generation, again if somebody else was faster.
    async fn change(&self, change: impl Fn(&mut Generation) -> Result<(), String>) -> anyhow::Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let mut generation = self.load().await?;
            change(&mut generation).map_err(|message| ExitReason::Usage.with_message(message))?;
            if self.store.replace(generation).await?.is_some() {
                return Ok(());
            }
        }
        bail!("the generation changes all the time; try again")
    }

    async fn report(&self, wait: bool, requested: &str) -> anyhow::Result<()> {
        output::print_line(requested)?;
        if !wait {
            output::print_line("`headwater read-model list` shows the progress")?;
            return Ok(());
        }
        let mut shown = String::new();
        loop {
            let generation = self.load().await?;
            if let Some(problem) = generation.problem {
                bail!(ExitReason::Unhealthy.with_message(problem));
            }
            if generation.stage == GenerationStage::Active && generation.request.is_none() {
                output::print_line(format_args!("done: generation {} is active", generation.number))?;
                return Ok(());
            }
            let line = progress(&generation);
            if generation.stage == GenerationStage::Building && line != shown {
                output::print_line(&line)?;
                shown = line;
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

fn check_idle(generation: &Generation) -> Result<(), String> {
    match (&generation.request, generation.stage) {
        (None, GenerationStage::Active) => Ok(()),
        (Some(request), GenerationStage::Active) => {
            Err(format!("`{}` was requested by {} and waits for the leader", request.kind.code(), request.by))
        }
        (_, stage) => Err(format!(
            "a change is in progress ({}); wait for it, or stop it with `headwater read-model cancel`",
            stage.code()
        )),
    }
}

fn check_known<'a>(known: impl Iterator<Item = &'a String> + Clone, names: &[String]) -> Result<(), String> {
    match names.iter().find(|name| !known.clone().any(|known| known == *name)) {
        Some(unknown) => Err(format!(
            "there is no read model `{unknown}` to do this with; `headwater read-model list` shows what there is"
        )),
        None => Ok(()),
    }
}

fn check_rebuild(generation: &Generation, names: &[String]) -> Result<(), String> {
    // A proposed one may be named as well: the leader knows it.
    check_idle(generation).and_then(|()| if names.is_empty() { Err("name a read model".to_owned()) } else { Ok(()) })
}

/// Only what the source can give again.
fn check_buildable(config: &Config, generation: &Generation, names: &[String]) -> Result<(), String> {
    for name in names {
        let serving = generation.serving.get(name).map(|version| &version.declaration);
        let Some(declaration) = config.read_models.declarations.get(name).or(serving) else {
            return check_known(std::iter::empty(), std::slice::from_ref(name));
        };
        if let Some(problem) = unbuildable_reason(name, declaration, &config.source) {
            return Err(problem);
        }
    }
    Ok(())
}

fn check_rollback(generation: &Generation, names: &[String]) -> Result<(), String> {
    check_idle(generation)?;
    match names.iter().find(|name| !generation.previous.contains_key(*name)) {
        Some(name) => Err(format!("`{name}` has no earlier definition to go back to")),
        None => Ok(()),
    }
}

fn check_cancel(generation: &Generation, _: &[String]) -> Result<(), String> {
    match (generation.stage, &generation.request) {
        (GenerationStage::Active, None) => Err("no change is in progress".to_owned()),
        (GenerationStage::Switching, _) => {
            Err("the switch has begun; it takes a moment, then go back with `headwater read-model rollback`".to_owned())
        }
        (GenerationStage::Active | GenerationStage::Building, _) => Ok(()),
    }
}

async fn accept(config: &Config, name: String, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let commands = GenerationCommands::open(config).await?;
    let generation = commands.load().await?;
    let is_stuck = generation.stage == GenerationStage::Building && generation.problem.is_some();
    let names = [name];
    if is_stuck && generation.to_build().any(|(built, _)| *built == names[0]) {
        confirm.require("goes on with the build without the aggregates whose earlier events the source lacks")?;
        commands.request(RequestKind::Accept, &names, None, |_, _| Ok(())).await?;
        operator_log::record(config, "read-model accept", &format!("the build of `{}`", names[0])).await;
        return commands.report(false, "requested: the leader goes on").await;
    }
    let known = check_known(generation.serving.keys(), &names);
    known.map_err(|message| ExitReason::Usage.with_message(message))?;
    if generation.serving[&names[0]].incomplete.is_none() {
        output::print_line(format_args!("`{}` is complete: nothing to do", names[0]))?;
        return Ok(());
    }
    confirm.require(&format!("records that read model `{}` is complete, although it may lack events", names[0]))?;
    commands
        .change(|generation| {
            if let Some(version) = generation.serving.get_mut(&names[0]) {
                version.incomplete = None;
            }
            Ok(())
        })
        .await?;
    operator_log::record(config, "read-model accept", &format!("`{}`", names[0])).await;
    output::print_line(format_args!("accepted: `{}` counts as complete", names[0]))?;
    Ok(())
}

async fn drop_model(config: &Config, name: &str, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let commands = GenerationCommands::open(config).await?;
    commands
        .check(|generation| match (generation.kept.contains_key(name), generation.serving.contains_key(name)) {
            (true, _) => Ok(()),
            (false, true) => Err(format!("`{name}` is declared; remove it from the configuration of all pods first")),
            (false, false) => check_known(std::iter::empty(), &[name.to_owned()]),
        })
        .await?;
    confirm.require(&format!("drops the collection `{name}` and its documents"))?;
    let views = connect::mongo_client(&config.read_models.uri, "read_models.uri", COMMAND_TIMEOUT).await?;
    let database = views.database(&config.read_models.database);
    // Only while nobody brings it back: then the change below fails, and nothing is dropped.
    commands
        .change(|generation| match (generation.stage, generation.kept.remove(name)) {
            (GenerationStage::Active, Some(_)) => Ok(()),
            _ => Err(format!("`{name}` is in use again")),
        })
        .await?;
    database.collection::<Document>(name).drop().await.map_err(mongo_error::DriverError::from)?;
    operator_log::record(config, "read-model drop", &format!("`{name}`")).await;
    output::print_line(format_args!("dropped: `{name}`"))?;
    Ok(())
}
