//! Requests and responses over a pair of links: `$cbs` and `$management` work this way.

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

use crate::connection::{Attaching, Caller, Command, Connection, Inbound, Link, Transfer};
use crate::error::{Error, Step};

/// Answers under way at most; a request beyond that waits on the other side.
const ANSWERS: u32 = 100;

/// Who waits for which answer.
#[derive(Default)]
pub(crate) struct Answers(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    requests: HashMap<u64, oneshot::Sender<Result<Message, Error>>>,
    over: Option<Error>,
}

impl Answers {
    /// An answer that nobody waits for, or that cannot be read, is dropped: its request times out.
    pub(crate) fn arrived(&self, payload: Bytes) {
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
        waiting.over = Some(error.clone());
        for (_, reply) in waiting.requests.drain() {
            let _ = reply.send(Err(error.clone()));
        }
    }

    fn expect(&self, number: u64) -> Result<oneshot::Receiver<Result<Message, Error>>, Error> {
        let mut waiting = self.lock();
        if let Some(error) = &waiting.over {
            return Err(error.clone());
        }
        let (reply, answer) = oneshot::channel();
        waiting.requests.insert(number, reply);
        Ok(answer)
    }

    fn forget(&self, number: u64) {
        self.lock().requests.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().expect("no one panics while holding the answers")
    }
}

/// What is asked: application properties and a body.
pub(crate) struct Request {
    pub(crate) properties: Vec<(&'static str, Value)>,
    pub(crate) body: Value,
}

pub(crate) struct RequestLink {
    requests: Link,
    responses: Link,
    answers: Arc<Answers>,
    reply_to: String,
    numbers: AtomicU64,
}

impl RequestLink {
    pub(crate) async fn open(connection: &Connection, node: &Arc<str>, deadline: Instant) -> Result<Self, Error> {
        let name = Uuid::new_v4();
        let reply_to = format!("{name}-replies");
        let answers = Arc::new(Answers::default());
        let mut receive = Attach::receiver(reply_to.clone(), Source::at(node), Target::at(&reply_to));
        receive.snd_settle_mode = SenderSettleMode::Settled;
        receive.rcv_settle_mode = ReceiverSettleMode::First;
        let send = Attach::sender(format!("{name}-requests"), Source::at(&reply_to), Target::at(node));
        let pair = |attach, inbound, credit| Attaching {
            attach,
            address: Arc::clone(node),
            inbound,
            own_session: false,
            credit,
            guard: None,
        };
        let responses = pair(receive, Some(Inbound::Answers(Arc::clone(&answers))), ANSWERS);
        let (responses, requests) =
            tokio::try_join!(connection.attach(responses, deadline), connection.attach(pair(send, None, 0), deadline))?;
        Ok(Self { requests, responses, answers, reply_to, numbers: AtomicU64::new(1) })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.requests.ended().is_none() && self.responses.ended().is_none()
    }

    /// Ends when either link does, with the reason: a way to hear of it at once.
    pub(crate) async fn ended(&self) -> Error {
        let number = self.numbers.fetch_add(1, Relaxed);
        let _forget = Forget { answers: &self.answers, number };
        match self.answers.expect(number) {
            // No request was sent under this number, so only the end of the link can answer it.
            Ok(answer) => answer.await.ok().and_then(Result::err).unwrap_or_else(|| self.over()),
            Err(error) => error,
        }
    }

    /// Sends a request and waits for its answer, not for its acceptance; a refusal of the request is an answer too.
    pub(crate) async fn ask(&self, step: Step, request: &Request, deadline: Instant) -> Result<Message, Error> {
        let number = self.numbers.fetch_add(1, Relaxed);
        let answer = self.answers.expect(number)?;
        let _forget = Forget { answers: &self.answers, number };
        let (reply, outcome) = oneshot::channel();
        let transfer = Transfer {
            link: self.requests.key(),
            token: number,
            payload: self.encode(number, request),
            message_format: 0,
            permit: None,
            caller: Caller::One(reply),
        };
        let connection = self.requests.connection();
        connection.command(Command::Transfer(transfer))?;
        let started = Instant::now();
        match timeout_at(deadline, self.first(answer, outcome)).await {
            Ok(answer) => answer,
            Err(_) => {
                connection.suspect(step);
                let address = Arc::clone(self.requests.address());
                Err(Error::Timeout { step, address, within: started.elapsed() })
            }
        }
    }

    async fn first(
        &self,
        mut answer: oneshot::Receiver<Result<Message, Error>>,
        outcome: oneshot::Receiver<Result<(), Error>>,
    ) -> Result<Message, Error> {
        tokio::select! {
            biased;
            // cancel-safe: both are only looked at again, or not needed any more
            answered = &mut answer => return answered.unwrap_or_else(|_| Err(self.over())),
            sent = outcome => sent.unwrap_or_else(|_| Err(self.requests.error()))?,
        }
        answer.await.unwrap_or_else(|_| Err(self.over()))
    }

    fn over(&self) -> Error {
        self.responses.ended().unwrap_or_else(|| self.requests.error())
    }

    fn encode(&self, number: u64, request: &Request) -> Bytes {
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

struct Forget<'a> {
    answers: &'a Answers,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.answers.forget(self.number);
    }
}
