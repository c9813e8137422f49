//! Whether messages of an aggregate are still on Service Bus: only its session, accepted by name, tells.

use std::time::Duration;

use servicebus::{BusErrorKind, Client, Error, SessionReceiver};

/// Service Bus delivers what a session holds within milliseconds. A message that takes longer costs a false alarm, and is a duplicate then.
const EMPTY_AFTER: Duration = Duration::from_millis(500);

/// What the session of an aggregate holds.
pub(super) enum SessionBacklog {
    /// No message. The session stays locked until the receiver is closed, so that no consumer races the healing.
    Empty(Box<SessionReceiver>),
    /// Messages, or a consumer that holds the session and may be applying them.
    Waiting,
}

pub(super) async fn accept_if_empty(client: &Client, entity: &str, session: &str) -> Result<SessionBacklog, Error> {
    let mut receiver = match client.accept_session(entity, session).await {
        Ok(receiver) => receiver,
        Err(error) if error.kind() == BusErrorKind::SessionHeldElsewhere => return Ok(SessionBacklog::Waiting),
        Err(error) => return Err(error),
    };
    let messages = receiver.receive(1, EMPTY_AFTER).await?;
    if messages.is_empty() {
        return Ok(SessionBacklog::Empty(Box::new(receiver)));
    }
    // Unsettled messages go back with an unchanged delivery count.
    receiver.close().await?;
    Ok(SessionBacklog::Waiting)
}
