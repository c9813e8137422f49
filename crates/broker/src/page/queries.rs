//! The reads of the page's API. Long lists are paged; the work of one request is bounded.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{BrokerPage, PageError, body, message_view};
use crate::core::{
    Core, EntityDefinition, EntityView, Error, MessageFilter, MessageState, QueueId, SequenceNumber, Subqueue,
};
use crate::rules::{PropertyValue, RuleDescription, RuleFilter};

const MAX_ROWS: usize = 500;
/// Bytes of messages that one list reads.
const MAX_READ: usize = 8 << 20;

/// The parameters of a request.
struct Parameters<'a>(&'a HashMap<String, String>);

impl Parameters<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn path(&self) -> Result<String, PageError> {
        self.text("path").map(str::to_owned).ok_or_else(|| PageError::invalid("`path` is missing"))
    }

    fn number(&self, name: &str, default: u64) -> Result<u64, PageError> {
        let parse = |text: &str| text.parse().map_err(|_| PageError::invalid(format!("`{name}` is not a number")));
        self.text(name).map_or(Ok(default), parse)
    }

    fn rows(&self) -> Result<(usize, usize), PageError> {
        let (skip, top) = (self.number("skip", 0)?, self.number("top", 100)?);
        Ok((usize::try_from(skip).unwrap_or(usize::MAX), (top as usize).min(MAX_ROWS)))
    }
}

pub(super) async fn run(page: &BrokerPage, name: &str, query: &HashMap<String, String>) -> Result<Value, PageError> {
    let parameters = Parameters(query);
    match name {
        "entities" => entities(page, &parameters).await,
        "entity" => {
            let path = parameters.path()?;
            page.call(move |core, _| core.entity(&path).map(|view| details(&view))).await
        }
        "messages" => messages(page, &parameters).await,
        "message" => message(page, &parameters).await,
        "sessions" => sessions(page, &parameters).await,
        "session-state" => session_state(page, &parameters).await,
        "rules" => rules(page, &parameters).await,
        _ => Err(PageError::new(hyper::StatusCode::NOT_FOUND, "no such request")),
    }
}

pub(super) fn parse_subqueue(text: Option<&str>) -> Result<Subqueue, PageError> {
    match text {
        None | Some("main") => Ok(Subqueue::Main),
        Some("dead-letter") => Ok(Subqueue::DeadLetter),
        Some("transfer-dead-letter") => Ok(Subqueue::TransferDeadLetter),
        Some(_) => Err(PageError::invalid("`subqueue` is `main`, `dead-letter` or `transfer-dead-letter`")),
    }
}

pub(super) fn parse_filter(state: Option<&str>, session: Option<&str>) -> Result<MessageFilter, PageError> {
    let state = match state {
        None => None,
        Some("active") => Some(MessageState::Active),
        Some("deferred") => Some(MessageState::Deferred),
        Some("scheduled") => Some(MessageState::Scheduled),
        Some(_) => return Err(PageError::invalid("`state` is `active`, `deferred` or `scheduled`")),
    };
    Ok(MessageFilter { state, session: session.map(Into::into) })
}

/// The queue of an entity. A topic has one too: its scheduled messages.
pub(super) fn find_queue(core: &Core, path: &str, subqueue: Subqueue) -> Result<QueueId, Error> {
    core.entity(path).map(|view| QueueId { entity: view.id, subqueue })
}

async fn entities(page: &BrokerPage, parameters: &Parameters<'_>) -> Result<Value, PageError> {
    let (skip, top) = parameters.rows()?;
    let wanted = parameters.text("filter").map(str::to_lowercase);
    page.call(move |core, _| {
        let is_wanted =
            |view: &EntityView<'_>| wanted.as_ref().is_none_or(|text| view.path.to_lowercase().contains(text));
        let (mut rows, mut total, mut totals) = (Vec::new(), 0, [0; 3]);
        for view in core.entities() {
            let counts = &view.counts;
            for (total, count) in totals.iter_mut().zip([counts.active, counts.dead_letter, counts.scheduled]) {
                *total += count;
            }
            if is_wanted(&view) {
                if (skip..skip.saturating_add(top)).contains(&total) {
                    rows.push(summary(&view));
                }
                total += 1;
            }
        }
        let [active, dead_letter, scheduled] = totals;
        let messages = json!({"active": active, "dead_letter": dead_letter, "scheduled": scheduled});
        Ok(json!({"entities": rows, "total": total, "messages": messages}))
    })
    .await
}

