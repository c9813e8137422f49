use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const WINDOW: Duration = Duration::from_secs(600);
const START: Timestamp = Timestamp(1_800_000_000_000);

fn id(n: u64) -> Fingerprint {
    Fingerprint::of(&n.to_string(), None)
}

fn later(millis: u64) -> Timestamp {
    Timestamp(START.0 + millis)
}

#[test]
fn an_id_is_known_for_the_window_and_hardly_longer() {
    for window in [20, 600, 7 * 86_400].map(Duration::from_secs) {
        let mut history = DuplicateHistory::new(window);
        history.insert(id(1), START);
        let millis = window.as_millis() as u64;
        assert!(history.contains(id(1), later(millis)), "{window:?}");
        assert!(!history.contains(id(1), later(millis + millis / 100)), "{window:?}");
        assert!(!history.contains(id(2), START));
    }
}

#[test]
fn the_partition_key_is_part_of_the_id() {
    assert_ne!(Fingerprint::of("a", Some("k1")), Fingerprint::of("a", Some("k2")));
    // The boundary between id and key is part of the hash.
    assert_ne!(Fingerprint::of("ab", Some("c")), Fingerprint::of("a", Some("bc")));
    assert_eq!(Fingerprint::from_bytes(id(7).bytes()), id(7));
}

#[test]
fn an_id_costs_less_than_twenty_bytes_at_every_size() {
    let mut history = DuplicateHistory::new(WINDOW);
    let mut n = 0;
    for size in [10_000, 30_000, 100_000, 300_000, 1_000_000] {
        while history.len() < size {
            history.insert(id(n), START);
            n += 1;
        }
        let each = history.heap_bytes() as f64 / size as f64;
        assert!(each < 20.0, "{size}: {each}");
    }
}

#[test]
fn ids_past_the_window_are_freed_without_new_sends() {
    let mut history = DuplicateHistory::new(WINDOW);
    (0..50_000).for_each(|n| history.insert(id(n), START));
    let full = history.heap_bytes();
    let mut now = later(WINDOW.as_millis() as u64 + 5_000);
    for _ in 0..DuplicateHistory::SWEEPS {
        now = now.after(history.sweep_interval());
        history.sweep(now);
    }
    assert_eq!(history.len(), 0);
    assert!(history.heap_bytes() < full / 50);
}

#[test]
fn an_age_beyond_sixteen_bits_is_not_mistaken_for_new() {
    // After 256 windows the tick has the same 16 bits again.
    let wrap = later(WINDOW.as_millis() as u64 / 256 * 65_536);
    let mut history = DuplicateHistory::new(WINDOW);
    history.insert(id(1), START);
    history.sweep(START);
    assert!(!history.contains(id(1), wrap));
    history.insert(id(2), wrap);
    assert!(!history.contains(id(1), wrap) && history.contains(id(2), wrap));
}

#[test]
fn a_clock_that_steps_back_forgets_nothing() {
    let mut history = DuplicateHistory::new(WINDOW);
    history.insert(id(1), START);
    assert!(history.contains(id(1), Timestamp(START.0 - 60_000)));
}

#[test]
fn of_two_times_the_later_counts_in_any_order() {
    for moments in [[0, 5_000], [5_000, 0]] {
        let mut history = DuplicateHistory::new(WINDOW);
        moments.iter().for_each(|at| history.insert(id(1), later(*at)));
        assert!(history.contains(id(1), later(WINDOW.as_millis() as u64 + 4_000)), "{moments:?}");
        assert_eq!(history.len(), 1);
    }
}

#[test]
fn changing_the_window_keeps_ids_within_it() {
    let mut history = DuplicateHistory::new(WINDOW);
    history.insert(id(1), START);
    history.insert(id(2), later(300_000));
    let now = later(330_000);
    let shorter = history.with_window(Duration::from_secs(60), now);
    assert!(!shorter.contains(id(1), now) && shorter.contains(id(2), now));
}

proptest! {
    #[test]
    fn a_history_behaves_like_a_map(steps in proptest::collection::vec((0u64..3_000, 0u64..2_000), 1..3_000)) {
        let window = Duration::from_secs(20);
        let (mut history, mut plain, mut now) = (DuplicateHistory::new(window), HashMap::new(), START);
        for (n, pause) in steps {
            now = now.after(Duration::from_millis(pause / 40));
            let age = plain.get(&n).map(|seen: &Timestamp| now.0 - seen.0);
            match age {
                Some(age) if age <= 20_000 => prop_assert!(history.contains(id(n), now), "{n} forgotten at {age}"),
                // May be kept slightly too long.
                Some(age) if age <= 20_200 => continue,
                _ => prop_assert!(!history.contains(id(n), now), "{n} remembered at {age:?}"),
            }
            if age.is_none_or(|age| age > 20_200) {
                history.insert(id(n), now);
                plain.insert(n, now);
            }
            if pause % 50 == 0 {
                history.sweep(now);
            }
        }
    }
}
