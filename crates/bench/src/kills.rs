//! A broker killed -9 again and again under load, and a book of what it had said before each kill.
//!
//! One sender keeps one message of each session under way, and sends it again after a kill if it never heard what became of it: duplicate
//! detection must make that harmless. Two receivers accept whatever session is next and complete what they get. The book then holds the broker to:
//! nothing accepted is lost, nothing whose completion was acknowledged comes back, and every session reads 1, 2, 3 ….
//! Bodies of up to 16 KiB fill enough segments that kills also hit while snapshots are written and consumed segments removed.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use amqp::{ConnectionEvent, DeliveryState, Message, OutgoingDelivery};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use crate::broker_process::BrokerProcess;
use crate::peer::{Peer, message};

const QUEUE: &str = "kills";
const PROPERTIES: &str = "<RequiresSession>true</RequiresSession>\
     <RequiresDuplicateDetection>true</RequiresDuplicateDetection>\
     <DuplicateDetectionHistoryTimeWindow>PT1H</DuplicateDetectionHistoryTimeWindow>\
     <MaxDeliveryCount>2000</MaxDeliveryCount><LockDuration>PT5M</LockDuration><MaxSizeInMegabytes>81920</MaxSizeInMegabytes>";
const SESSIONS: usize = 40;
const RECEIVERS: usize = 2;
const LONGEST_ROUND_MS: u64 = 150;
const LARGEST_BODY: usize = 16 << 10;
const DRAIN_PATIENCE: Duration = Duration::from_secs(60);

/// What was seen.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    pub rounds: u32,
    pub accepted: u64,
    pub completed: u64,
    /// Kills that hit while a send, or a completion, had no answer yet.
    pub sends_in_doubt: u64,
    pub completions_in_doubt: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Session {
    /// Accepted by the broker: 1 to this.
    accepted: u64,
    /// The next one is under way, or was when the broker died.
    in_flight: bool,
    /// Its completion was acknowledged: 1 to this.
    completed: u64,
    /// Its completion was asked for: at most this.
    asked: u64,
}

#[derive(Debug, Default)]
struct Book {
    sessions: Mutex<Vec<Session>>,
    faults: Mutex<Vec<String>>,
}

impl Book {
    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
        self.sessions.lock().expect("nobody panics while writing the book")
    }

    fn fault(&self, what: String) {
        self.faults().push(what);
    }

    fn faults(&self) -> MutexGuard<'_, Vec<String>> {
        self.faults.lock().expect("nobody panics while writing the book")
    }

    /// Adds what is in doubt now, and tells what is certain.
    fn sum_up(&self, report: &mut Report) {
        (report.accepted, report.completed) = (0, 0);
        for session in self.sessions().iter() {
            report.sends_in_doubt += u64::from(session.in_flight);
            report.completions_in_doubt += u64::from(session.asked > session.completed);
            report.accepted += session.accepted;
            report.completed += session.completed;
        }
    }
}

/// Runs the rounds, then drains the queue and closes the book; `seen` is told after every kill. The error says what the broker did wrong.
pub async fn run(binary: &Path, rounds: u32, seed: u64, mut seen: impl FnMut(&Report)) -> Result<Report, String> {
    let mut dice = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let book = Arc::new(Book { sessions: Mutex::new(vec![Session::default(); SESSIONS]), ..Book::default() });
    let mut report = Report::default();
    while report.rounds < rounds && book.faults().is_empty() {
        let broker = BrokerProcess::start_with(binary, folder.path(), None).await;
        if report.rounds == 0 {
            broker.create_queue(QUEUE, PROPERTIES).await;
        }
        let work = load(broker.address(), &book);
        let round = Duration::from_millis(dice.random_range(1..=LONGEST_ROUND_MS));
        // Ended by the kill in any case; the peers see a dead connection and stop.
        let _ = timeout(round, work).await;
        broker.kill().await;
        report.rounds += 1;
        book.sum_up(&mut report);
        seen(&report);
    }
    let broker = BrokerProcess::start_with(binary, folder.path(), None).await;
    let drained = drain(broker.address(), &book).await;
    broker.kill().await;
    let faults: Vec<_> = book.faults().drain(..).chain(drained.err()).collect();
    if !faults.is_empty() {
        return Err(format!("after {} rounds: {}", report.rounds, faults.join("\n")));
    }
    let mut settled = Report::default();
    book.sum_up(&mut settled);
    Ok(Report { accepted: settled.accepted, completed: settled.completed, ..report })
}

async fn load(address: SocketAddr, book: &Arc<Book>) {
    let receivers: Vec<_> = (0..RECEIVERS).map(|_| tokio::spawn(receive(address, Arc::clone(book)))).collect();
    let _ = send(address, book, true).await;
    for receiver in receivers {
        let _ = receiver.await;
    }
}

