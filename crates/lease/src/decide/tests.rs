use super::*;
use crate::record::{LeaseVersion, ServerTime};

const ME: CandidateId = CandidateId::new(1);
const OTHER: CandidateId = CandidateId::new(2);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> BootInstant {
    BootInstant::since_boot(secs(seconds))
}

fn rules() -> ElectionRules {
    ElectionRules { timing: Timing::new(secs(15), secs(10), secs(5)).unwrap(), max_clock_skew: None }
}

fn record(holder: Option<CandidateId>, term: u64, heartbeat: u64) -> LeaseRecord {
    LeaseRecord {
        version: LeaseVersion { holder, term: Term::new(term), heartbeat },
        ttl: secs(15),
        expires_at: ServerTime::default(),
    }
}

fn observed(holder: Option<CandidateId>, term: u64, heartbeat: u64, since: u64) -> LeaseObservation {
    LeaseObservation::new(Some(record(holder, term, heartbeat)), at(since))
}

/// Short form: `+term reason` for a try, `-seconds` for a wait.
fn decided(state: &CandidateState, observation: &LeaseObservation, rules: &ElectionRules, now: u64) -> String {
    match decide_standby(state, observation, rules, at(now)) {
        StandbyAction::Try { statement, reason } => format!("+{} {reason:?}", statement.granted_term().unwrap()),
        StandbyAction::Wait { until } => format!("-{}", until.as_duration().as_secs()),
    }
}

#[test]
fn a_standby_decides_by_what_it_observed() {
    let state = CandidateState::new(ME);
    let held = observed(Some(OTHER), 3, 7, 100);
    let cases = [
        ("no lease yet", LeaseObservation::new(None, at(100)), 100, "+1 NoLease"),
        ("released", observed(None, 3, 7, 100), 100, "+4 Released"),
        ("held, just seen", held, 100, "-115"),
        ("held, almost ttl ago", held, 114, "-115"),
        ("held, silent for ttl", held, 115, "+4 HolderSilent"),
        ("held, seen again unchanged", held.update(Some(record(Some(OTHER), 3, 7)), at(110)), 115, "+4 HolderSilent"),
        ("held, and it changed", held.update(Some(record(Some(OTHER), 3, 8)), at(110)), 115, "-125"),
        ("taken by a third", held.update(Some(record(Some(CandidateId::new(3)), 4, 8)), at(114)), 115, "-129"),
        ("released while held", held.update(Some(record(None, 3, 7)), at(101)), 101, "+4 Released"),
        ("names this candidate, which does not lead", observed(Some(ME), 3, 7, 100), 100, "+4 OwnLease"),
        ("vanished: its holder may not know yet", held.update(None, at(101)), 101, "-116"),
        ("vanished for ttl", held.update(None, at(101)), 116, "+4 Vanished"),
        ("restored from a backup", held.update(Some(record(None, 1, 2)), at(101)), 101, "+4 Released"),
    ];
    for (name, observation, now, expected) in cases {
        assert_eq!(decided(&state, &observation, &rules(), now), expected, "{name}");
    }
}

#[test]
fn a_standby_waits_for_the_ttl_of_the_holder() {
    let long_ttl = LeaseRecord { ttl: secs(60), ..record(Some(OTHER), 3, 7) };
    let observation = LeaseObservation::new(Some(long_ttl), at(100));
    assert_eq!(decided(&CandidateState::new(ME), &observation, &rules(), 115), "-160");
    assert_eq!(decided(&CandidateState::new(ME), &observation.update(None, at(101)), &rules(), 116), "-161");
}

#[test]
fn a_take_expects_the_observed_version_and_a_new_heartbeat() {
    let mut state = CandidateState::new(ME);
    let observation = observed(Some(OTHER), 3, 7, 0);
    let heartbeat_of = |state: &CandidateState| match decide_standby(state, &observation, &rules(), at(15)) {
        StandbyAction::Try { statement: statement @ LeaseStatement::Take { expected, heartbeat, .. }, .. } => {
            assert_eq!(expected, record(Some(OTHER), 3, 7).version);
            (statement, heartbeat)
        }
        other => panic!("{other:?}"),
    };
    let (lost, first) = heartbeat_of(&state);
    state.record_sent(&lost);
    let (_, second) = heartbeat_of(&state);
    assert_eq!((first, second), (8, 9));
}

#[test]
fn a_wall_clock_decides_only_if_the_operator_allows_it() {
    let state = CandidateState::new(ME);
    let allowed = ElectionRules { max_clock_skew: Some(secs(60)), ..rules() };
    let first_read = observed(Some(OTHER), 3, 7, 100);
    assert_eq!(decided(&state, &first_read, &rules(), 100), "-115");
    assert_eq!(decided(&state, &first_read, &allowed, 100), "+4 ServerClockExpired");
    let alive = first_read.update(Some(record(Some(OTHER), 3, 8)), at(101));
    assert_eq!(decided(&state, &alive, &allowed, 102), "-116");
}

#[test]
fn a_pod_that_stepped_down_lets_others_go_first() {
    let mut state = CandidateState::new(ME);
    state.record_step_down(Term::new(3), at(100), &rules().timing);
    assert_eq!(decided(&state, &observed(None, 3, 7, 100), &rules(), 100), "-115");
    assert_eq!(decided(&state, &observed(None, 3, 7, 100), &rules(), 115), "+4 Released");
    // Another pod led meanwhile and released the lease: the pause is over.
    assert_eq!(decided(&state, &observed(None, 4, 9, 102), &rules(), 103), "+5 Released");
}

#[test]
fn a_leader_is_valid_from_the_send_to_the_deadline() {
    let timing = rules().timing;
    let held = HeldLease::new(Term::new(3), at(100), &timing);
    assert_eq!(decide_leader(&held, at(104)), LeaderAction::Wait { until: at(105) });
    assert_eq!(decide_leader(&held, at(105)), LeaderAction::Renew);
    assert!(held.is_valid(at(109)));
    assert!(!held.is_valid(at(110)));
    assert_eq!(decide_leader(&held, at(110)), LeaderAction::Expired);
    assert_eq!(held.with_renewal(at(105), &timing).valid_until(), at(115));
}

#[test]
fn a_failed_renewal_is_retried_and_keeps_the_deadline() {
    let timing = rules().timing;
    let held = HeldLease::new(Term::new(3), at(100), &timing).with_retry(at(106), &timing);
    assert_eq!(held.valid_until(), at(110));
    assert!(matches!(decide_leader(&held, at(106)), LeaderAction::Wait { until } if until < at(107)));
    assert_eq!(decide_leader(&held, at(107)), LeaderAction::Renew);
}

#[test]
fn a_term_that_fell_behind_is_raised_above_the_floor() {
    let state = CandidateState::new(ME);
    let to = |floor| state.raise_statement(Term::new(3), Term::new(floor)).granted_term();
    assert_eq!(to(41), Some(Term::new(42)));
    assert_eq!(to(1), Some(Term::new(4)));
}
