use std::collections::BTreeMap;
use std::time::Duration;

use amqp::message::{MessageWriter, Properties};
use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::checkpoint::CheckpointPhase;
use crate::publish::acknowledged_prefix::{AcknowledgedPrefix, tests::position};

const LIMITS: BatchLimits = BatchLimits { count: 4, bytes: 100_000, linger: Duration::ZERO };
const WINDOW: WindowLimits = WindowLimits { events: 40, bytes: 4_000 };

fn message(session: &str, number: u64) -> Bytes {
    let mut buffer = BytesMut::new();
    let id = number.to_string();
    let properties = Properties { message_id: Some((&*id).into()), group_id: Some(session), ..Properties::default() };
    MessageWriter::new(&mut buffer).properties(&properties).data(id.as_bytes());
    buffer.freeze()
}

/// The numbers of the messages in a transfer.
fn numbers(transfer: &TransferToSend) -> Vec<u64> {
    let envelope = amqp::Message::parse(transfer.message.bytes().clone()).unwrap();
    let number = |message: amqp::Message| {
        message.properties().unwrap().message_id.unwrap().as_str().unwrap().parse::<u64>().unwrap()
    };
    if transfer.message.is_batch() {
        envelope.data().map(|inner| number(amqp::Message::parse(inner).unwrap())).collect()
    } else {
        vec![number(envelope)]
    }
}

/// Lanes, and a naive account of what they should do.
struct LanesModel {
    lanes: Lanes,
    prefix: AcknowledgedPrefix,
    now: Instant,
    pushed: u64,
    ordinals: BTreeMap<u64, CaptureOrdinal>,
    /// By session: what is not acknowledged, oldest first.
    open: BTreeMap<String, Vec<u64>>,
    /// Placeholders, with their lane.
    unfulfilled: Vec<(LaneId, String, u64)>,
    in_flight: Vec<(u64, String, Vec<u64>)>,
    /// The bytes a message first went out in, by the first number in it.
    tried: BTreeMap<u64, (Vec<u64>, Bytes)>,
    weights: BTreeMap<u64, usize>,
}

impl LanesModel {
    fn new(defect: bool) -> Self {
        Self {
            lanes: Lanes::with_failpoint(WINDOW, LIMITS, defect),
            prefix: AcknowledgedPrefix::with_failpoint(false),
            now: Instant::now(),
            pushed: 0,
            ordinals: BTreeMap::new(),
            open: BTreeMap::new(),
            unfulfilled: Vec::new(),
            in_flight: Vec::new(),
            tried: BTreeMap::new(),
            weights: BTreeMap::new(),
        }
    }

    fn push(&mut self, session: u8, weight: usize, placeholder: bool) {
        let session = format!("s{session}");
        if !self.lanes.has_room(&session, weight) {
            return;
        }
        let number = self.pushed;
        self.pushed += 1;
        let ordinal = self.prefix.push_event(position(number));
        let entry = WindowEntry { ordinal, weight };
        let ready = (!placeholder).then(|| message(&session, number));
        let lane = self.lanes.push(&session, entry, ready, self.now);
        if placeholder {
            self.unfulfilled.push((lane, session.clone(), number));
        }
        self.ordinals.insert(number, ordinal);
        self.weights.insert(number, weight);
        self.open.entry(session).or_default().push(number);
    }

    fn take(&mut self) -> bool {
        let Some(transfer) = self.lanes.next_transfer(self.now) else { return false };
        let taken = numbers(&transfer);
        let (session, open) = self.open.iter().find(|(_, open)| open.contains(&taken[0])).expect("not taken twice");
        assert!(self.in_flight.iter().all(|(_, other, _)| other != session), "two in flight in {session}");
        assert_eq!(taken[..], open[..taken.len()], "the oldest of {session} first");
        assert!(taken.len() <= LIMITS.count);
        let bytes = transfer.message.bytes().clone();
        if let Some((before, sent)) = self.tried.get(&taken[0]) {
            assert!(before.len() > taken.len() || *sent == bytes, "sent again, and other bytes");
        }
        self.tried.insert(taken[0], (taken.clone(), bytes));
        self.in_flight.push((transfer.token, session.clone(), taken));
        true
    }

    fn acknowledge(&mut self, which: usize) {
        let (token, session, taken) = self.in_flight.swap_remove(which);
        let mut seen = Vec::new();
        self.lanes.acknowledge(token, |ordinal| seen.push(ordinal));
        assert_eq!(seen, taken.iter().map(|number| self.ordinals[number]).collect::<Vec<_>>());
        seen.into_iter().for_each(|ordinal| self.prefix.acknowledge(ordinal));
        self.open.get_mut(&session).unwrap().drain(..taken.len());
    }

