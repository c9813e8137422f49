//! Kills the broker with SIGKILL again and again under load, and checks its promises against a ledger of its acknowledgements.
//!
//! One sender keeps one message of each session in flight, and retries it after a kill if it got no acknowledgement; duplicate detection
//! must make that harmless. Two receivers accept the next session and complete what they receive. The check: nothing accepted is lost,
//! nothing with an acknowledged completion is redelivered, and every session delivers 1, 2, 3 ….
//! Bodies of up to 16 KiB fill enough segments that kills also happen while snapshots are written and consumed segments removed.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use amqp::{ConnectionEvent, DeliveryState, Message, OutgoingDelivery};
use local_cluster::BrokerEndpoint;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use crate::amqp_client::{RawAmqpClient, message};
use crate::processes::start_broker_with;

const QUEUE: &str = "kills";
const PROPERTIES: &str = "<RequiresSession>true</RequiresSession>\
     <RequiresDuplicateDetection>true</RequiresDuplicateDetection>\
     <DuplicateDetectionHistoryTimeWindow>PT1H</DuplicateDetectionHistoryTimeWindow>\
     <MaxDeliveryCount>2000</MaxDeliveryCount><LockDuration>PT5M</LockDuration><MaxSizeInMegabytes>81920</MaxSizeInMegabytes>";
const SESSIONS: usize = 40;
const RECEIVERS: usize = 2;
const LONGEST_ROUND_MS: u64 = 150;
const LARGEST_BODY: usize = 16 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Counts of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct KillReport {
    pub rounds: u32,
    pub accepted: u64,
    pub completed: u64,
    /// Kills while a send, or a completion, had no acknowledgement yet.
    pub sends_in_doubt: u64,
    pub completions_in_doubt: u64,
}

impl KillReport {
    /// What the run was to cover and did not: a run without kills, or with nothing in flight, proves nothing.
    fn missing(&self, rounds: u32) -> Option<&'static str> {
        let wanted = [
            (rounds == 0 || self.rounds < rounds, "all rounds"),
            (self.accepted == 0, "an accepted message"),
            (self.completed == 0, "a completed message"),
            (self.sends_in_doubt == 0, "a kill while a send was in flight"),
        ];
        wanted.into_iter().find(|(is_missing, _)| *is_missing).map(|(_, what)| what)
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct SessionRecord {
    /// Accepted by the broker: 1 to this.
    accepted: u64,
    /// The next one is in flight, or was when the broker was killed.
    in_flight: bool,
    /// Its completion was acknowledged: 1 to this.
    completed: u64,
    /// Its completion was requested: at most this.
    requested: u64,
}

#[derive(Debug, Default)]
struct SessionLedger {
    sessions: Mutex<Vec<SessionRecord>>,
    violations: Mutex<Vec<String>>,
}

impl SessionLedger {
    fn sessions(&self) -> MutexGuard<'_, Vec<SessionRecord>> {
        self.sessions.lock().expect("no one panics while holding the ledger")
    }

    fn violation(&self, what: String) {
        self.violations().push(what);
    }

    /// A kill closes connections. Any other error is a violation.
    fn record_error(&self, doing: &str, error: &io::Error) {
        if error.kind() == io::ErrorKind::Other {
            self.violation(format!("failed to {doing}: {error}"));
        }
    }

    fn violations(&self) -> MutexGuard<'_, Vec<String>> {
        self.violations.lock().expect("no one panics while holding the ledger")
    }

    /// Adds what is in doubt now and sets the certain counts.
    fn update_report(&self, report: &mut KillReport) {
        (report.accepted, report.completed) = (0, 0);
        for session in self.sessions().iter() {
            report.sends_in_doubt += u64::from(session.in_flight);
            report.completions_in_doubt += u64::from(session.requested > session.completed);
            report.accepted += session.accepted;
            report.completed += session.completed;
        }
    }
}

