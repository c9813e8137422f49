//! Two clients with random credit, drains, detaches, settle modes and outcomes, against a model: no message is lost, none
//! is delivered beyond the credit, and both sides agree on the credit when nothing is in flight.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use amqp::performative::{Detach, Disposition, Flow, Modified, Performative, SenderSettleMode};
use amqp::{Attach, DeliveryState, Message, Role, Source, Target};
use broker::core::{EntityDefinition, QueueDescription, ReceiveProperties};
use broker::{Broker, StorageLocation};
use bytes::{Bytes, BytesMut};

use crate::fixture::SOON;
use crate::raw_peer::{self, RawPeer, transfer};

/// Delivery counts stay below it, so that nothing is dead-lettered.
const MAX_DELIVERIES: u16 = 2_000;
const STEPS: u32 = 80;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % u64::from(sides)) as u32
    }
}

/// The messages of a run: each is sent once, and must be consumed once.
#[derive(Default)]
struct MessageLedger {
    sent: u64,
    consumed: BTreeSet<u64>,
}

impl MessageLedger {
    fn consume(&mut self, message: u64) {
        assert!(self.consumed.insert(message), "message {message} was consumed twice");
    }
}

/// A receiver that counts its credit as AMQP says.
struct ModelReceiver {
    peer: RawPeer,
    deletes: bool,
    /// Deliveries and drained credit.
    delivery_count: u32,
    /// The delivery-count up to which credit is granted now.
    limit: u32,
    /// The highest limit: deliveries up to it may have been in flight when the limit was lowered.
    highest_limit: u32,
    draining: bool,
    unsettled: Vec<(u32, u64)>,
    /// Settlements that wait for their reply: the message, if it is completed.
    settling: HashMap<u32, Option<u64>>,
    detached: bool,
}

impl ModelReceiver {
    async fn attach(mut peer: RawPeer, deletes: bool) -> Self {
        let snd_settle_mode = if deletes { SenderSettleMode::Settled } else { SenderSettleMode::Unsettled };
        let attach = Attach { snd_settle_mode, ..Attach::receiver("r", Source::at("q"), Target::at("me")) };
        peer.frame(0, &raw_peer::attach(attach)).await;
        peer.until(|frame| matches!(frame, Performative::Attach(_))).await;
        Self {
            peer,
            deletes,
            delivery_count: 0,
            limit: 0,
            highest_limit: 0,
            draining: false,
            unsettled: Vec::new(),
            settling: HashMap::new(),
            detached: false,
        }
    }

    async fn flow(&mut self, credit: u32, drain: bool, echo: bool) {
        self.limit = self.delivery_count + credit;
        self.highest_limit = self.highest_limit.max(self.limit);
        self.draining = drain;
        let Performative::Flow(flow) = raw_peer::credit(0, credit, u32::MAX / 4) else { unreachable!("a flow") };
        let flow = Flow { delivery_count: Some(self.delivery_count), drain, echo, ..flow };
        self.peer.frame(0, &Performative::Flow(flow)).await;
    }

    fn credit(&self) -> u32 {
        self.limit.saturating_sub(self.delivery_count)
    }

    /// Handles one frame; returns a flow that is not a reply to a drain.
    fn handle(&mut self, ledger: &mut MessageLedger, frame: Performative, payload: &Bytes) -> Option<Flow> {
        match frame {
            Performative::Transfer(transfer) => {
                assert!(self.delivery_count < self.highest_limit, "a delivery beyond the credit");
                self.delivery_count += 1;
                assert_eq!(transfer.settled.unwrap_or(false), self.deletes);
                let message = number_in(payload);
                match self.deletes {
                    true => ledger.consume(message),
                    false => self.unsettled.push((transfer.delivery_id.expect("a first frame"), message)),
                }
            }
            Performative::Flow(flow) if flow.drain => {
                assert!(self.draining, "a second reply to a drain");
                self.draining = false;
                let until = self.limit.max(self.delivery_count);
                assert_eq!((flow.delivery_count, flow.link_credit), (Some(until), Some(0)));
                (self.delivery_count, self.limit, self.highest_limit) = (until, until, until);
            }
            Performative::Flow(flow) if flow.handle.is_some() => return Some(flow),
            Performative::Flow(_) => {}
            Performative::Disposition(Disposition { first, last, settled, state, .. }) => {
                assert!(settled && !matches!(state, Some(DeliveryState::Rejected(_))), "{state:?}");
                for id in first..=last.unwrap_or(first) {
                    if let Some(message) = self.settling.remove(&id).expect("a settlement waits for it") {
                        ledger.consume(message);
                    }
                }
            }
            Performative::Detach(detach) => {
                assert_eq!(detach.error, None);
                self.detached = true;
            }
            other => panic!("{other:?}"),
        }
        None
    }