/// One row of the list.
fn summary(view: &EntityView<'_>) -> Value {
    let kind = match view.description {
        EntityDefinition::Queue(_) => "queue",
        EntityDefinition::Topic(_) => "topic",
        EntityDefinition::Subscription(_) => "subscription",
    };
    let counts = &view.counts;
    json!({
        "path": view.path,
        "kind": kind,
        "requires_session": view.description.egress().is_some_and(|egress| egress.requires_session),
        "status": view.description.common().status,
        "active": counts.active,
        "dead_letter": counts.dead_letter,
        "scheduled": counts.scheduled,
        "transfer": counts.transfer,
        "transfer_dead_letter": counts.transfer_dead_letter,
        "sessions": counts.sessions,
        "receivers": counts.receivers,
        "bytes": counts.bytes,
        "subscriptions": view.subscriptions,
    })
}

fn details(view: &EntityView<'_>) -> Value {
    let common = view.description.common();
    let millis = |duration: std::time::Duration| duration.as_millis() as u64;
    let send = view.description.ingress().map(|send| {
        json!({
            "max_size_bytes": send.total_size_in_megabytes() << 20,
            "partitioned": send.enable_partitioning,
            "duplicate_detection_ms": send.requires_duplicate_detection.then(|| millis(send.duplicate_detection_window)),
        })
    });
    let receive = view.description.egress().map(|receive| {
        json!({
            "lock_duration_ms": millis(receive.lock_duration),
            "max_delivery_count": receive.max_delivery_count,
            "dead_letters_expired": receive.dead_lettering_on_message_expiration,
            "forward_to": receive.forward_to,
            "forward_dead_letters_to": receive.forward_dead_lettered_messages_to,
        })
    });
    let mut details = summary(view);
    let more = json!({
        "created_at": view.created_at.0,
        "updated_at": view.updated_at.0,
        "accessed_at": view.accessed_at.map(|at| at.0),
        "time_to_live_ms": common.default_message_time_to_live.map(millis),
        "user_metadata": common.user_metadata,
        "send": send,
        "receive": receive,
    });
    if let (Value::Object(details), Value::Object(more)) = (&mut details, more) {
        details.extend(more);
    }
    details
}

async fn messages(page: &BrokerPage, parameters: &Parameters<'_>) -> Result<Value, PageError> {
    let path = parameters.path()?;
    let subqueue = parse_subqueue(parameters.text("subqueue"))?;
    let filter = parse_filter(parameters.text("state"), parameters.text("session"))?;
    let from = SequenceNumber(parameters.number("from", 0)?);
    let (_, top) = parameters.rows()?;
    let (read, next) = page
        .call(move |core, call| {
            let queue = find_queue(core, &path, subqueue)?;
            let mut found = core.browse(call, queue, &filter, from, top + 1)?.into_iter();
            let (mut read, mut bytes) = (Vec::new(), 0);
            let next = found.find_map(|peeked| {
                if read.len() == top || bytes > MAX_READ {
                    return Some(Ok(peeked.sequence));
                }
                bytes += peeked.location.len as usize;
                match message_view::read(call, &path, subqueue, peeked) {
                    Ok(message) => read.push(message),
                    Err(error) => return Some(Err(error)),
                }
                None
            });
            Ok((read, next.transpose()?))
        })
        .await?;
    let rows: Vec<Value> = read.iter().map(message_view::ReadMessage::summary).collect::<Result<_, _>>()?;
    Ok(json!({"messages": rows, "next": next.map(|next| next.0.to_string())}))
}

async fn message(page: &BrokerPage, parameters: &Parameters<'_>) -> Result<Value, PageError> {
    let path = parameters.path()?;
    let subqueue = parse_subqueue(parameters.text("subqueue"))?;
    let filter = parse_filter(None, parameters.text("session"))?;
    let sequence = SequenceNumber(parameters.number("sequence", 0)?);
    let read = page.call(move |core, call| {
        let queue = find_queue(core, &path, subqueue)?;
        let found = core.browse(call, queue, &filter, sequence, 1)?.pop();
        let peeked = found.filter(|found| found.sequence == sequence).ok_or(Error::MessageNotFound(sequence))?;
        message_view::read(call, &path, subqueue, peeked)
    });
    Ok(read.await?.details()?)
}

