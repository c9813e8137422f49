//! `headwater topology`: creates and changes topic and subscription.

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::{Value as Json, json};
use servicebus::administration::{AdministrationClient, EntityDescription};

use super::shared_args::ConfigArgs;
use crate::config::Config;
use crate::connect::{self, SERVER_SELECTION_TIMEOUT};
use crate::delivery_limit::DeliveryLimitStore;
use crate::topology::{self, EntitySpec, PropertyChange, TopologyPlan, plan_changes};
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater topology apply --dry-run
  headwater topology apply --partitioned false     on a Premium namespace";

/// Create topic and subscription, or correct their settings.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TopologyCommand,
}

#[derive(Debug, Subcommand)]
enum TopologyCommand {
    /// Create missing entities, change different settings, and report what was done
    ///
    /// Topic: duplicate detection, no expiry, no auto-delete. Subscription: sessions, the maximum delivery count, no expiry, no auto-delete, and the lock
    /// duration of `consumer.lock_duration`. Service Bus cannot change some settings of an existing entity (sessions, duplicate detection, partitions): if
    /// one of them differs, nothing is changed and the error has a fix. The key needs the Manage right. The max delivery count is also stored in the
    /// coordination database, for pods whose key lacks this right: a pod parks an event at half of it.
    Apply {
        #[command(flatten)]
        config: ConfigArgs,
        /// Create a partitioned topic; use false on a Premium namespace, which is partitioned as a whole
        #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
        partitioned: bool,
        /// Only report what would be done
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let TopologyCommand::Apply { config, partitioned, dry_run, json } = args.command;
    let configs = config.load_all()?.pipelines;
    // Read the entities of all pipelines before changing any: a refusal must leave nothing half done.
    let (mut planned, mut refusals) = (vec![], vec![]);
    for config in &configs {
        let plans = PipelinePlans::read(config, partitioned).await?;
        refusals.extend(plans.refusals());
        planned.push(plans);
    }
    if !refusals.is_empty() {
        bail!("nothing was changed: Service Bus cannot change these settings in place\n  {}", refusals.join("\n  "));
    }
    let mut all = vec![];
    for plans in planned {
        all.extend(plans.apply(dry_run, json).await?);
    }
    if json {
        output::print_json(&json!({ "dry_run": dry_run, "entities": Json::Array(all) }))?;
    }
    Ok(())
}

/// What the entities of one pipeline need.
struct PipelinePlans<'a> {
    config: &'a Config,
    bus: AdministrationClient,
    entities: Vec<PlannedEntity>,
}

struct PlannedEntity {
    path: String,
    wanted: EntitySpec,
    found: Option<EntityDescription>,
    plan: TopologyPlan,
}

impl<'a> PipelinePlans<'a> {
    async fn read(config: &'a Config, partitioned: bool) -> anyhow::Result<Self> {
        let bus = connect::bus_administration(config)?;
        let mut entities = vec![];
        for (path, wanted) in topology::required_entities(config, partitioned) {
            let found = bus.get(&path).await.with_context(|| format!("failed to read Service Bus entity `{path}`"))?;
            let plan = plan_changes(&wanted, found.as_ref());
            entities.push(PlannedEntity { path, wanted, found, plan });
        }
        Ok(Self { config, bus, entities })
    }

    fn refusals(&self) -> Vec<String> {
        self.entities.iter().flat_map(|entity| entity.plan.refusals(&entity.path)).collect()
    }

    /// Returns what was done to each entity.
    async fn apply(self, dry_run: bool, json: bool) -> anyhow::Result<Vec<Json>> {
        let Self { config, bus, entities } = self;
        let (mut all, mut changed) = (vec![], vec![]);
        for entity in entities {
            let result = apply_plan(&bus, entity, dry_run).await?;
            if !json {
                output::print_line(result.to_text(dry_run))?;
            }
            if !matches!(result.action, EntityAction::Unchanged) {
                changed.push(result.to_text(dry_run));
            }
            all.push(result.to_json());
        }
        if !dry_run && store_delivery_limit(config, &bus).await && !changed.is_empty() {
            operator_log::record(config, "topology apply", &changed.join("; ")).await;
        }
        Ok(all)
    }
}

/// Whether it could. Does not fail the command: a pipeline may set up its bus before its MongoDB exists.
async fn store_delivery_limit(config: &Config, bus: &AdministrationClient) -> bool {
    let stored = async {
        let coordination = connect::coordination_database(config, SERVER_SELECTION_TIMEOUT).await?;
        DeliveryLimitStore::new(&coordination, config).save(bus).await
    };
    let stored = stored.await;
    if let Err(error) = &stored {
        tracing::warn!(
            error = format!("{error:#}"),
            "failed to store the max delivery count in MongoDB; pods without the Manage right assume 10: apply again when MongoDB is reachable"
        );
    }
    stored.is_ok()
}

/// What was done to an entity, or would be done.
struct EntityResult {
    path: String,
    action: EntityAction,
}

enum EntityAction {
    Created,
    Changed(Vec<PropertyChange>),
    Unchanged,
}

impl EntityResult {
    fn to_text(&self, dry_run: bool) -> String {
        let (path, would) = (&self.path, if dry_run { "would be " } else { "" });
        match &self.action {
            EntityAction::Created => format!("{path}: {would}created"),
            EntityAction::Unchanged => format!("{path}: unchanged"),
            EntityAction::Changed(changes) => {
                let changes: Vec<_> = changes.iter().map(ToString::to_string).collect();
                format!("{path}: {would}changed ({})", changes.join(", "))
            }
        }
    }

    fn to_json(&self) -> Json {
        let (action, changes) = match &self.action {
            EntityAction::Created => ("created", &[][..]),
            EntityAction::Changed(changes) => ("changed", &changes[..]),
            EntityAction::Unchanged => ("unchanged", &[][..]),
        };
        let change =
            |PropertyChange { name, from, to }: &PropertyChange| json!({ "name": name, "from": from, "to": to });
        let changes: Vec<_> = changes.iter().map(change).collect();
        json!({ "path": self.path, "action": action, "changes": changes })
    }
}

async fn apply_plan(
    bus: &AdministrationClient,
    PlannedEntity { path, wanted, found, plan }: PlannedEntity,
    dry_run: bool,
) -> anyhow::Result<EntityResult> {
    let action = match (plan, found) {
        // `None` implies `Create`; the second pattern only satisfies the compiler.
        (TopologyPlan::Create, _) | (_, None) => {
            if !dry_run {
                bus.create(&path, &wanted.to_description())
                    .await
                    .with_context(|| format!("failed to create `{path}`"))?;
            }
            EntityAction::Created
        }
        (TopologyPlan::Change { changes, .. }, Some(_)) if changes.is_empty() => EntityAction::Unchanged,
        (TopologyPlan::Change { changes, .. }, Some(mut description)) => {
            for PropertyChange { name, to, .. } in &changes {
                if !description.set(name, to) {
                    bail!("`{path}` has no property `{name}`, so it cannot be changed");
                }
            }
            if !dry_run {
                bus.update(&path, &description).await.with_context(|| format!("failed to change `{path}`"))?;
            }
            EntityAction::Changed(changes)
        }
    };
    Ok(EntityResult { path, action })
}
