//! Requests and responses over a pair of links, as `$cbs` and `$management` use them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use amqp::message::{MessageId, MessageWriter, Properties};
use amqp::performative::{ReceiverSettleMode, SenderSettleMode};
use amqp::{Attach, Message, Source, Target, Value};
use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::connection::{
    ClientConnection, ClientLink, Command, InboundEvent, LinkOptions, OutcomeSender, OutgoingTransfer,
};
use crate::error::{ClientOperation, Error};

/// Responses in flight at most. Further requests wait on the other side.
const RESPONSE_CREDIT: u32 = 100;

/// The requests that wait for a response.
#[derive(Default)]
pub(crate) struct PendingResponses(Mutex<ResponseWaiters>);

#[derive(Default)]
struct ResponseWaiters {
    requests: HashMap<u64, oneshot::Sender<Result<Message, Error>>>,
    closed: Option<Error>,
}

impl PendingResponses {
    /// Drops a response that nobody waits for or that cannot be decoded. Its request then times out.
    pub(crate) fn complete(&self, payload: Bytes) {
        let Ok(message) = Message::parse(payload) else { return };
        let number = match message.properties().ok().and_then(|properties| properties.correlation_id) {
            Some(MessageId::String(text)) => text.parse().ok(),
            Some(MessageId::Ulong(_) | MessageId::Uuid(_) | MessageId::Binary(_)) | None => None,
        };
        let waiting = number.and_then(|number: u64| self.lock().requests.remove(&number));
        drop(waiting.map(|reply| reply.send(Ok(message))));
    }

    pub(crate) fn fail(&self, error: &Error) {
        let mut waiting = self.lock();
        waiting.closed = Some(error.clone());
        for (_, reply) in waiting.requests.drain() {
            let _ = reply.send(Err(error.clone()));
        }
    }

    fn register(&self, number: u64) -> Result<oneshot::Receiver<Result<Message, Error>>, Error> {
        let mut waiting = self.lock();
        if let Some(error) = &waiting.closed {
            return Err(error.clone());
        }
        let (reply, answer) = oneshot::channel();
        waiting.requests.insert(number, reply);
        Ok(answer)
    }

    fn forget(&self, number: u64) {
        self.lock().requests.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, ResponseWaiters> {
        self.0.lock().expect("no one panics while holding the lock")
    }
}

/// A request: application properties and a body.
pub(crate) struct NodeRequest {
    pub(crate) properties: Vec<(&'static str, Value)>,
    pub(crate) body: Value,
}

pub(crate) struct RequestLink {
    requests: ClientLink,
    responses: ClientLink,
    pending: Arc<PendingResponses>,
    reply_to: String,
    numbers: AtomicU64,
}

impl RequestLink {
    pub(crate) async fn open(connection: &ClientConnection, node: &Arc<str>, deadline: Instant) -> Result<Self, Error> {
        let name = Uuid::new_v4();
        let reply_to = format!("{name}-replies");
        let pending = Arc::new(PendingResponses::default());
        let mut receive = Attach::receiver(reply_to.clone(), Source::at(node), Target::at(&reply_to));
        receive.snd_settle_mode = SenderSettleMode::Settled;
        receive.rcv_settle_mode = ReceiverSettleMode::First;
        let send = Attach::sender(format!("{name}-requests"), Source::at(&reply_to), Target::at(node));
        let pair = |attach, inbound, credit| LinkOptions {
            attach,
            address: Arc::clone(node),
            inbound,
            own_session: false,
            credit,
            guard: None,
        };
        let responses = pair(receive, Some(InboundEvent::Responses(Arc::clone(&pending))), RESPONSE_CREDIT);
        let (responses, requests) =
            tokio::try_join!(connection.attach(responses, deadline), connection.attach(pair(send, None, 0), deadline))?;
        Ok(Self { requests, responses, pending, reply_to, numbers: AtomicU64::new(1) })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.requests.closed_reason().is_none() && self.responses.closed_reason().is_none()
    }

    /// Waits until either link is closed, and returns the reason.
    pub(crate) async fn ended(&self) -> Error {
        let number = self.numbers.fetch_add(1, Relaxed);
        let _forget = ForgetOnDrop { pending: &self.pending, number };
        match self.pending.register(number) {
            // No request uses this number, so only the close of the link completes it.
            Ok(answer) => answer.await.ok().and_then(Result::err).unwrap_or_else(|| self.closed_error()),
            Err(error) => error,
        }
    }

    /// Sends a request and waits for its response, not for its acceptance. If the peer rejects the request, that error is returned.
    pub(crate) async fn request(
        &self,
        operation: ClientOperation,
        request: &NodeRequest,
        deadline: Instant,
    ) -> Result<Message, Error> {
        let number = self.numbers.fetch_add(1, Relaxed);
        let answer = self.pending.register(number)?;
        let _forget = ForgetOnDrop { pending: &self.pending, number };
        let (reply, outcome) = oneshot::channel();
        let transfer = OutgoingTransfer {
            link: self.requests.key(),
            token: number,
            payload: self.encode(number, request),
            message_format: 0,
            permit: None,
            caller: OutcomeSender::One(reply),
        };
        let connection = self.requests.connection();
        connection.command(Command::Transfer(transfer))?;
        let started = Instant::now();
        match timeout_at(deadline, self.wait_response(answer, outcome)).await {
            Ok(answer) => answer,
            Err(_) => {
                connection.abort(operation);
                let address = Arc::clone(self.requests.address());
                Err(Error::Timeout { operation, address, within: started.elapsed() })
            }
        }
    }

    async fn wait_response(
        &self,
        mut answer: oneshot::Receiver<Result<Message, Error>>,
        outcome: oneshot::Receiver<Result<(), Error>>,
    ) -> Result<Message, Error> {
        tokio::select! {
            biased;
            // cancel-safe: both receivers are polled again or no longer needed
            answered = &mut answer => return answered.unwrap_or_else(|_| Err(self.closed_error())),
            sent = outcome => sent.unwrap_or_else(|_| Err(self.requests.close_error()))?,
        }
        answer.await.unwrap_or_else(|_| Err(self.closed_error()))
    }

    fn closed_error(&self) -> Error {
        self.responses.closed_reason().unwrap_or_else(|| self.requests.close_error())
    }

    fn encode(&self, number: u64, request: &NodeRequest) -> Bytes {
        let id = number.to_string();
        let message_id = Some(MessageId::String(id.into()));
        let properties = Properties { message_id, reply_to: Some(&self.reply_to), ..Properties::default() };
        let mut buffer = BytesMut::new();
        MessageWriter::new(&mut buffer)
            .properties(&properties)
            .application_properties(|map| {
                for (name, value) in &request.properties {
                    value.encode(map.string(name));
                }
            })
            .value(&request.body);
        buffer.freeze()
    }
}

struct ForgetOnDrop<'a> {
    pending: &'a PendingResponses,
    number: u64,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.pending.forget(self.number);
    }
}