async fn sessions(page: &BrokerPage, parameters: &Parameters<'_>) -> Result<Value, PageError> {
    let path = parameters.path()?;
    let (skip, top) = parameters.rows()?;
    let (mut views, total) = page
        .call(move |core, call| {
            let queue = core.resolve_receive_address(&path)?;
            Ok((core.session_views(call, queue, skip, top + 1)?, core.entity(&path)?.counts.sessions))
        })
        .await?;
    let more = views.len() > top;
    views.truncate(top);
    let row = |view: crate::core::SessionView| {
        let state = view.state.map(|state| json!({"bytes": state.bytes, "updated_at": state.updated_at.0}));
        json!({"id": &*view.id, "messages": view.messages, "locked_until": view.locked_until.map(|until| until.0), "state": state})
    };
    Ok(json!({"sessions": views.into_iter().map(row).collect::<Vec<_>>(), "more": more, "total": total}))
}

async fn session_state(page: &BrokerPage, parameters: &Parameters<'_>) -> Result<Value, PageError> {
    let path = parameters.path()?;
    let session = parameters.0.get("session").cloned().unwrap_or_default();
    let state = page.call(move |core, call| {
        let queue = core.resolve_receive_address(&path)?;
        core.browse_session_state(call, queue, &session)
    });
    Ok(json!({"state": state.await?.as_ref().map(body::shown)}))
}

async fn rules(page: &BrokerPage, parameters: &Parameters<'_>) -> Result<Value, PageError> {
    let path = parameters.path()?;
    let (skip, top) = parameters.rows()?;
    let mut listed: Vec<_> =
        page.call(move |core, _| Ok(core.rules(&path)?.skip(skip).take(top + 1).cloned().collect())).await?;
    let more = listed.len() > top;
    listed.truncate(top);
    let rows: Vec<_> = listed.iter().map(|rule| describe_rule(&rule.description, rule.created_at.0)).collect();
    Ok(json!({"rules": rows, "more": more}))
}

fn describe_rule(rule: &RuleDescription, created_at: u64) -> Value {
    let parameters = |parameters: &[(String, PropertyValue)]| {
        let text = parameters.iter().map(|(name, value)| format!("{name} = {}", property_text(value)));
        text.collect::<Vec<_>>().join(", ")
    };
    let (kind, filter) = match &rule.filter {
        RuleFilter::True => ("true", "every message".to_owned()),
        RuleFilter::False => ("false", "no message".to_owned()),
        RuleFilter::Sql(sql) => match parameters(&sql.parameters) {
            given if given.is_empty() => ("sql", sql.expression.clone()),
            given => ("sql", format!("{} (with {given})", sql.expression)),
        },
        RuleFilter::Correlation(filter) => {
            let own = [
                ("correlation id", &filter.correlation_id),
                ("message id", &filter.message_id),
                ("to", &filter.to),
                ("reply to", &filter.reply_to),
                ("subject", &filter.label),
                ("session id", &filter.session_id),
                ("reply to session id", &filter.reply_to_session_id),
                ("content type", &filter.content_type),
            ];
            let own = own.iter().filter_map(|(name, value)| Some(format!("{name} = {:?}", value.as_ref()?)));
            let all =
                own.chain(filter.properties.iter().map(|(name, value)| format!("{name} = {}", property_text(value))));
            ("correlation", all.collect::<Vec<_>>().join(", "))
        }
    };
    let action = rule.action.as_ref().map(|action| action.0.expression.as_str());
    json!({"name": rule.name, "kind": kind, "filter": filter, "action": action, "created_at": created_at})
}

fn property_text(value: &PropertyValue) -> String {
    match value {
        PropertyValue::String(text) => format!("{text:?}"),
        PropertyValue::Int(number) => number.to_string(),
        PropertyValue::Long(number) => number.to_string(),
        PropertyValue::Double(number) => number.to_string(),
        PropertyValue::Boolean(value) => value.to_string(),
        PropertyValue::DateTime(text) | PropertyValue::Duration(text) => text.clone(),
    }
}
