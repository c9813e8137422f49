//! The changes of the page's API. The page asks for confirmation; here only the token counts.

use serde::Deserialize;
use serde_json::{Value, json};

use super::draft::{self, Draft};
use super::message_view;
use super::queries::{find_queue, parse_filter, parse_subqueue};
use super::{BrokerPage, PageError, parse_json};
use crate::core::{
    CallContext, Core, EntityId, Error, MessageFilter, MessageSelector, QueueId, SequenceNumber, Subqueue,
};

/// Messages that one request names, sends or resubmits.
const MAX_MESSAGES: usize = 500;
/// Bytes of messages that one request reads.
const MAX_READ: usize = 8 << 20;

pub(super) async fn run(page: &BrokerPage, name: &str, body: &[u8]) -> Result<Value, PageError> {
    match name {
        // The token is right.
        "check" => Ok(json!({})),
        "send" => send(page, parse_json(body)?).await,
        "resubmit" => resubmit(page, parse_json(body)?).await,
        "resubmit-all" => resubmit_all(page, parse_json(body)?).await,
        "dead-letter" => dead_letter(page, parse_json(body)?).await,
        "delete" => delete(page, parse_json(body)?).await,
        "purge" => purge(page, parse_json(body)?).await,
        _ => Err(PageError::new(hyper::StatusCode::NOT_FOUND, "no such action")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    path: String,
    message: Draft,
    #[serde(default = "one")]
    copies: usize,
}

fn one() -> usize {
    1
}

/// Names messages of one queue.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Selection {
    path: String,
    subqueue: Option<String>,
    messages: Vec<SelectedMessage>,
    /// Only for dead-lettering.
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    description: Option<String>,
    /// Only for resubmitting one message: what to send in its place.
    #[serde(default)]
    edited: Option<Draft>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SelectedMessage {
    /// As text: JavaScript cannot hold the numbers of partitioned entities.
    sequence: String,
    #[serde(default)]
    session: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Purge {
    path: String,
    subqueue: Option<String>,
    state: Option<String>,
    session: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResubmitAll {
    path: String,
    subqueue: Option<String>,
    /// The first message to look at; those before it were looked at by earlier requests.
    #[serde(default)]
    from: String,
    /// The last message when the first request came: what arrives later stays.
    #[serde(default)]
    last: Option<String>,
}

impl Selection {
    fn selectors(&self) -> Result<Vec<MessageSelector>, PageError> {
        if self.messages.len() > MAX_MESSAGES {
            return Err(PageError::invalid(format!("at most {MAX_MESSAGES} messages at once")));
        }
        let selector = |message: &SelectedMessage| {
            let sequence = parse_sequence(&message.sequence)?;
            Ok(MessageSelector { sequence, session: message.session.as_deref().map(Into::into) })
        };
        self.messages.iter().map(selector).collect()
    }

    fn subqueue(&self) -> Result<Subqueue, PageError> {
        parse_subqueue(self.subqueue.as_deref())
    }
}

fn parse_sequence(text: &str) -> Result<SequenceNumber, PageError> {
    text.parse().map(SequenceNumber).map_err(|_| PageError::invalid("a sequence number is not a number"))
}

async fn send(page: &BrokerPage, send: Send) -> Result<Value, PageError> {
    if !(1..=MAX_MESSAGES).contains(&send.copies) {
        return Err(PageError::invalid(format!("1 to {MAX_MESSAGES} copies can be sent at once")));
    }
    let message = send.message.encode()?;
    if message.body.len().saturating_mul(send.copies) > MAX_READ {
        return Err(PageError::invalid(format!("at most {} MiB can be sent at once", MAX_READ >> 20)));
    }
    let sent = page.call(move |core, call| {
        let entity = core.resolve_send_address(&send.path)?;
        core.send(call, entity, &vec![message; send.copies])
    });
    let sent = sent.await?;
    let stored: Vec<_> = sent.iter().flatten().map(|sequence| sequence.0.to_string()).collect();
    Ok(json!({"sent": stored.len(), "duplicates": sent.len() - stored.len(), "sequences": stored}))
}

async fn dead_letter(page: &BrokerPage, selection: Selection) -> Result<Value, PageError> {
    let (selectors, subqueue) = (selection.selectors()?, selection.subqueue()?);
    let requested = selectors.len();
    let moved = page.call(move |core, call| {
        let queue = find_queue(core, &selection.path, subqueue)?;
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (reason, description) = (text(&selection.reason), text(&selection.description));
        core.dead_letter_selected(call, queue, &selectors, reason.as_deref(), description.as_deref())
    });
    Ok(outcome("dead_lettered", moved.await?, requested))
}

async fn delete(page: &BrokerPage, selection: Selection) -> Result<Value, PageError> {
    let (selectors, subqueue) = (selection.selectors()?, selection.subqueue()?);
    let requested = selectors.len();
    let deleted = page.call(move |core, call| {
        let queue = find_queue(core, &selection.path, subqueue)?;
        core.delete_selected(call, queue, &selectors)
    });
    Ok(outcome("deleted", deleted.await?, requested))
}

/// How many messages changed, and how many did not because a receiver holds them or they are gone.
fn outcome(name: &str, changed: usize, requested: usize) -> Value {
    json!({name: changed, "unchanged": requested - changed})
}

async fn purge(page: &BrokerPage, purge: Purge) -> Result<Value, PageError> {
    let subqueue = parse_subqueue(purge.subqueue.as_deref())?;
    let filter = parse_filter(purge.state.as_deref(), purge.session.as_deref())?;
    let deleted = page.call(move |core, call| {
        let queue = find_queue(core, &purge.path, subqueue)?;
        core.purge(call, queue, &filter)
    });
    Ok(json!({"deleted": deleted.await?}))
}

async fn resubmit(page: &BrokerPage, selection: Selection) -> Result<Value, PageError> {
    let (selectors, subqueue) = (selection.selectors()?, selection.subqueue()?);
    let edited = selection.edited.as_ref().map(Draft::encode).transpose()?;
    if edited.is_some() && selectors.len() != 1 {
        return Err(PageError::invalid("one message can be edited at a time"));
    }
    let requested = selectors.len();
    let done = page.call(move |core, call| {
        let source = ResubmitSource::find(core, &selection.path, subqueue)?;
        let mut done = 0;
        for selector in &selectors {
            let message = match edited.clone() {
                Some(message) => Ok(message),
                None => source
                    .read(core, call, selector)
                    .and_then(|stored| draft::to_incoming(stored).map_err(|_| UNREADABLE)),
            };
            let sent = message.and_then(|message| core.resubmit(call, source.queue, selector, source.target, message));
            match sent {
                Ok(_) => done += 1,
                // Settled or locked in the meantime: the others go on.
                Err(Error::MessageNotFound(_)) => {}
                // The rest would fail in the same way; those that are sent stay sent.
                Err(error) => return Ok((done, Some(error.to_string()))),
            }
        }
        Ok((done, None))
    });
    let (done, problem) = done.await?;
    Ok(json!({"resubmitted": done, "unchanged": requested - done, "problem": problem}))
}

async fn resubmit_all(page: &BrokerPage, request: ResubmitAll) -> Result<Value, PageError> {
    let subqueue = parse_subqueue(request.subqueue.as_deref())?;
    if subqueue == Subqueue::Main {
        return Err(PageError::invalid("only dead letters can be resubmitted together"));
    }
    let from = if request.from.is_empty() { SequenceNumber(0) } else { parse_sequence(&request.from)? };
    let last = request.last.as_deref().map(parse_sequence).transpose()?;
    let done = page.call(move |core, call| {
        let source = ResubmitSource::find(core, &request.path, subqueue)?;
        let last = match last {
            Some(last) => last,
            None => core.last_sequence(source.queue)?,
        };
        let found = core.browse(call, source.queue, &MessageFilter::default(), from, MAX_MESSAGES)?;
        let (mut done, mut bytes) = (0, 0);
        for peeked in &found {
            bytes += peeked.location.len as usize;
            if peeked.sequence.counter() > last.counter() {
                return Ok((done, None, last, None));
            }
            if bytes > MAX_READ && done > 0 {
                return Ok((done, Some(peeked.sequence), last, None));
            }
            if peeked.is_locked {
                continue;
            }
            // Dead-letter queues have no sessions.
            let selector = MessageSelector { sequence: peeked.sequence, session: None };
            let message = draft::to_incoming(call.journal.read(peeked.location)?.body).map_err(|_| UNREADABLE);
            let sent = message.and_then(|message| core.resubmit(call, source.queue, &selector, source.target, message));
            if let Err(error) = sent {
                return Ok((done, None, last, Some(error.to_string())));
            }
            done += 1;
        }
        let next = found.last().filter(|_| found.len() == MAX_MESSAGES);
        Ok((done, next.map(|next| SequenceNumber(next.sequence.counter() + 1)), last, None))
    });
    let (done, next, last, problem) = done.await?;
    let next = next.map(|next| next.0.to_string());
    Ok(json!({"resubmitted": done, "next": next, "last": last.0.to_string(), "problem": problem}))
}

const UNREADABLE: Error = Error::NotAllowed("stored message cannot be decoded");

/// Where resubmitted messages come from and go to.
struct ResubmitSource {
    path: String,
    queue: QueueId,
    /// The queue itself, or the topic of a subscription.
    target: EntityId,
}

impl ResubmitSource {
    fn find(core: &Core, path: &str, subqueue: Subqueue) -> Result<Self, Error> {
        let queue = find_queue(core, path, subqueue)?;
        let topic = path.to_ascii_lowercase().rfind("/subscriptions/").map(|at| &path[..at]);
        Ok(Self { path: path.to_owned(), queue, target: core.resolve_send_address(topic.unwrap_or(path))? })
    }

    /// The bytes that the sender sent.
    fn read(
        &self,
        core: &mut Core,
        call: &mut CallContext<'_>,
        selector: &MessageSelector,
    ) -> Result<bytes::Bytes, Error> {
        let filter = MessageFilter { state: None, session: selector.session.clone() };
        let found = core.browse(call, self.queue, &filter, selector.sequence, 1)?.pop();
        let peeked = found.filter(|found| found.sequence == selector.sequence);
        let peeked = peeked.ok_or(Error::MessageNotFound(selector.sequence))?;
        Ok(message_view::read(call, &self.path, self.queue.subqueue, peeked)?.stored)
    }
}
