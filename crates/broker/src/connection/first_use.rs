//! Creates entities when a client first uses them, for tests of other applications. Off unless configured.

use amqp::{Attach, Value};

use crate::core::{
    CallContext, Core, EntityDefinition, Error, QueueDescription, SubscriptionDescription, TopicDescription,
};

const SUBSCRIPTIONS: &str = "/subscriptions/";
/// The value of `com.microsoft:entity-type` for a topic.
const TOPIC: i64 = 1;

/// What a client is about to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstUse {
    /// Sending, to a queue or a topic.
    Send { topic: bool },
    /// Receiving, with or without a session filter.
    Receive { sessions: bool },
}

impl FirstUse {
    /// Clients that do not say what they send to get a queue.
    pub(super) fn of_sender(attach: &Attach) -> Self {
        let kind = attach.properties.as_ref().and_then(|properties| properties.get("com.microsoft:entity-type"));
        Self::Send { topic: kind.and_then(Value::as_integer) == Some(TOPIC) }
    }

    /// Creates the entity unless it exists.
    pub(super) fn create_missing(self, core: &mut Core, call: &mut CallContext<'_>, path: &str) -> Result<(), Error> {
        if core.find_address(path).is_ok() {
            return Ok(());
        }
        let path = without_subqueue(path);
        let Some(at) = path.to_ascii_lowercase().rfind(SUBSCRIPTIONS) else {
            let is_topic = self == Self::Send { topic: true };
            let description = if is_topic { EntityDefinition::Topic(topic()) } else { self.queue() };
            return core.create(call, path, description).map(drop);
        };
        if core.entity(&path[..at]).is_err() {
            core.create(call, &path[..at], EntityDefinition::Topic(topic()))?;
        }
        let mut subscription = SubscriptionDescription::default();
        subscription.common.enable_batched_operations = true;
        subscription.dead_lettering_on_filter_evaluation_exceptions = true;
        subscription.egress.requires_session = self.needs_sessions();
        core.create(call, path, EntityDefinition::Subscription(subscription)).map(drop)
    }

    fn queue(self) -> EntityDefinition {
        let mut queue = QueueDescription::default();
        queue.common.enable_batched_operations = true;
        queue.egress.requires_session = self.needs_sessions();
        EntityDefinition::Queue(queue)
    }

    fn needs_sessions(self) -> bool {
        self == Self::Receive { sessions: true }
    }
}

fn topic() -> TopicDescription {
    let mut topic = TopicDescription { support_ordering: true, ..TopicDescription::default() };
    topic.common.enable_batched_operations = true;
    topic
}

fn without_subqueue(path: &str) -> &str {
    path.find("/$").map_or(path, |at| &path[..at]).trim_matches('/')
}
