//! `headwater dead-letters`: lists, shows, parks and discards messages in the dead-letter queue of the subscription.

use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use clap::Subcommand;
use mongodb::bson::DateTime;
use pipeline::session::message::MessageReader;
use pipeline::session::{KnownPlaces, dead_letter_reason, read_dead_letter};
use pipeline::stored::ClaimCheckStore;
use pipeline::view::{ApplyOutcome, EventBody, OrderingMode};
use serde_json::{Value as Json, json};
use servicebus::{MessageBrowser, ReceivedMessage};

use super::shared_args::{ConfigArgs, ConfirmArgs};
use super::table::render_table;
use crate::command_applier::CommandApplier;
use crate::config::Config;
use crate::connect::{self, COMMAND_TIMEOUT};
use crate::parked::format_time;
use crate::{operator_log, output};

const EXAMPLES: &str = "\
Examples:
  headwater dead-letters list
  headwater dead-letters show 12 --body
  headwater dead-letters park 12
  headwater dead-letters discard 12 --yes";

/// List, show, park or discard dead letters.
///
/// Pods park by themselves what Service Bus has dead-lettered (delivery count, expiry). What is left needs an operator: messages that are not from this pipeline, that cannot be
/// read, or whose signature is missing or wrong, and the messages of poison events with `consumer.on_poison: dead_letter`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: DeadLetterCommand,
}

#[derive(Debug, Subcommand)]
enum DeadLetterCommand {
    /// List dead letters: number, reason, message id, subject and since when
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Maximum number of rows
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one dead letter; its body only with `--body`
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Number, as `dead-letters list` shows it
        number: i64,
        /// Also print the body: the document of the source, with any personal data in it
        #[arg(long)]
        body: bool,
    },
    /// Park the event of a dead letter, so that `parked retry` can apply it; a signature is not verified
    ///
    /// If the event is applied already, nothing is parked. The message then leaves the dead-letter queue.
    Park {
        #[command(flatten)]
        config: ConfigArgs,
        /// Number, as `dead-letters list` shows it
        number: i64,
    },
    /// Delete a dead letter for good
    Discard {
        #[command(flatten)]
        config: ConfigArgs,
        /// Number, as `dead-letters list` shows it
        number: i64,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// Messages of one request.
const PAGE: i32 = 100;

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        DeadLetterCommand::List { config, limit, json } => list(&config.load()?, limit, json).await,
        DeadLetterCommand::Show { config, number, body } => show(&config.load()?, number, body).await,
        DeadLetterCommand::Park { config, number } => park(&config.load()?, number).await,
        DeadLetterCommand::Discard { config, number, confirm } => discard(&config.load()?, number, &confirm).await,
    }
}

fn browser(config: &Config) -> anyhow::Result<MessageBrowser> {
    let bus = &config.service_bus;
    let entity = format!("{}/Subscriptions/{}/$DeadLetterQueue", bus.topic, bus.subscription);
    Ok(connect::bus_client(config)?.browser(&entity))
}

async fn list(config: &Config, limit: usize, as_json: bool) -> anyhow::Result<()> {
    let browser = browser(config)?;
    let (mut found, mut from) = (vec![], 0);
    while found.len() < limit {
        let page = browser.peek(from, PAGE).await.context("failed to read the dead-letter queue")?;
        let Some(last) = page.last() else { break };
        from = last.sequence_number() + 1;
        found.extend(page);
    }
    found.truncate(limit);
    if as_json {
        output::print_json(&found.iter().map(to_json).collect::<Json>())?;
    } else if found.is_empty() {
        output::print_line(format_args!("no dead letters in `{}`", config.service_bus.subscription))?;
    } else {
        let rows: Vec<_> = found.iter().map(to_row).collect();
        output::print(render_table(&["NUMBER", "STATE", "REASON", "MESSAGE", "SUBJECT", "ENQUEUED"], &rows))?;
    }
    Ok(())
}

async fn show(config: &Config, number: i64, body: bool) -> anyhow::Result<()> {
    let message = find(&browser(config)?, number).await?;
    let mut shown = to_json(&message);
    if body {
        shown["body"] = body_json(&message);
    }
    output::print_json(&shown)?;
    Ok(())
}

async fn find(browser: &MessageBrowser, number: i64) -> anyhow::Result<ReceivedMessage> {
    let found = browser.peek(number, 1).await.context("failed to read the dead-letter queue")?;
    match found.into_iter().next() {
        Some(message) if message.sequence_number() == number => Ok(message),
        _ => bail!("no dead letter has this number; `headwater dead-letters list` shows them"),
    }
}

/// Locks the message. Pods set aside every dead letter that they do not park.
async fn lock(browser: &MessageBrowser, number: i64) -> anyhow::Result<ReceivedMessage> {
    find(browser, number).await?;
    match browser.receive_deferred(number).await.context("failed to lock the dead letter")? {
        Some(message) => Ok(message),
        None => bail!(
            "no pod has set this dead letter aside yet; try again while a pod runs and its consumer is not paused"
        ),
    }
}

