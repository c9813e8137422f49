use super::*;
use crate::record::{ServerTime, Version};

const ME: Contender = Contender::new(1);
const OTHER: Contender = Contender::new(2);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Moment {
    Moment::since_boot(secs(seconds))
}

fn contest() -> Contest {
    Contest { timing: Timing::new(secs(15), secs(10), secs(5)).unwrap(), max_clock_skew: None }
}

fn record(holder: Option<Contender>, term: u64, heartbeat: u64) -> Record {
    Record {
        version: Version { holder, term: Term::new(term), heartbeat },
        ttl: secs(15),
        expires_at: ServerTime::default(),
    }
}

fn seen(holder: Option<Contender>, term: u64, heartbeat: u64, since: u64) -> Sighting {
    Sighting::first(Some(record(holder, term, heartbeat)), at(since))
}

/// In short: `+term why` for a try, `-seconds` for a wait.
fn decided(me: &Me, sighting: &Sighting, contest: &Contest, now: u64) -> String {
    match follow(me, sighting, contest, at(now)) {
        Follow::Try { statement, why } => format!("+{} {why:?}", statement.grants().unwrap()),
        Follow::Wait { until } => format!("-{}", until.as_duration().as_secs()),
    }
}

#[test]
fn what_a_standby_does() {
    let me = Me::new(ME);
    let held = seen(Some(OTHER), 3, 7, 100);
    let cases = [
        ("no lease yet", Sighting::first(None, at(100)), 100, "+1 Absent"),
        ("released", seen(None, 3, 7, 100), 100, "+4 Released"),
        ("held, just seen", held, 100, "-115"),
        ("held, almost ttl ago", held, 114, "-115"),
        ("held, silent for ttl", held, 115, "+4 Silent"),
        ("held, seen again unchanged", held.observe(Some(record(Some(OTHER), 3, 7)), at(110)), 115, "+4 Silent"),
        ("held, and it moved", held.observe(Some(record(Some(OTHER), 3, 8)), at(110)), 115, "-125"),
        ("taken by a third", held.observe(Some(record(Some(Contender::new(3)), 4, 8)), at(114)), 115, "-129"),
        ("given back", held.observe(Some(record(None, 3, 7)), at(101)), 101, "+4 Released"),
        ("names me, who does not lead", seen(Some(ME), 3, 7, 100), 100, "+4 Mine"),
        ("vanished: its holder may not know", held.observe(None, at(101)), 101, "-116"),
        ("vanished for ttl", held.observe(None, at(101)), 116, "+4 Lost"),
        ("restored from a backup", held.observe(Some(record(None, 1, 2)), at(101)), 101, "+4 Released"),
    ];
    for (name, sighting, now, expected) in cases {
        assert_eq!(decided(&me, &sighting, &contest(), now), expected, "{name}");
    }
}

#[test]
fn a_standby_waits_as_long_as_the_holder_was_promised() {
    let patient = Record { ttl: secs(60), ..record(Some(OTHER), 3, 7) };
    let sighting = Sighting::first(Some(patient), at(100));
    assert_eq!(decided(&Me::new(ME), &sighting, &contest(), 115), "-160");
    assert_eq!(decided(&Me::new(ME), &sighting.observe(None, at(101)), &contest(), 116), "-161");
}

#[test]
fn the_take_compares_exactly_what_was_seen_and_never_reuses_a_heartbeat() {
    let mut me = Me::new(ME);
    let sighting = seen(Some(OTHER), 3, 7, 0);
    let heartbeat_of = |me: &Me| match follow(me, &sighting, &contest(), at(15)) {
        Follow::Try { statement: statement @ Statement::Take { seen, heartbeat, .. }, .. } => {
            assert_eq!(seen, record(Some(OTHER), 3, 7).version);
            (statement, heartbeat)
        }
        other => panic!("{other:?}"),
    };
    let (lost, first) = heartbeat_of(&me);
    me.sending(&lost);
    let (_, second) = heartbeat_of(&me);
    assert_eq!((first, second), (8, 9));
}

#[test]
fn a_wall_clock_decides_nothing_unless_the_operator_vouches_for_it() {
    let me = Me::new(ME);
    let vouched = Contest { max_clock_skew: Some(secs(60)), ..contest() };
    let new_here = seen(Some(OTHER), 3, 7, 100);
    assert_eq!(decided(&me, &new_here, &contest(), 100), "-115");
    assert_eq!(decided(&me, &new_here, &vouched, 100), "+4 PerhapsExpired");
    let alive = new_here.observe(Some(record(Some(OTHER), 3, 8)), at(101));
    assert_eq!(decided(&me, &alive, &vouched, 102), "-116");
}

#[test]
fn who_stepped_down_lets_others_go_first() {
    let mut me = Me::new(ME);
    me.stand_down(Term::new(3), at(100), &contest().timing);
    assert_eq!(decided(&me, &seen(None, 3, 7, 100), &contest(), 100), "-115");
    assert_eq!(decided(&me, &seen(None, 3, 7, 100), &contest(), 115), "+4 Released");
    // somebody led meanwhile, and gave it back: the turn is over
    assert_eq!(decided(&me, &seen(None, 4, 9, 102), &contest(), 103), "+5 Released");
}

#[test]
fn a_leader_is_valid_from_the_send_to_the_deadline() {
    let timing = contest().timing;
    let tenure = Tenure::granted(Term::new(3), at(100), &timing);
    assert_eq!(lead(&tenure, at(104)), Lead::Wait { until: at(105) });
    assert_eq!(lead(&tenure, at(105)), Lead::Renew);
    assert!(tenure.is_valid(at(109)));
    assert!(!tenure.is_valid(at(110)));
    assert_eq!(lead(&tenure, at(110)), Lead::Expired);
    assert_eq!(tenure.renewed(at(105), &timing).valid_until(), at(115));
}

#[test]
fn one_failed_renewal_is_asked_again_and_does_not_move_the_deadline() {
    let timing = contest().timing;
    let tenure = Tenure::granted(Term::new(3), at(100), &timing).not_renewed(at(106), &timing);
    assert_eq!(tenure.valid_until(), at(110));
    assert!(matches!(lead(&tenure, at(106)), Lead::Wait { until } if until < at(107)));
    assert_eq!(lead(&tenure, at(107)), Lead::Renew);
}

#[test]
fn a_term_that_fell_behind_is_raised_above_what_it_guards() {
    let me = Me::new(ME);
    let to = |floor| me.raise(Term::new(3), Term::new(floor)).grants();
    assert_eq!(to(41), Some(Term::new(42)));
    assert_eq!(to(1), Some(Term::new(4)));
}