/// Sends what is in doubt again, receives until everything accepted is completed.
async fn drain(address: SocketAddr, book: &Arc<Book>) -> Result<(), String> {
    send(address, book, false).await.map_err(|error| format!("send what is in doubt: {error}"))?;
    let receivers: Vec<_> = (0..RECEIVERS).map(|_| tokio::spawn(receive(address, Arc::clone(book)))).collect();
    let done = timeout(DRAIN_PATIENCE, async {
        while book.sessions().iter().any(|session| session.completed < session.accepted) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let drained = done.await;
    receivers.iter().for_each(tokio::task::JoinHandle::abort);
    drained.map_err(|_| {
        let sessions = book.sessions();
        let lost: Vec<_> =
            sessions.iter().enumerate().filter(|(_, session)| session.completed < session.accepted).take(5).collect();
        format!("accepted and never delivered: {lost:?}")
    })
}

/// Keeps one message of each session under way; `more: false` sends only those in doubt.
async fn send(address: SocketAddr, book: &Book, more: bool) -> io::Result<()> {
    let mut peer = Peer::connect(address).await?;
    let link = peer.sender(QUEUE);
    let mut under_way: HashMap<u64, usize> = HashMap::new();
    let mut idle: Vec<usize> = (0..SESSIONS).collect();
    if !more {
        let sessions = book.sessions();
        idle.retain(|session| sessions[*session].in_flight);
    }
    while more || !idle.is_empty() || !under_way.is_empty() {
        while peer.amqp.credit(link) > 0
            && let Some(session) = idle.pop()
        {
            let number = {
                let mut sessions = book.sessions();
                sessions[session].in_flight = true;
                sessions[session].accepted + 1
            };
            let bytes = message(&format!("{session}-{number}"), Some(&session.to_string()), &body(session, number));
            let outgoing = OutgoingDelivery {
                tag: &session.to_be_bytes(),
                token: session as u64 + 1,
                ..OutgoingDelivery::default()
            };
            peer.amqp.transfer(link, outgoing, &[&bytes]).map_err(io::Error::other)?;
            under_way.insert(session as u64 + 1, session);
        }
        for event in peer.exchange().await? {
            let ConnectionEvent::Disposition(disposition) = event else { continue };
            if disposition.state != Some(DeliveryState::Accepted) {
                book.fault(format!("a send was refused: {:?}", disposition.state));
            }
            for delivery in disposition.deliveries {
                let Some(session) = under_way.remove(&delivery.token) else { continue };
                let entry = &mut book.sessions()[session];
                entry.accepted += 1;
                entry.in_flight = false;
                if more {
                    idle.push(session);
                }
            }
        }
    }
    Ok(())
}

/// Accepts one session after the other and completes what it gets, until the broker is gone.
async fn receive(address: SocketAddr, book: Arc<Book>) -> io::Result<()> {
    let mut peer = Peer::connect(address).await?;
    for turn in 0_u64.. {
        let link = peer.receiver(format!("receiver-{turn}"), QUEUE, Some(None));
        peer.amqp.set_credit(link, 10).map_err(io::Error::other)?;
        let mut numbers: HashMap<u32, (usize, u64)> = HashMap::new();
        let (mut last, mut unsettled, mut detached) = (None, 0, false);
        while !detached {
            for event in peer.exchange().await? {
                match event {
                    ConnectionEvent::Delivery(delivery) => {
                        let (session, number) = read(delivery.payload)?;
                        check(&book, session, number, last);
                        last = Some(number);
                        let entry = &mut book.sessions()[session];
                        entry.asked = entry.asked.max(number);
                        numbers.insert(delivery.id, (session, number));
                        unsettled += 1;
                        let state = Some(DeliveryState::Accepted);
                        peer.amqp.dispose(link, delivery.id, delivery.id, false, state).map_err(io::Error::other)?;
                    }
                    ConnectionEvent::Disposition(disposition) => {
                        for settled in disposition.deliveries {
                            let Some((session, number)) = numbers.remove(&settled.id) else { continue };
                            unsettled -= 1;
                            let entry = &mut book.sessions()[session];
                            entry.completed = entry.completed.max(number);
                        }
                        if unsettled == 0 {
                            let _ = peer.amqp.detach(link, None);
                        }
                    }
                    ConnectionEvent::Detached { .. } => detached = true,
                    ConnectionEvent::Closed { .. } => return Ok(()),
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

/// The first of a hold must be the one after what was completed, for certain or perhaps; every other the one after the last.
fn check(book: &Book, session: usize, number: u64, last: Option<u64>) {
    let entry = book.sessions()[session];
    let expected = match last {
        Some(last) => last + 1..=last + 1,
        None => entry.completed + 1..=entry.asked.max(entry.completed) + 1,
    };
    if !expected.contains(&number) {
        book.fault(format!("session {session} delivered {number}, expected one of {expected:?} ({entry:?})"));
    }
}

/// Of a length that differs from message to message, and is the same when one is sent again.
fn body(session: usize, number: u64) -> Vec<u8> {
    vec![b'x'; (session * 7_919 + number as usize * 104_729) % LARGEST_BODY]
}

fn read(payload: bytes::Bytes) -> io::Result<(usize, u64)> {
    let message = Message::parse(payload).map_err(io::Error::other)?;
    let properties = message.properties().map_err(io::Error::other)?;
    let id = properties.message_id.as_ref().and_then(|id| id.as_str());
    let parts = id.and_then(|id| id.split_once('-'));
    let parsed = parts.and_then(|(session, number)| Some((session.parse().ok()?, number.parse().ok()?)));
    parsed.ok_or_else(|| io::Error::other("a message that was never sent"))
}