/// Runs the rounds, then drains the queue and checks the ledger. Calls `seen` after every kill. The error lists the violations.
pub async fn run(
    binary: &Path,
    rounds: u32,
    seed: u64,
    mut seen: impl FnMut(&KillReport),
) -> Result<KillReport, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let ledger = Arc::new(SessionLedger {
        sessions: Mutex::new(vec![SessionRecord::default(); SESSIONS]),
        ..SessionLedger::default()
    });
    let mut report = KillReport::default();
    while report.rounds < rounds && ledger.violations().is_empty() {
        let mut broker = start_broker_with(binary, folder.path(), None).await;
        if report.rounds == 0 {
            broker.create_queue(QUEUE, PROPERTIES).await.map_err(|error| error.to_string())?;
        }
        let work = load(broker.endpoint(), &ledger);
        let round = Duration::from_millis(rng.random_range(1..=LONGEST_ROUND_MS));
        // The kill ends it in any case: the clients stop on a closed connection.
        let _ = timeout(round, work).await;
        broker.kill().await;
        report.rounds += 1;
        ledger.update_report(&mut report);
        seen(&report);
    }
    let mut broker = start_broker_with(binary, folder.path(), None).await;
    let drained = drain(broker.endpoint(), &ledger).await;
    broker.kill().await;
    let violations: Vec<_> = ledger.violations().drain(..).chain(drained.err()).collect();
    if !violations.is_empty() {
        return Err(format!("after {} rounds: {}", report.rounds, violations.join("\n")));
    }
    let mut settled = KillReport::default();
    ledger.update_report(&mut settled);
    let report = KillReport { accepted: settled.accepted, completed: settled.completed, ..report };
    match report.missing(rounds) {
        Some(missing) => Err(format!("the run did not cover: {missing} ({report:?})")),
        None => Ok(report),
    }
}

async fn load(broker: &BrokerEndpoint, ledger: &Arc<SessionLedger>) {
    let receivers = start_receivers(broker, ledger);
    if let Err(error) = send(broker, ledger, true).await {
        ledger.record_error("send", &error);
    }
    for receiver in receivers {
        let _ = receiver.await;
    }
}

fn start_receivers(broker: &BrokerEndpoint, ledger: &Arc<SessionLedger>) -> Vec<tokio::task::JoinHandle<()>> {
    let start = |_| {
        let (broker, ledger) = (broker.clone(), Arc::clone(ledger));
        tokio::spawn(async move {
            if let Err(error) = receive(broker, &ledger).await {
                ledger.record_error("receive", &error);
            }
        })
    };
    (0..RECEIVERS).map(start).collect()
}