    /// Handles the frames that have arrived.
    async fn poll(&mut self, ledger: &mut MessageLedger, wait: Duration) {
        while let Some((frame, payload)) = self.peer.poll_frame(wait).await {
            self.handle(ledger, frame, &payload);
        }
    }

    /// Handles frames until a condition holds.
    async fn wait(&mut self, ledger: &mut MessageLedger, what: &str, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            let (frame, payload) = self.peer.poll_frame(SOON).await.unwrap_or_else(|| panic!("waiting for {what}"));
            self.handle(ledger, frame, &payload);
        }
    }

    async fn drain(&mut self, ledger: &mut MessageLedger, credit: u32) {
        self.wait(ledger, "an earlier drain", |model| !model.draining).await;
        self.flow(credit, true, false).await;
    }

    /// Settles a random part of the unsettled deliveries.
    async fn settle(&mut self, dice: &mut Dice) {
        let (settled, kept): (Vec<_>, Vec<_>) = self.unsettled.drain(..).partition(|_| dice.roll(2) == 0);
        self.unsettled = kept;
        for (id, message) in settled {
            let state = match dice.roll(4) {
                0 => DeliveryState::Released,
                1 => DeliveryState::Modified(Box::new(Modified { delivery_failed: true, ..Modified::default() })),
                _ => DeliveryState::Accepted,
            };
            self.settling.insert(id, (state == DeliveryState::Accepted).then_some(message));
            let disposition = Disposition {
                role: Role::Receiver,
                first: id,
                last: None,
                settled: false,
                state: Some(state),
                batchable: false,
            };
            self.peer.frame(0, &Performative::Disposition(disposition)).await;
        }
    }

    /// Detaches as the SDKs do: a receiver that deletes drains first, because a delivery in flight is gone.
    async fn detach(mut self, ledger: &mut MessageLedger) -> RawPeer {
        if self.deletes {
            self.drain(ledger, 0).await;
        }
        self.wait(ledger, "a drain", |model| !model.draining).await;
        self.wait(ledger, "settlements", |model| model.settling.is_empty()).await;
        let detach = Detach { handle: 0, closed: true, error: None };
        self.peer.frame(0, &Performative::Detach(detach)).await;
        self.wait(ledger, "the detach", |model| model.detached).await;
        self.peer
    }

    /// Nothing is in flight: credit that is granted is used up to the last one, and no further.
    async fn assert_credit_is_equal(&mut self, ledger: &mut MessageLedger, sender: &mut ModelSender) {
        self.drain(ledger, 2).await;
        self.wait(ledger, "a drain", |model| !model.draining).await;
        self.flow(3, false, false).await;
        sender.send(ledger, 4).await;
        self.wait(ledger, "deliveries for the credit", |model| model.credit() == 0).await;
        self.flow(0, false, true).await;
        let reply = loop {
            let (frame, payload) = self.peer.poll_frame(SOON).await.expect("a reply to the echo");
            if let Some(flow) = self.handle(ledger, frame, &payload) {
                break flow;
            }
        };
        assert_eq!((reply.delivery_count, reply.link_credit), (Some(self.delivery_count), Some(0)));
    }
}

struct ModelSender(RawPeer);