async fn park(config: &Config, number: i64) -> anyhow::Result<()> {
    let browser = browser(config)?;
    let message = lock(&browser, number).await?;
    let parked = park_event(config, &message).await;
    match parked {
        Ok(outcome) => {
            browser.complete(&message).await.context("the event is parked, but its message is still in the queue")?;
            let done = match outcome {
                ApplyOutcome::Duplicate => "was applied or parked before, so nothing is parked",
                _ => "is parked; apply it with `headwater parked retry`",
            };
            operator_log::record(config, "dead-letters park", &format!("number {number}")).await;
            output::print_line(format_args!("the event of dead letter {number} {done}"))?;
            Ok(())
        }
        Err(error) => {
            // If this fails as well, its lock expires.
            let _ = browser.abandon(&message).await;
            Err(error)
        }
    }
}

async fn park_event(config: &Config, message: &ReceivedMessage) -> anyhow::Result<ApplyOutcome> {
    let dependencies = connect::producer_dependencies(config, COMMAND_TIMEOUT).await?;
    let coordination = &dependencies.coordination;
    let places = KnownPlaces::new(&config.source, CommandApplier::mode(config), coordination, &config.pipeline);
    let event = read_dead_letter(message, &places, &ClaimCheckStore::new(coordination, Duration::ZERO)).await?;
    if is_parked_by_pod(config, message) {
        return Ok(ApplyOutcome::Duplicate);
    }
    let applier = CommandApplier::start(config, &dependencies).await?;
    let applied = applier.handle().session_applier().apply(vec![event]).await;
    applier.stop().await?;
    match applied.outcomes.first() {
        Some(outcome) => Ok(*outcome),
        None => bail!("the event could not be parked ({:?}); try again", applied.end),
    }
}

/// A pod dead-letters an event that it cannot apply after it has parked it. Without a sequence the cursor does not know it any more once later events
/// follow, and it would be queued twice.
fn is_parked_by_pod(config: &Config, message: &ReceivedMessage) -> bool {
    let by_pod = [dead_letter_reason::POISON, dead_letter_reason::UNREADABLE];
    CommandApplier::mode(config) == OrderingMode::Position && by_pod.contains(&reason(message))
}

async fn discard(config: &Config, number: i64, confirm: &ConfirmArgs) -> anyhow::Result<()> {
    let browser = browser(config)?;
    let message = find(&browser, number).await?;
    let id = message.message_id().unwrap_or_default();
    confirm.require(
        "deletes the dead letter for good: if its event is in no read model, only the audit brings it there",
    )?;
    let message = lock(&browser, number).await?;
    browser.complete(&message).await.context("failed to delete the dead letter")?;
    operator_log::record(config, "dead-letters discard", &format!("number {number}, message {id}")).await;
    output::print_line(format_args!("deleted dead letter {number}"))?;
    Ok(())
}

fn reason(message: &ReceivedMessage) -> &str {
    message.dead_letter_reason().unwrap_or("-")
}

fn state(message: &ReceivedMessage) -> &'static str {
    if message.is_deferred() { "set aside" } else { "new" }
}

fn to_row(message: &ReceivedMessage) -> [String; 6] {
    [
        message.sequence_number().to_string(),
        state(message).to_owned(),
        reason(message).to_owned(),
        message.message_id().unwrap_or_else(|| "-".to_owned()),
        message.subject().unwrap_or("-").to_owned(),
        message.enqueued_time().map_or_else(|| "-".to_owned(), enqueued),
    ]
}

fn to_json(message: &ReceivedMessage) -> Json {
    json!({
        "number": message.sequence_number(), "state": state(message),
        "reason": message.dead_letter_reason(), "description": message.dead_letter_description(),
        "message": message.message_id(), "session": message.session_id(), "subject": message.subject(),
        "deliveries": message.delivery_count(), "enqueued": message.enqueued_time().map(enqueued),
        "bytes": message.body().len(),
    })
}

/// The document, if it is one of ours; else the text, else only its length.
fn body_json(message: &ReceivedMessage) -> Json {
    if let Ok(event) = MessageReader::default().read(message.raw(), message.delivery_count())
        && let EventBody::Document(document) = &event.body
    {
        let document = mongodb::bson::Document::try_from(&**document);
        return document.map_or(Json::Null, |it| mongodb::bson::Bson::Document(it).into_relaxed_extjson());
    }
    let body = message.body();
    std::str::from_utf8(&body).map_or_else(|_| json!({ "bytes": body.len() }), |text| json!(text))
}

fn enqueued(at: SystemTime) -> String {
    format_time(DateTime::from_system_time(at))
}
