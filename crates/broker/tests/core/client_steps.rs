//! Random steps of clients and time.

use broker::core::SettlementOutcome;
use proptest::prelude::*;

use crate::fixture::{abandon, dead_letter, defer};

#[derive(Debug, Clone)]
pub(crate) enum ClientStep {
    /// `count` messages to the entity `to`.
    Send {
        to: usize,
        session: u8,
        count: usize,
        id: Option<u8>,
        ttl: Option<u64>,
        delay: Option<u64>,
    },
    Attach {
        queue: usize,
        dead: bool,
        deleting: bool,
    },
    AttachNamed {
        queue: usize,
        session: u8,
    },
    Credit {
        link: usize,
        credit: u32,
        drain: bool,
    },
    Detach {
        link: usize,
    },
    Settle {
        delivery: usize,
        count: usize,
        outcome: SettlementOutcome,
    },
    Renew {
        delivery: usize,
    },
    RenewSession {
        link: usize,
    },
    Fetch {
        message: usize,
    },
    Pass {
        millis: u64,
    },
    /// The journal refuses appends during the next step.
    Full,
    /// Continues the current snapshot, or starts one.
    Snapshot {
        budget: usize,
    },
    /// From the last complete snapshot, or from the whole journal.
    Restart {
        snapshot: bool,
    },
    Compact {
        back: u32,
    },
}

pub(crate) fn step() -> impl Strategy<Value = ClientStep> {
    let outcome = prop_oneof![
        5 => Just(SettlementOutcome::Complete),
        2 => Just(abandon()),
        2 => Just(SettlementOutcome::Release),
        1 => Just(defer()),
        1 => Just(dead_letter("bad")),
    ];
    let send = (0usize..3, 0u8..4, 1usize..4, prop::option::weighted(0.3, 0u8..20), rarely(1_000), rarely(3_000));
    prop_oneof![
        8 => send.prop_map(|(to, session, count, id, ttl, delay)| ClientStep::Send { to, session, count, id, ttl, delay }),
        4 => (0usize..4, prop::bool::weighted(0.15), prop::bool::weighted(0.15))
            .prop_map(|(queue, dead, deleting)| ClientStep::Attach { queue, dead, deleting }),
        1 => (0usize..4, 0u8..4).prop_map(|(queue, session)| ClientStep::AttachNamed { queue, session }),
        8 => (any::<usize>(), 0u32..6, prop::bool::weighted(0.1))
            .prop_map(|(link, credit, drain)| ClientStep::Credit { link, credit, drain }),
        2 => any::<usize>().prop_map(|link| ClientStep::Detach { link }),
        12 => (any::<usize>(), 1usize..4, outcome).prop_map(|(delivery, count, outcome)| ClientStep::Settle { delivery, count, outcome }),
        1 => any::<usize>().prop_map(|delivery| ClientStep::Renew { delivery }),
        2 => any::<usize>().prop_map(|link| ClientStep::RenewSession { link }),
        2 => any::<usize>().prop_map(|message| ClientStep::Fetch { message }),
        5 => (1u64..4_000).prop_map(|millis| ClientStep::Pass { millis }),
        1 => Just(ClientStep::Full),
        4 => (1usize..400).prop_map(|budget| ClientStep::Snapshot { budget }),
        1 => any::<bool>().prop_map(|snapshot| ClientStep::Restart { snapshot }),
        1 => (0u32..4).prop_map(|back| ClientStep::Compact { back }),
    ]
}

fn rarely(least: u64) -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.15, least..least * 8)
}