impl ModelSender {
    async fn send(&mut self, ledger: &mut MessageLedger, count: u32) {
        let mut frames = BytesMut::new();
        for _ in 0..count {
            let id = u32::try_from(ledger.sent).expect("a short run");
            raw_peer::write_performative(&mut frames, 0, &transfer(0, id, false), &numbered(ledger.sent));
            ledger.sent += 1;
        }
        self.0.write(&frames).await;
        let last = u32::try_from(ledger.sent - 1).expect("a short run");
        self.0
            .until(|frame| matches!(frame, Performative::Disposition(done) if done.last.unwrap_or(done.first) == last))
            .await;
    }
}

fn numbered(number: u64) -> Bytes {
    let mut buffer = BytesMut::new();
    amqp::message::MessageWriter::new(&mut buffer).data(&number.to_be_bytes());
    buffer.freeze()
}

fn number_in(payload: &Bytes) -> u64 {
    let message = Message::parse(payload.clone()).expect("a message");
    let body = message.data().next().expect("a body");
    u64::from_be_bytes(body[..].try_into().expect("eight bytes"))
}

async fn run(seed: u64, persistence: StorageLocation) {
    let egress = ReceiveProperties { max_delivery_count: MAX_DELIVERIES, ..ReceiveProperties::default() };
    let queue = EntityDefinition::Queue(QueueDescription { egress, ..QueueDescription::default() });
    let mut config = broker::Config::new("127.0.0.1:0".parse().expect("an address"), persistence);
    config.entities = vec![("q".into(), queue)];
    let broker = Broker::start(config).await.expect("a broker");
    let (mut dice, mut ledger) = (Dice(seed), MessageLedger::default());
    let mut sender = ModelSender(RawPeer::sending(broker.address(), "q").await);
    let mut receivers = Vec::new();
    for deletes in [true, false] {
        receivers.push(ModelReceiver::attach(RawPeer::begun(broker.address()).await, deletes).await);
    }
    for _ in 0..STEPS {
        let chosen = dice.roll(2) as usize;
        let receiver = &mut receivers[chosen];
        match dice.roll(7) {
            0 => {
                let count = dice.roll(5) + 1;
                sender.send(&mut ledger, count).await;
            }
            1 | 2 => {
                receiver.wait(&mut ledger, "a drain", |model| !model.draining).await;
                receiver.flow(dice.roll(8), false, false).await;
            }
            3 => {
                let credit = if dice.roll(2) == 0 { receiver.credit() } else { dice.roll(8) };
                receiver.drain(&mut ledger, credit).await;
            }
            4 => receiver.settle(&mut dice).await,
            5 => receiver.poll(&mut ledger, Duration::from_millis(dice.roll(3).into())).await,
            _ => {
                let peer = receivers.remove(chosen).detach(&mut ledger).await;
                receivers.insert(chosen, ModelReceiver::attach(peer, dice.roll(2) == 0).await);
            }
        }
    }
    for receiver in &mut receivers {
        // The other receiver must have no credit: it would take the messages.
        receiver.drain(&mut ledger, 0).await;
        receiver.wait(&mut ledger, "a drain", |model| !model.draining).await;
    }
    for receiver in &mut receivers {
        receiver.assert_credit_is_equal(&mut ledger, &mut sender).await;
    }
    for receiver in receivers {
        drop(receiver.detach(&mut ledger).await);
    }
    // Locks outlive their links.
    broker.advance_clock(Duration::from_secs(61));
    let mut last = ModelReceiver::attach(RawPeer::begun(broker.address()).await, true).await;
    last.drain(&mut ledger, 10_000).await;
    last.wait(&mut ledger, "the rest", |model| !model.draining).await;
    let lost: Vec<u64> = (0..ledger.sent).filter(|message| !ledger.consumed.contains(message)).collect();
    assert!(lost.is_empty(), "lost: {lost:?} of {}", ledger.sent);
    // A peer that does not answer the close would delay the stop.
    drop((sender, last));
    broker.stop().await;
}

#[tokio::test]
async fn random_clients_lose_nothing_and_agree_on_credit() {
    for seed in 0..40 {
        println!("seed {seed}");
        let folder = tempfile::tempdir().expect("a folder");
        // A store with real syncs leaves more in flight.
        let stored = seed % 2 == 0;
        let persistence =
            if stored { StorageLocation::Folder(folder.path().into()) } else { StorageLocation::Ephemeral };
        run(seed, persistence).await;
    }
}