/// Retries the sends in doubt and receives until everything accepted is completed.
async fn drain(broker: &BrokerEndpoint, ledger: &Arc<SessionLedger>) -> Result<(), String> {
    send(broker, ledger, false).await.map_err(|error| format!("send what is in doubt: {error}"))?;
    let receivers = start_receivers(broker, ledger);
    let done = timeout(DRAIN_TIMEOUT, async {
        while ledger.sessions().iter().any(|session| session.completed < session.accepted) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let drained = done.await;
    receivers.iter().for_each(tokio::task::JoinHandle::abort);
    drained.map_err(|_| {
        let sessions = ledger.sessions();
        let lost: Vec<_> =
            sessions.iter().enumerate().filter(|(_, session)| session.completed < session.accepted).take(5).collect();
        format!("accepted and never delivered: {lost:?}")
    })
}

/// Keeps one message of each session in flight; `more: false` retries only those in doubt.
async fn send(broker: &BrokerEndpoint, ledger: &SessionLedger, more: bool) -> io::Result<()> {
    let mut client = RawAmqpClient::connect(broker).await?;
    let link = client.sender(QUEUE);
    let mut in_flight: HashMap<u64, usize> = HashMap::new();
    let mut idle: Vec<usize> = (0..SESSIONS).collect();
    if !more {
        let sessions = ledger.sessions();
        idle.retain(|session| sessions[*session].in_flight);
    }
    while more || !idle.is_empty() || !in_flight.is_empty() {
        while client.amqp.credit(link) > 0
            && let Some(session) = idle.pop()
        {
            let number = {
                let mut sessions = ledger.sessions();
                sessions[session].in_flight = true;
                sessions[session].accepted + 1
            };
            let bytes = message(&format!("{session}-{number}"), Some(&session.to_string()), &body(session, number));
            let outgoing = OutgoingDelivery {
                tag: &session.to_be_bytes(),
                token: session as u64 + 1,
                ..OutgoingDelivery::default()
            };
            client.amqp.transfer(link, outgoing, &[&bytes]).map_err(io::Error::other)?;
            in_flight.insert(session as u64 + 1, session);
        }
        for event in client.exchange().await? {
            let ConnectionEvent::Disposition(disposition) = event else { continue };
            if disposition.state != Some(DeliveryState::Accepted) {
                ledger.violation(format!("a send was refused: {:?}", disposition.state));
            }
            for delivery in disposition.deliveries {
                let Some(session) = in_flight.remove(&delivery.token) else { continue };
                let entry = &mut ledger.sessions()[session];
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

/// Accepts one session after the other and completes what it receives, until the broker is gone.
async fn receive(broker: BrokerEndpoint, ledger: &SessionLedger) -> io::Result<()> {
    let mut client = RawAmqpClient::connect(&broker).await?;
    for turn in 0_u64.. {
        let link = client.receiver(format!("receiver-{turn}"), QUEUE, Some(None));
        client.amqp.set_credit(link, 10).map_err(io::Error::other)?;
        let mut numbers: HashMap<u32, (usize, u64)> = HashMap::new();
        let (mut last, mut unsettled, mut is_detaching, mut detached) = (None, 0, false, false);
        while !detached {
            for event in client.exchange().await? {
                match event {
                    // Comes back with the next lock.
                    ConnectionEvent::Delivery(_) if is_detaching => {}
                    ConnectionEvent::Delivery(delivery) => {
                        let (session, number) = read(delivery.payload)?;
                        check(ledger, session, number, last);
                        last = Some(number);
                        let entry = &mut ledger.sessions()[session];
                        entry.requested = entry.requested.max(number);
                        numbers.insert(delivery.id, (session, number));
                        unsettled += 1;
                        let state = Some(DeliveryState::Accepted);
                        client.amqp.dispose(link, delivery.id, delivery.id, false, state).map_err(io::Error::other)?;
                    }
                    ConnectionEvent::Disposition(disposition) => {
                        for settled in disposition.deliveries {
                            let Some((session, number)) = numbers.remove(&settled.id) else { continue };
                            unsettled -= 1;
                            let entry = &mut ledger.sessions()[session];
                            entry.completed = entry.completed.max(number);
                        }
                        if unsettled == 0 && !is_detaching {
                            is_detaching = true;
                            let _ = client.amqp.detach(link, None);
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

/// The first delivery of a session lock must follow the completed ones, including those in doubt; every other must follow the last.
fn check(ledger: &SessionLedger, session: usize, number: u64, last: Option<u64>) {
    let entry = ledger.sessions()[session];
    let expected = match last {
        Some(last) => last + 1..=last + 1,
        None => entry.completed + 1..=entry.requested.max(entry.completed) + 1,
    };
    if !expected.contains(&number) {
        ledger.violation(format!("session {session} delivered {number}, expected one of {expected:?} ({entry:?})"));
    }
}

/// Length and content differ between messages and are the same for a retry.
fn body(session: usize, number: u64) -> Vec<u8> {
    let seed = session * 7_919 + number as usize * 104_729;
    (0..seed % LARGEST_BODY).map(|index| (seed.wrapping_add(index * 31) >> 3) as u8).collect()
}

fn read(payload: bytes::Bytes) -> io::Result<(usize, u64)> {
    let message = Message::parse(payload).map_err(io::Error::other)?;
    let properties = message.properties().map_err(io::Error::other)?;
    let id = properties.message_id.as_ref().and_then(|id| id.as_str());
    let parts = id.and_then(|id| id.split_once('-'));
    let parsed = parts.and_then(|(session, number)| Some((session.parse().ok()?, number.parse().ok()?)));
    let (session, number) = parsed.ok_or_else(|| io::Error::other("received a message that was never sent"))?;
    if message.data().next().unwrap_or_default() != body(session, number) {
        return Err(io::Error::other(format!("message {session}-{number} came with another body")));
    }
    Ok((session, number))
}