    fn refuse(&mut self, which: usize) {
        let (token, session, taken) = self.in_flight.swap_remove(which);
        let alone = self.lanes.refuse(token);
        assert_eq!(alone.is_some(), taken.len() == 1);
        if let Some(RefusedSend { lane, ordinal, message }) = alone {
            assert_eq!(ordinal, self.ordinals[&taken[0]]);
            assert_eq!(self.tried.remove(&taken[0]).unwrap().1, message);
            self.unfulfilled.push((lane, session, taken[0]));
        }
    }

    fn abandon(&mut self, which: usize) {
        let (lane, session, number) = self.unfulfilled.swap_remove(which);
        self.lanes.abandon(lane, self.ordinals[&number]);
        self.prefix.acknowledge(self.ordinals[&number]);
        self.open.get_mut(&session).unwrap().retain(|open| *open != number);
    }

    fn set_message(&mut self, which: usize) {
        let (lane, session, number) = self.unfulfilled.swap_remove(which);
        self.lanes.set_message(lane, self.ordinals[&number], &message(&session, number));
    }

    fn check(&mut self) {
        let open: Vec<u64> = self.open.values().flatten().copied().collect();
        let bytes: usize = open.iter().map(|number| self.weights[number]).sum();
        assert_eq!((self.lanes.events(), self.lanes.bytes()), (open.len(), bytes));
        assert_eq!(self.lanes.transfers(), self.in_flight.len());
        assert!(open.len() <= WINDOW.events);
        assert!(bytes <= WINDOW.bytes || open.len() == 1);
        for lane in self.open.values() {
            let bytes: usize = lane.iter().map(|number| self.weights[number]).sum();
            assert!(
                lane.len() <= WINDOW.events / LANE_SHARE && (bytes <= WINDOW.bytes / LANE_SHARE || lane.len() == 1)
            );
        }
        let oldest = open.into_iter().min().unwrap_or(self.pushed);
        if let Some((reached, _)) = self.prefix.take() {
            let CheckpointPhase::Stream { token } = &reached.phase else { panic!("a stream") };
            assert_eq!(*token, position_token(oldest - 1), "the prefix ends before {oldest}");
        }
    }
}

fn position_token(number: u64) -> crate::event::ResumeToken {
    match position(number).phase {
        CheckpointPhase::Stream { token } => token,
        CheckpointPhase::Unstarted | CheckpointPhase::Snapshot { .. } => unreachable!("a position of a stream"),
    }
}

