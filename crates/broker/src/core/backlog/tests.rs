use proptest::prelude::*;

use super::*;
use crate::core::id::Timestamp;

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn message(n: u64) -> QueuedMessage {
    QueuedMessage::new(JournalLocation { segment: 0, offset: n as u32, len: 10 }, 0, ExpiryTime::NEVER)
}

fn filled(counters: impl IntoIterator<Item = u64>) -> SessionBacklog {
    let mut backlog = SessionBacklog::default();
    for counter in counters {
        backlog.append(counter, message(counter), 0, &mut ExpiryIndex::new());
    }
    backlog
}

fn take(backlog: &mut SessionBacklog) -> Option<u64> {
    let counter = backlog.first_available()?;
    backlog.lock(counter);
    Some(counter)
}

#[test]
fn a_message_costs_twenty_four_bytes() {
    assert_eq!(size_of::<QueuedMessage>(), 24);
    assert!(size_of::<SessionBacklog>() <= 64, "{}", size_of::<SessionBacklog>());
}

#[test]
fn memory_per_message_is_constant_for_any_number_of_sessions() {
    for (sessions, each) in [(1, 1_000), (1, 1_000_000), (1_000, 50), (10_000, 5)] {
        let bytes: usize = (0..sessions).map(|_| filled(1..=each).heap_bytes()).sum();
        let per_message = bytes as f64 / (sessions * each) as f64;
        let chunk_headers = if each < 10 { 48.0 / each as f64 } else { 3.0 };
        assert!(per_message <= 24.0 * 1.25 + chunk_headers, "{sessions} x {each}: {per_message}");
    }
}

#[test]
fn emptied_backlogs_free_their_memory() {
    let mut backlog = filled(1..=100_000);
    for counter in (1..=100_000).rev().filter(|counter| counter % 1000 != 0) {
        backlog.remove(counter, 0, &mut ExpiryIndex::new());
    }
    assert_eq!(backlog.len(), 100);
    assert!(backlog.heap_bytes() < 100 * 600, "{}", backlog.heap_bytes());
}

#[test]
fn returned_messages_are_delivered_before_new_ones() {
    let mut backlog = filled(1..=5);
    assert_eq!((take(&mut backlog), take(&mut backlog), take(&mut backlog)), (Some(1), Some(2), Some(3)));
    backlog.unlock(2, 0, &mut ExpiryIndex::new());
    assert_eq!((take(&mut backlog), take(&mut backlog)), (Some(2), Some(4)));
}

#[test]
fn a_deferred_message_is_skipped() {
    let mut backlog = filled(1..=3);
    take(&mut backlog);
    backlog.update(1, QueuedMessage::set_deferred);
    backlog.unlock(1, 0, &mut ExpiryIndex::new());
    assert_eq!(take(&mut backlog), Some(2));
    assert!(backlog.get(1).unwrap().is_deferred());
    assert!(backlog.lock(1).is_some());
}

#[test]
fn an_expired_chunk_is_indexed_under_its_next_expiry() {
    let mut expiry_index = ExpiryIndex::new();
    let mut backlog = SessionBacklog::default();
    for (counter, ttl) in [(1, 5_000), (2, 1_000), (3, 1_000)] {
        let message = QueuedMessage { expires: ExpiryTime::after(NOW, Some(ttl)), ..message(counter) };
        backlog.append(counter, message, 7, &mut expiry_index);
    }
    backlog.lock(3);
    let due = ExpiryTime::passed_by(Timestamp(NOW.0 + 1_000));
    assert_eq!(expiry_index.first().unwrap().0, due);
    assert_eq!(backlog.take_expired(1, 7, due, &mut expiry_index), [2]);
    // A locked message expires only after its lock ends.
    assert_eq!(expiry_index.first().unwrap().0, ExpiryTime::after(NOW, Some(5_000)));
    backlog.unlock(3, 7, &mut expiry_index);
    assert_eq!(expiry_index.first().unwrap().0, due);
    for counter in 1..=3 {
        backlog.remove(counter, 7, &mut expiry_index);
    }
    assert!(expiry_index.is_empty());
}

/// The same behaviour as a plain list: slow and easy to check.
#[derive(Default)]
struct PlainBacklog(Vec<(u64, bool, bool)>);

impl PlainBacklog {
    fn first_available(&self) -> Option<u64> {
        self.0.iter().find(|(_, locked, deferred)| !locked && !deferred).map(|(counter, ..)| *counter)
    }
}

#[derive(Debug, Clone)]
enum BacklogStep {
    Append(u64),
    Take,
    Unlock(usize),
    Defer(usize),
    Remove(usize),
}

fn step() -> impl Strategy<Value = BacklogStep> {
    prop_oneof![
        4 => prop_oneof![9 => Just(1), 1 => Just(5_000_000_000)].prop_map(BacklogStep::Append),
        3 => Just(BacklogStep::Take),
        2 => any::<usize>().prop_map(BacklogStep::Unlock),
        1 => any::<usize>().prop_map(BacklogStep::Defer),
        2 => any::<usize>().prop_map(BacklogStep::Remove),
    ]
}

proptest! {
    #[test]
    fn a_backlog_behaves_like_a_plain_list(steps in proptest::collection::vec(step(), 1..800)) {
        let (mut backlog, mut plain, mut counter) = (SessionBacklog::default(), PlainBacklog::default(), 0);
        let mut expiry_index = ExpiryIndex::new();
        for step in steps {
            match step {
                BacklogStep::Append(gap) => {
                    counter += gap;
                    backlog.append(counter, message(counter), 0, &mut expiry_index);
                    plain.0.push((counter, false, false));
                }
                BacklogStep::Take => {
                    let expected = plain.first_available();
                    prop_assert_eq!(take(&mut backlog), expected);
                    if let Some(entry) = plain.0.iter_mut().find(|(counter, ..)| Some(*counter) == expected) {
                        entry.1 = true;
                    }
                }
                BacklogStep::Unlock(pick) | BacklogStep::Defer(pick) => {
                    let mut locked: Vec<_> = plain.0.iter_mut().filter(|(_, locked, _)| *locked).collect();
                    if locked.is_empty() { continue }
                    let index = pick % locked.len();
                    let entry = &mut locked[index];
                    if matches!(step, BacklogStep::Defer(_)) {
                        entry.2 = true;
                        backlog.update(entry.0, QueuedMessage::set_deferred);
                    }
                    entry.1 = false;
                    backlog.unlock(entry.0, 0, &mut expiry_index);
                }
                BacklogStep::Remove(pick) => {
                    if plain.0.is_empty() { continue }
                    let (gone, ..) = plain.0.remove(pick % plain.0.len());
                    prop_assert!(backlog.remove(gone, 0, &mut expiry_index).is_some());
                    prop_assert!(backlog.get(gone).is_none());
                }
            }
            prop_assert_eq!(backlog.len() as usize, plain.0.len());
            prop_assert_eq!(backlog.last(), plain.0.last().map(|entry| entry.0));
        }
        let held: Vec<_> = backlog.iter_from(0).map(|(counter, message)| (counter, message.is_locked(), message.is_deferred())).collect();
        prop_assert_eq!(held, plain.0.clone());
        let middle = counter / 2;
        let tail: Vec<_> = backlog.iter_from(middle).map(|(counter, _)| counter).collect();
        let expected: Vec<_> = plain.0.iter().map(|entry| entry.0).filter(|counter| *counter >= middle).collect();
        prop_assert_eq!(tail, expected);
    }
}
