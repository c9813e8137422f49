//! `headwater erase`: removes all copies of one aggregate.

use anyhow::bail;
use pipeline::event::AggregateId;

use super::shared_args::{ConfigArgs, ConfirmArgs};
use super::table::{plural, render_table};
use crate::config::Config;
use crate::erase::{ErasedCopies, Eraser};
use crate::exit::ExitReason;
use crate::parked::format_typed_id;
use crate::status::SubscriptionMonitor;
use crate::{aggregate_argument, connect, operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater erase customer-7 --yes
  headwater erase '{\"$oid\":\"65a0c0ffee65a0c0ffee65a0\"}' --yes";

/// Remove all copies of one aggregate, after its events were deleted in the source.
///
/// Deletes its documents in read models whose key is the aggregate (those being built and those no longer declared included), its cursor, and its parked, rejected and oversize
/// events, and takes its id out of the history. A tombstone remains under a keyed hash: messages that arrive later are ignored, and neither the audit nor a rebuild brings anything back.
/// An erased id can never be used again in this pipeline. Refused while the source still has events of the aggregate. May be repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Aggregate id
    aggregate: String,

    #[command(flatten)]
    confirm: ConfirmArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let eraser = Eraser::open(&config).await?;
    let aggregate = find_aggregate(&eraser, &args.aggregate).await?;
    if eraser.is_in_source(&aggregate).await? {
        bail!(ExitReason::Failed.with_message(
            "the source still has events of this aggregate: delete them there first, or pods publish and apply them again"
        ));
    }
    args.confirm.require(
        "removes the aggregate from the read models, its cursor and its parked, rejected and oversize events for good; its id can never be used again",
    )?;
    let erased = eraser.erase(&aggregate).await?;
    operator_log::record(&config, "erase", &format!("one aggregate, tombstone {}", erased.tombstone)).await;
    report(&erased)?;
    report_remains(&config).await
}

/// The one with a cursor; a text may stand for several types.
async fn find_aggregate(eraser: &Eraser<'_>, argument: &str) -> anyhow::Result<AggregateId> {
    let mut candidates = aggregate_argument::candidates(argument);
    let mut known = vec![];
    for aggregate in &candidates {
        if eraser.has_cursor(aggregate).await? {
            known.push(aggregate.clone());
        }
    }
    match (known.pop(), known.is_empty(), candidates.is_empty()) {
        (Some(one), true, _) => Ok(one),
        (None, _, false) if candidates.len() == 1 || aggregate_argument::is_typed(argument) => Ok(candidates.remove(0)),
        (None, _, false) => bail!(ExitReason::Usage.with_message(format!(
            "no aggregate with this id is known; select its type, for example `{}` or `\"{argument}\"`",
            format_typed_id(&candidates[1])
        ))),
        (None, _, true) => bail!(ExitReason::Usage.with_message("this is no aggregate id")),
        (Some(one), false, _) => bail!(ExitReason::Usage.with_message(format!(
            "several aggregates have this id; select one by its typed id, for example `{}`",
            format_typed_id(&one)
        ))),
    }
}

fn report(erased: &ErasedCopies) -> anyhow::Result<()> {
    let rows: Vec<_> = erased.documents.iter().map(|(name, count)| [name.clone(), count.to_string()]).collect();
    output::print(render_table(&["COLLECTION", "DOCUMENTS"], &rows))?;
    output::print_line(format_args!("\nerased; tombstone {}", erased.tombstone))?;
    for name in &erased.other_keys {
        output::print_line(format_args!(
            "read model `{name}` has keys of its own and may hold values of the aggregate: run `headwater read-model rebuild {name}`"
        ))?;
    }
    Ok(())
}

/// What no command can remove, and until when it stays.
async fn report_remains(config: &Config) -> anyhow::Result<()> {
    let bus = &config.service_bus;
    let subscription = SubscriptionMonitor::new(connect::bus_administration(config)?, &bus.topic, &bus.subscription);
    let counts = subscription.read_counts().await;
    let count = |number: Option<u64>, noun| {
        number.map_or_else(|| format!("an unknown number of {noun}s"), |it| plural(it, noun))
    };
    output::print_line(format_args!(
        "may remain: {} on the subscription (of all aggregates), until they are delivered, and then ignored; {}, until you discard them (`headwater dead-letters list`); \
         the oplog of the source, until it rolls over; backups",
        count(counts.active_messages, "message"),
        count(counts.dead_letters, "dead letter"),
    ))?;
    Ok(())
}