#[derive(Clone, Debug)]
enum ModelStep {
    Push { session: u8, weight: usize, placeholder: bool },
    Take,
    Acknowledge(usize),
    Retry(usize, u64),
    Refuse(usize),
    Fulfil(usize),
    Abandon(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        6 => (0..12_u8, 1..600_usize, prop::bool::weighted(0.1))
            .prop_map(|(session, weight, placeholder)| ModelStep::Push { session, weight, placeholder }),
        4 => Just(ModelStep::Take),
        3 => any::<usize>().prop_map(ModelStep::Acknowledge),
        1 => (any::<usize>(), 0..20_u64).prop_map(|(which, wait)| ModelStep::Retry(which, wait)),
        1 => any::<usize>().prop_map(ModelStep::Refuse),
        1 => any::<usize>().prop_map(ModelStep::Fulfil),
        1 => any::<usize>().prop_map(ModelStep::Abandon),
        1 => (0..20_u64).prop_map(ModelStep::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lanes_match_a_simple_model(steps in prop::collection::vec(step(), 1..400)) {
        let mut run = LanesModel::new(false);
        for step in steps {
            let (flying, waiting) = (run.in_flight.len(), run.unfulfilled.len());
            match step {
                ModelStep::Push { session, weight, placeholder } => run.push(session, weight, placeholder),
                ModelStep::Take => drop(run.take()),
                ModelStep::Acknowledge(which) if flying > 0 => run.acknowledge(which % flying),
                ModelStep::Retry(which, wait) if flying > 0 => {
                    let (token, ..) = run.in_flight.swap_remove(which % flying);
                    run.lanes.retry(token, (wait > 0).then(|| run.now + Duration::from_millis(wait)));
                }
                ModelStep::Refuse(which) if flying > 0 => run.refuse(which % flying),
                ModelStep::Fulfil(which) if waiting > 0 => run.set_message(which % waiting),
                ModelStep::Abandon(which) if waiting > 0 => run.abandon(which % waiting),
                ModelStep::Pass(time) => run.now += Duration::from_millis(time),
                ModelStep::Acknowledge(_) | ModelStep::Retry(..) | ModelStep::Refuse(_) | ModelStep::Fulfil(_) | ModelStep::Abandon(_) => {}
            }
            run.check();
        }
        // In the end everything gets through.
        run.now += Duration::from_secs(1);
        while !run.unfulfilled.is_empty() {
            run.set_message(0);
        }
        while run.take() || !run.in_flight.is_empty() {
            if !run.in_flight.is_empty() {
                run.acknowledge(0);
            }
            run.check();
        }
        prop_assert!(run.lanes.is_empty() && run.prefix.is_complete());
        prop_assert_eq!(run.lanes.next_wake().filter(|at| *at > run.now), None);
    }
}

#[test]
fn lanes_take_turns() {
    let mut run = LanesModel::new(false);
    for session in [0, 0, 1, 2] {
        run.push(session, 1, false);
    }
    while run.take() {}
    let sessions: Vec<_> = run.in_flight.iter().map(|(_, session, _)| session.as_str()).collect();
    assert_eq!(sessions, ["s0", "s1", "s2"], "one each, in the order they came");
}

#[test]
fn the_failpoint_allows_two_transfers_per_lane() {
    for (planted, transfers) in [(false, 1), (true, 2)] {
        let mut lanes = Lanes::with_failpoint(WINDOW, BatchLimits { count: 1, ..LIMITS }, planted);
        let mut prefix = AcknowledgedPrefix::with_failpoint(false);
        for number in 0..3 {
            let entry = WindowEntry { ordinal: prefix.push_event(position(number)), weight: 1 };
            lanes.push("s", entry, Some(message("s", number)), Instant::now());
        }
        while lanes.next_transfer(Instant::now()).is_some() {}
        assert_eq!(lanes.transfers(), transfers);
    }
}

#[test]
fn a_lane_lingers_until_it_is_full_or_due() {
    let linger = Duration::from_millis(50);
    let mut lanes = Lanes::with_failpoint(WINDOW, BatchLimits { linger, ..LIMITS }, false);
    let mut prefix = AcknowledgedPrefix::with_failpoint(false);
    let now = Instant::now();
    let mut push = |lanes: &mut Lanes, session: &str, number| {
        let entry = WindowEntry { ordinal: prefix.push_event(position(number)), weight: 1 };
        lanes.push(session, entry, Some(message(session, number)), now);
    };
    push(&mut lanes, "a", 0);
    assert!(lanes.next_transfer(now).is_none());
    assert_eq!(lanes.next_wake(), Some(now + linger));
    (1..5).for_each(|number| push(&mut lanes, "b", number));
    assert_eq!(numbers(&lanes.next_transfer(now).unwrap()), [1, 2, 3, 4], "full before its time");
    assert!(lanes.next_transfer(now).is_none());
    assert_eq!(numbers(&lanes.next_transfer(now + linger).unwrap()), [0]);
}

/// Sends everything; the link is detached whenever a transfer holds `bad`. Returns the events that were rejected, and the number of detaches.
fn search(sessions: u64, events: u64, bad: &[u64]) -> (Vec<u64>, usize) {
    let window = WindowLimits { events: 10_000, bytes: usize::MAX / 8 };
    let mut lanes = Lanes::with_failpoint(window, BatchLimits { count: 4, ..LIMITS }, false);
    let mut prefix = AcknowledgedPrefix::with_failpoint(false);
    let now = Instant::now();
    let mut numbers_of = BTreeMap::new();
    for number in 0..events {
        let ordinal = prefix.push_event(position(number));
        numbers_of.insert(ordinal, number);
        let session = format!("s{}", number % sessions);
        lanes.push(&session, WindowEntry { ordinal, weight: 1 }, Some(message(&session, number)), now);
    }
    let (mut rejected, mut detaches) = (vec![], 0);
    while !lanes.is_empty() {
        let transfers: Vec<_> = std::iter::from_fn(|| lanes.next_transfer(now)).collect();
        assert!(!transfers.is_empty(), "{} events wait for nothing", lanes.events());
        let is_bad = |transfer: &TransferToSend| {
            let numbers = numbers(transfer);
            numbers.iter().any(|number| bad.contains(number) && !rejected.contains(number))
        };
        if !transfers.iter().any(is_bad) {
            transfers.iter().for_each(|transfer| lanes.acknowledge(transfer.token, |_| ()));
            continue;
        }
        detaches += 1;
        if !lanes.is_isolated() {
            lanes.isolate();
            transfers.iter().for_each(|transfer| lanes.retry(transfer.token, None));
            continue;
        }
        let [alone] = &transfers[..] else { panic!("{} transfers are not alone", transfers.len()) };
        if let Some(RefusedSend { lane, ordinal, message }) = lanes.refuse(alone.token) {
            rejected.push(numbers_of[&ordinal]);
            assert!(lanes.next_transfer(now).is_none(), "nothing is sent before the marker");
            lanes.set_message(lane, ordinal, &message);
        }
    }
    (rejected, detaches)
}

#[test]
fn a_message_that_detaches_the_link_is_found_alone() {
    // A quiet lane, many lanes, and a batch: with the first detach and a few for every halving.
    assert_eq!(search(1, 1, &[0]), (vec![0], 2));
    let (rejected, detaches) = search(2_000, 2_000, &[777]);
    assert_eq!(rejected, [777]);
    assert!(detaches <= 13, "{detaches}");
    let (mut rejected, _) = search(100, 2_000, &[5, 105, 1_042]);
    rejected.sort_unstable();
    assert_eq!(rejected, [5, 105, 1_042]);
}
